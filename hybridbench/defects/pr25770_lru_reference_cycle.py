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

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.engine.cache.lru import FullLRUList, MambaLRUList
from hybridbench.engine.cache.tree_node import TreeNode


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
        drivers=("nodes_evicted", "evict_leaf"),
        exact=False,
        duration_s=300.0,
    ),
    patches=(
        Patch(FullLRUList, "_remove_node", _remove_node_from_full, fingerprint="eb67f7f61912"),
        Patch(MambaLRUList, "_remove_node", _remove_node_from_mamba, fingerprint="eb20f4f6c668"),
    ),
    harmed="Qwen3-Next under steady traffic: scheduler RSS +3.7 GB/h, 17,270 nodes in cycles.",
    cure="Both pointers of a removed node are set to None, in every list kind.",
    versions=(("0.5.9", "0.5.12.post1"),),
)
