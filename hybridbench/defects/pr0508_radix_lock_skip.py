"""bytedance-iaas/sglang#508: a lock on a node that is cut later is given back on one half only.

A match that ended inside a node locked the node as it stood, and the node was cut afterwards.  The
walk that gives the lock back begins at the upper half, where the match had ended, and goes up: it
never meets the lower half.  Its KV is protected for good, in use by nobody, and the longer prompts
with partial overlaps are served, the less there is to evict.

The same mistake the other way round, a lock walk that begins at the parent, is
sgl-project/mini-sglang#52: there the node that was hit is never locked.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.tree import PrefixTree
from hybridbench.engine.cache.tree_node import TreeNode

TRUTH = Truth()


def _after_split(self: RadixCache, upper: TreeNode, lower: TreeNode) -> None:
    """The lower half keeps the lock of the match that cut it; its holder will unlock the upper."""
    upper.creation_time = lower.creation_time
    TRUTH.add("splits")
    if lower.full_lock_ref == 0:
        # Of a node that others hold as well, the loss could not be counted to the token.
        if not lower.children:
            self._evictable_leaves.discard(lower)
        _lock_for_nobody(self, lower)


def _lock_for_nobody(tree: PrefixTree, lower: TreeNode) -> None:
    """A lock on this node alone, which no walk will give back."""
    tokens = len(lower.value)
    lower.full_lock_ref = 1
    tree.full_evictable_size_ -= tokens
    tree.full_protected_size_ += tokens
    TRUTH.add("tokens_protected", tokens)
    TRUTH.add("locks_lost")


DEFECT = Defect(
    slug="radix-lock-skip",
    source="bytedance-iaas/sglang#508",
    symptom="KV stays protected with no request in the engine, more with every prompt that leaves "
    "a cached one half-way.",
    profile="shared-prefix",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("locks-at-idle",),
        subject="full",
        event="match that ends inside a node and cuts it",
        rate="the tokens of the lower half (whole pages), or none if others held it too",
        drivers=("node_splits",),
        harm="tokens_protected",
        per="splits",
    ),
    patches=(Patch(RadixCache, "_after_split", _after_split, fingerprint="cd1fc53239c1"),),
    harmed="Servers of prompts that share beginnings: from the third request on KV could no longer "
    "be evicted.",
    cure="A match cuts the node before it is locked, so that lock and unlock walk the same nodes.",
    truth=TRUTH,
)
