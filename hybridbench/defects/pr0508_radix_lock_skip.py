"""bytedance-iaas/sglang#508: the lock on a node that is split later is released on one half only.

A match that ended inside a node did not split it: the whole node was locked, with more tokens
than had matched.  The request's own insert split it afterwards.  Both halves kept the lock, but the
request's record named the node where its match had ended, which is now the upper half: the walk
that releases the lock begins there and goes up, and never reaches the lower half.  Its KV stays
protected although no request uses it, and each further prompt with a partial overlap leaves less
KV to evict.

The opposite mistake, a lock walk that begins at the parent, is
sgl-project/mini-sglang#52: there the node that was hit is never locked.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.base import MatchResult
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree import PrefixTree
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.indices import IntArray

TRUTH = Truth()
_healthy_split_node = PrefixTree._split_node
# Per node, how many of its locks will never be released.  Its tokens count as lost only once,
# however often it is split.
_LOST: WeakKeyDictionary[TreeNode, int] = WeakKeyDictionary()


def _match(self: RadixCache, key: RadixKey) -> MatchResult:
    """Do not split a node that the key matches only in part: return it, to be locked whole."""
    rest = key.page_aligned(self.page_size)
    path: list[TreeNode] = []
    indices: list[IntArray] = []
    parent = self.root_node
    while rest.raw and (child := parent.children.get(self._child_key(parent, rest))) is not None:
        common = rest.match(child.key, self.page_size)
        path.append(child)
        indices.append(child.value[:common])
        rest = rest[common:]
        if common < len(child.key):
            break
        parent = child
    if not path:
        return self._no_match()
    self._stamp_path(path)
    self._evictable_leaves.touch(path[-1])
    matched = np.concatenate(indices)
    return MatchResult(matched, path[-1], path[-1], None, len(matched))


def _split_node(self: PrefixTree, lower: TreeNode, tokens: int) -> TreeNode:
    """Keep the split node as the upper half, so that its lock holders now refer to that half.

    The lower half is a new node with as many locks, although no holder refers to it.
    """
    if not isinstance(self, RadixCache):
        return _healthy_split_node(self, lower, tokens)
    upper, children = lower, lower.children
    below = self._new_node(upper.key[tokens:], upper.value[tokens:].copy(), upper)
    below.full_lock_ref = upper.full_lock_ref
    below.hit_count, below.priority = upper.hit_count, upper.priority
    below.writers = upper.writers
    below.children = children
    for child in children.values():
        child.parent = below
    if upper.hash_value is not None:
        pages = tokens // self.page_size
        upper.hash_value, below.hash_value = upper.hash_value[:pages], upper.hash_value[pages:]
    upper.key, upper.value = upper.key[:tokens], upper.value[:tokens].copy()
    upper.children = {self._child_key(upper, below.key): below}
    self._evictable_leaves.discard(upper)
    if not children and below.full_lock_ref == 0:
        self._evictable_leaves.add(below)
    self.events.node_splits += 1
    _count_lost_locks(upper, below)
    return upper


def _count_lost_locks(upper: TreeNode, below: TreeNode) -> None:
    """Count lost locks: holders below release both halves, holders of the node only the upper."""
    TRUTH.add("splits")
    lost_before = _LOST.get(upper, 0)
    meet_both = sum(child.full_lock_ref - _LOST.get(child, 0) for child in below.children.values())
    lost = below.full_lock_ref - lost_before - meet_both
    _LOST[below] = lost_before + lost
    TRUTH.add("locks_lost", lost)
    TRUTH.add("tokens_protected", len(below.value) if lost and not lost_before else 0)


DEFECT = Defect(
    slug="radix-lock-skip",
    source="bytedance-iaas/sglang#508",
    symptom="KV stays locked with no request in the engine; each prompt that diverges from a "
    "cached one inside a node adds to it.",
    profile="shared-prefix",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("locks-at-idle",),
        subject="full",
        event="split of a node that a request has locked",
        rate="the tokens of the lower half (whole pages), or none if they were already lost",
        drivers=("node_splits",),
        harm="tokens_protected",
        per="splits",
        counted="locks",
    ),
    patches=(
        Patch(RadixCache, "_match", _match, fingerprint="2b0eea46aa64"),
        Patch(PrefixTree, "_split_node", _split_node, fingerprint="229db8d76c19"),
    ),
    harmed="Servers whose prompts share prefixes: from the third request on, KV could no longer be "
    "evicted.",
    cure="A match splits the node before it is locked, so that lock and unlock traverse the same "
    "nodes.",
    truth=TRUTH,
)
