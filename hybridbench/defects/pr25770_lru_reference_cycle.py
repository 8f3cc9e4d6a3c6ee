"""sglang#25770: nodes removed from an LRU list keep pointing at their old neighbours.

Removal mends the neighbours and leaves the node's own two pointers.  A parent whose state was
evicted while its child was the next younger entry then points at that child for good; when the
child goes as a leaf and the tombstone after it, the two form a cycle, and every node evicted later
hangs from it in a chain.  While such a parent is still in the tree the chain is even reachable, and
a full collection frees nothing of it.

Present in sglang 0.5.9 to 0.5.12.post1, fixed in 0.5.13 (merged 2026-05-21).  Reported rate:
+3.7 GB/h of scheduler RSS on Qwen3-Next.
"""

from __future__ import annotations

import gc
from weakref import ref

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.lru import FullLRUList, MambaLRUList
from hybridbench.engine.cache.tree import PrefixTree
from hybridbench.engine.cache.tree_node import TreeNode

TRUTH = Truth()
_healthy_unlink_from_parent = PrefixTree._unlink_from_parent
# One evicted node of so many is watched: a weak reference to each would grow with the leak, and be
# a tenth of it.
_EVERY = 8
# A healthy node outlives its eviction by the frames that name it.
_FRAMES = 1
_FULL_COLLECTION = 2


class EvictedNodes:
    """Counts the watched nodes that are still alive, and those that only a full collection ended.

    ``nodes_kept`` is their number at the last eviction: a flush at the end frees most of them.
    """

    def __init__(self) -> None:
        self._alive: set[ref[TreeNode]] = set()
        self._evicted = self._collected = 0
        self._collecting = False
        self._told = 0

    def add(self, node: TreeNode) -> None:
        """``node`` is being evicted."""
        self._evicted += 1
        if self._evicted % _EVERY:
            return
        if self._note_collection not in gc.callbacks:
            gc.callbacks.append(self._note_collection)
        kept = max(0, len(self._alive) + self._collected - _FRAMES)
        TRUTH.add("nodes_kept", kept - self._told)
        # Before the first cycle nothing is kept: how long that takes is no part of the rate.
        TRUTH.add("nodes_evicted", int(kept > 0 or self._told > 0))
        self._told = kept
        self._alive.add(ref(node, self._died))

    def clear(self) -> None:
        """Forget the nodes of an engine that is gone."""
        self._alive.clear()
        self._evicted = self._collected = self._told = 0

    def _died(self, node: ref[TreeNode]) -> None:
        if node in self._alive:
            self._alive.remove(node)
            self._collected += self._collecting

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        self._collecting = phase == "start" and info["generation"] == _FULL_COLLECTION


_EVICTED = EvictedNodes()


def _unlink_from_parent(self: PrefixTree, node: TreeNode) -> TreeNode:
    """The same; watches what becomes of the node."""
    _EVICTED.add(node)
    return _healthy_unlink_from_parent(self, node)


def _remove_node_from_full(self: FullLRUList, node: TreeNode) -> None:
    """Before #25770: the neighbours are mended, the node's own pointers stay."""
    node.full_prev.full_next = node.full_next
    node.full_next.full_prev = node.full_prev


def _remove_node_from_mamba(self: MambaLRUList, node: TreeNode) -> None:
    """Before #25770: the neighbours are mended, the node's own pointers stay."""
    node.mamba_prev.mamba_next = node.mamba_next
    node.mamba_next.mamba_prev = node.mamba_prev


DEFECT = Defect(
    slug="lru-reference-cycle",
    source="sglang#25770",
    symptom="RSS of the scheduler climbs while all pools balance: evicted tree nodes wait for a "
    "full collection, or hang from tombstones that are still in the tree.",
    profile="chat-churn",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("instances-retained", "instances-wait-for-collector"),
        subject="TreeNode",
        event="evicted node",
        rate="0.9 to 1 node per evicted node once a first parent and child were evicted apart",
        drivers=("nodes_evicted",),
        harm="nodes_kept",
        per="nodes_evicted",
        exact=False,
        duration_s=300.0,
    ),
    patches=(
        Patch(FullLRUList, "_remove_node", _remove_node_from_full, fingerprint="eb67f7f61912"),
        Patch(MambaLRUList, "_remove_node", _remove_node_from_mamba, fingerprint="eb20f4f6c668"),
        Patch(PrefixTree, "_unlink_from_parent", _unlink_from_parent, fingerprint="2c5263c2c8a3"),
    ),
    harmed="Qwen3-Next under steady traffic: scheduler RSS +3.7 GB/h, 17,270 nodes in cycles.",
    cure="Both pointers of a removed node are set to None, in every list kind.",
    versions=(("0.5.9", "0.5.12.post1"),),
    truth=TRUTH,
)
