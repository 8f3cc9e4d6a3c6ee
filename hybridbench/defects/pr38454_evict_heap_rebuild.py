"""sglang#14339, #38454: each eviction looks at every leaf of the tree before it takes the oldest.

Each call takes its victims from a heap that it first builds of all evictable leaves, so an eviction
costs time in proportion to the number of leaves, whether it frees one token or a thousand.  While
the pool has room, nothing is evicted; once it is full, every step pays.  Memory and hits do not
change.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.tree_node import TreeNode

TRUTH = Truth()


def _oldest_leaves_of_radix(self: RadixCache) -> Iterator[TreeNode]:
    """Before #38454: build a heap of all leaves for this call alone."""
    return _from_new_heap(self._evictable_leaves)


def _oldest_leaves_of_hybrid(self: MambaRadixCache) -> Iterator[TreeNode]:
    """Before #38454: build a heap of all leaves for this call alone."""
    return _from_new_heap(self.full_lru_list.evictable())


def _from_new_heap(leaves: Iterable[TreeNode]) -> Iterator[TreeNode]:
    began_ns = time.thread_time_ns()
    heap = [(leaf.last_access_time, leaf.id, leaf) for leaf in leaves]
    heapq.heapify(heap)
    TRUTH.add("heaps_built")
    TRUTH.add("leaves_heaped", len(heap))
    while heap:
        leaf = heapq.heappop(heap)[2]
        parent = leaf.parent
        TRUTH.add("heap_ns", time.thread_time_ns() - began_ns)
        yield leaf
        began_ns = time.thread_time_ns()
        # The eviction may have left the parent without children: a possible next victim.
        if parent is not None and not parent.children and not parent.full_lock_ref:
            heapq.heappush(heap, (parent.last_access_time, parent.id, parent))


DEFECT = Defect(
    slug="evict-heap-rebuild",
    source="sglang#38454",
    symptom="Throughput drops when the KV pool is full: each eviction takes milliseconds, in "
    "proportion to the leaves of the tree. Memory is flat.",
    profile="zero-hit-short",
    signature=Signature(
        verdicts=("DEGRADED",),
        kinds=("below-threshold", "decay"),
        subject="evict",
        event="eviction",
        rate="time in proportion to the leaves: 0.2 us or more for each",
        harm="heap_ns",
        per="heaps_built",
        counted="value",
        scale=1e-6,
        duration_s=240.0,
        quick_s=0.0,
    ),
    patches=(
        Patch(RadixCache, "_oldest_leaves", _oldest_leaves_of_radix, fingerprint="bc3465299542"),
        Patch(
            MambaRadixCache,
            "_oldest_leaves",
            _oldest_leaves_of_hybrid,
            fingerprint="fb576d3c1055",
        ),
    ),
    harmed="Short requests without a common prefix: 70 to 77 ms per eviction with 41,000 leaves, "
    "95% of the scheduler's time, throughput down by 87 to 92%.",
    cure="The leaves stay ordered from one eviction to the next.",
    model="attention-nano",
    truth=TRUTH,
)
