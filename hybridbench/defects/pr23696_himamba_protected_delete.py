"""sglang#23696: the host evicts a node although a reference protects the slots being read there.

A transfer that reads a node's host slots holds a reference to the node.  Host eviction checked only
locks, so a node was removed while it was being read: its slots were allocated to the next node, and
the transfer's acknowledgement found a node that was no longer its parent's child.

Upstream, the clean-up of tombstones did this during storage writes and prefetches.  Here hybrid
models have no storage; loads hold the references, and the eviction of states and leaves from the
host ignores them.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.cache.tree_node import TreeNode

TRUTH = Truth()
_healthy = HostTier._is_host_protected


def _is_host_protected(self: HostTier, node: TreeNode) -> bool:
    """Before #23696 references were not checked."""
    TRUTH.add("protected_nodes_removed", int(_healthy(self, node)))
    return False


DEFECT = Defect(
    slug="himamba-protected-delete",
    source="sglang#23696",
    symptom="The engine ends with an error of its own check: a node or its state is missing once "
    "its load from the host has finished.",
    profile="host-tier-hybrid",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("engine-tree",),
        subject="engine",
        event="node evicted from the host while a load reads it",
        rate="the first one ends the engine",
        harm="protected_nodes_removed",
        # The engine stops at the first acknowledgement; other nodes may be removed before it.
        counted="count",
        at_most=True,
        duration_s=150.0,
        # On a busy machine copies take no longer than steps, so few loads overlap an eviction.
        quick_s=0.0,
    ),
    patches=(
        Patch(HostTier, "_is_host_protected", _is_host_protected, fingerprint="5479117d07ea"),
    ),
    harmed="HiMambaRadixCache under sustained load with storage: an assertion ended the scheduler.",
    cure="A node whose host slots are referenced is not removed.",
    # The host evicts a node that is being read only if little else is left there.
    overrides=(
        ("pools.kv_tokens", "4096"),
        ("engine.hicache.copy_time", "40ms"),
        ("conversations.open", "24"),
        # With half of the KV, it runs short before states do: a healthy run evicted 12 a minute.
        ("assert_coverage.evict_internal_state", "5"),
    ),
    truth=TRUTH,
    corrupts=True,
)
