"""sglang#25770: nodes removed from an LRU list keep pointing at their old neighbours.

Removal relinks the neighbours and leaves the node's own two pointers.  A parent whose state was
evicted while its child was the next younger entry keeps pointing at that child.  When the child is
evicted as a leaf, and then the tombstone, the two form a cycle, and every node evicted later is
chained to it.  While such a parent is still in the tree, the chain is even reachable, and a full
collection frees none of it.  A unified tree is full of such parents: there a tombstone that lost
its last child stays until its KV is evicted.

Each of three prefix caches had a list class with the same mistake, and the review asked whether
the siblings of the first were fixed as well.  ``lru-reference-cycle`` has the mistake in all of
them; the other defects here have it in one cache alone, as if its fix had been forgotten.

Present in sglang 0.5.9 to 0.5.12.post1, fixed in 0.5.13 (merged 2026-05-21).  Reported rate:
+3.7 GB/h of scheduler RSS on Qwen3-Next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from weakref import ref

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.lru import FullLRUList, MambaLRUList
from hybridbench.engine.cache.swa_lru import SWALRUList
from hybridbench.engine.cache.tree import PrefixTree
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.cache.unified_mamba import UnifiedMambaLRUList
from hybridbench.engine.cache.unified_swa import UnifiedSWALRUList

TRUTH = Truth()
_healthy_unlink_from_parent = PrefixTree._unlink_from_parent
# A healthy node is freed with the stack frames that refer to it, before this many more are evicted.
# Nodes that a full collection frees while they are watched do not count as kept.
_LATER = 16


class EvictedNodes:
    """Counts the evicted nodes that are still alive after ``_LATER`` more evictions.

    Counted nodes are forgotten: references to all of them would grow with the leak.
    """

    def __init__(self) -> None:
        self._watched: deque[ref[TreeNode]] = deque()

    def add(self, node: TreeNode) -> None:
        """Watch ``node``, which is being evicted."""
        self._watched.append(ref(node))
        if len(self._watched) <= _LATER:
            return
        TRUTH.add("nodes_kept", int(self._watched.popleft()() is not None))
        TRUTH.add("nodes_evicted")

    def clear(self) -> None:
        """Forget the nodes of an engine that no longer exists."""
        self._watched.clear()


_EVICTED = EvictedNodes()


def _unlink_from_parent(self: PrefixTree, node: TreeNode) -> TreeNode:
    """Unlink as usual, and watch whether the node is freed."""
    _EVICTED.add(node)
    return _healthy_unlink_from_parent(self, node)


def _remove_node_from_full(self: FullLRUList, node: TreeNode) -> None:
    """Before #25770: relink the neighbours, keep the node's own pointers."""
    node.full_prev.full_next = node.full_next
    node.full_next.full_prev = node.full_prev


def _remove_node_from_mamba(self: MambaLRUList, node: TreeNode) -> None:
    """Before #25770: relink the neighbours, keep the node's own pointers."""
    node.mamba_prev.mamba_next = node.mamba_next
    node.mamba_next.mamba_prev = node.mamba_prev


def _remove_node_from_swa(self: SWALRUList, node: TreeNode) -> None:
    """Before #25770: relink the neighbours, keep the node's own pointers."""
    node.swa_prev.swa_next = node.swa_next
    node.swa_next.swa_prev = node.swa_prev


_WATCH = Patch(PrefixTree, "_unlink_from_parent", _unlink_from_parent, fingerprint="2c5263c2c8a3")
_FULL = Patch(FullLRUList, "_remove_node", _remove_node_from_full, fingerprint="eb67f7f61912")
_MAMBA = Patch(MambaLRUList, "_remove_node", _remove_node_from_mamba, fingerprint="eb20f4f6c668")
_SWA = Patch(SWALRUList, "_remove_node", _remove_node_from_swa, fingerprint="9dc665d9c575")
_UNIFIED = (
    Patch(UnifiedMambaLRUList, "_remove_node", _remove_node_from_mamba, fingerprint="eb20f4f6c668"),
    Patch(UnifiedSWALRUList, "_remove_node", _remove_node_from_swa, fingerprint="9dc665d9c575"),
)

DEFECT = Defect(
    slug="lru-reference-cycle",
    source="sglang#25770",
    symptom="Scheduler RSS grows although all pools balance: evicted tree nodes form reference "
    "cycles that only a full collection frees, or stay referenced by tombstone nodes in the tree.",
    profile="chat-churn",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("instances-retained", "instances-wait-for-collector"),
        subject="TreeNode",
        event="evicted node",
        rate="0.9 to 1 node, once a parent and its child were evicted separately",
        drivers=("nodes_evicted",),
        harm="nodes_kept",
        per="nodes_evicted",
        duration_s=300.0,
        quick_s=0.0,
    ),
    patches=(_FULL, _MAMBA, _SWA, *_UNIFIED, _WATCH),
    harmed="Qwen3-Next under steady traffic: scheduler RSS grew by 3.7 GB/h, and 17,270 nodes were "
    "in cycles.",
    cure="Both list pointers of a removed node are set to None, in every kind of list.",
    versions=(("0.5.9", "0.5.12.post1"),),
    truth=TRUTH,
)


def _in_one(slug: str, of: str, profile: str, patches: tuple[Patch, ...]) -> Defect:
    """Return the defect in one cache's lists only; no release is known to have had only that."""
    return replace(
        DEFECT,
        slug=slug,
        symptom=f"The same in the lists of {of} alone; the others clear the pointers.",
        profile=profile,
        patches=(*patches, _WATCH),
        harmed="No user: raised in review, which asked about the sibling lists.",
        versions=(),
        part_of=DEFECT.slug,
    )


IN_MAMBA_LISTS = _in_one(
    slug="lru-cycle-mamba-lists",
    of="the hybrid tree (MambaRadixCache)",
    profile="chat-churn",
    patches=(_FULL, _MAMBA),
)
IN_SWA_LIST = _in_one(
    slug="lru-cycle-swa-list",
    of="the tree with windows (SWARadixCache)",
    profile="swa-churn",
    patches=(_SWA,),
)
IN_UNIFIED_LISTS = _in_one(
    slug="lru-cycle-unified-lists", of="the unified tree", profile="unified-mix", patches=_UNIFIED
)
