"""What a unified tree asks of a component: its part of a match, an insert, a lock, an eviction.

KV is the base of every unified tree and no component of this kind: a node lives as long as it has
KV.  What else a node may have, and may lose before its KV goes, is a component.

Source: the TreeComponent of SGLang's UnifiedRadixCache, whose names the methods have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hybridbench.engine.cache.base import (
    BasePrefixCache,
    CacheableReq,
    DecLockRefParams,
    EvictParams,
    IncLockRefResult,
    InsertParams,
    InsertResult,
    MatchResult,
)
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.indices import IntArray


@dataclass(slots=True)
class Evicted:
    """What one eviction has taken so far; ``kv`` is freed when it ends."""

    tokens: int = 0
    states: int = 0
    swa_tokens: int = 0
    kv: list[IntArray] = field(default_factory=list)


@dataclass(slots=True)
class CachingReq:
    """A request that hands over what it has computed.

    Attributes:
        params: what will be inserted; None if the tree gets nothing.
        finished: the request ends, and keeps nothing.
        spare_slot: replaces or copies the state that the tree gets; taken before the insert, so
            that nothing is left to fail after it.
    """

    req: CacheableReq
    params: InsertParams | None
    finished: bool
    spare_slot: int | None = None


class TreeComponent(ABC):
    """One value, one lock count and one place in an LRU list for each node.

    What a component has no part in does nothing unless it says otherwise.

    Attributes:
        name: of its pool.
        list_ends: nodes that its list has of its own.
    """

    name: str
    list_ends: int

    @abstractmethod
    def evictable_size(self) -> int:
        """What the values without a lock take of the component's pool."""

    @abstractmethod
    def protected_size(self) -> int:
        """What the values with a lock take of it."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all nodes, which are dismantled after this."""

    @abstractmethod
    def has_value(self, node: TreeNode) -> bool:
        """Whether the node is no tombstone."""

    @abstractmethod
    def match_end(self, path: Sequence[TreeNode], end: int) -> int:
        """How many of the first ``end`` nodes of a path a match may have at most."""

    def match_result(self, result: MatchResult, walked_len: int) -> MatchResult:
        """``result`` with what this component has to say of a walk over ``walked_len`` tokens."""
        del walked_len
        return result

    def finalize_match_result(
        self, tree: BasePrefixCache, req: CacheableReq, node: TreeNode
    ) -> bool:
        """Give a request that hit ``node`` what it needs of it; False, and no hit, if it cannot."""
        del tree, req, node
        return True

    @abstractmethod
    def touch(self, path: Sequence[TreeNode]) -> None:
        """A path was used just now: what was read of it is the youngest, the lowest last."""

    @abstractmethod
    def redistribute_on_node_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """A node was cut; ``lower`` is the one that it was, and the younger."""

    def check_insert(self, params: InsertParams) -> None:
        """Raise ValueError if these values cannot belong to this key."""
        del params

    def update_on_insert_overlap(
        self,
        path: list[TreeNode],
        value: IntArray,
        params: InsertParams,
        split: Callable[[TreeNode, int], TreeNode],
    ) -> list[TreeNode]:
        """Take what ``value`` brings for nodes that are there; the path, with those that were cut.

        ``split`` cuts a node after so many tokens, and returns the upper half.
        """
        del value, params, split
        return path

    def leaf_cut(self, prefix_len: int, params: InsertParams) -> int:
        """Where new tokens from ``prefix_len`` on must be cut in two nodes; there if nowhere."""
        del params
        return prefix_len

    def add_node(self, node: TreeNode, end: int, params: InsertParams) -> None:
        """A new node, whose key ends after ``end`` tokens from the root."""
        del node, end, params

    def commit_insert_component_data(self, node: TreeNode, params: InsertParams) -> bool:
        """Take over what ``params`` bring for the node where the key ends; whether it was taken."""
        del node, params
        return False

    @abstractmethod
    def acquire_component_lock(self, node: TreeNode, lock: IncLockRefResult) -> IncLockRefResult:
        """Lock the value of a node, if it has one; ``lock`` with what the receipt must say."""

    def acquire_transfer_lock(self, node: TreeNode, lock: IncLockRefResult) -> IncLockRefResult:
        """The same for a copy of the value, or for one of what is below; it may be missing."""
        return self.acquire_component_lock(node, lock)

    @abstractmethod
    def release_component_lock(self, node: TreeNode, receipt: DecLockRefParams | None) -> None:
        """Undo one ``acquire_component_lock``; without its receipt, one that locked something."""

    @abstractmethod
    def drive_eviction(self, params: EvictParams, evicted: Evicted) -> Iterator[TreeNode]:
        """Victims, oldest first, until enough is free; each goes before the next is asked for."""

    @abstractmethod
    def evict_component(self, node: TreeNode, evicted: Evicted) -> None:
        """A leaf goes, and its value, if it has one, with it."""

    @abstractmethod
    def make_tombstone(self, node: TreeNode, evicted: Evicted) -> None:
        """Free the value of a node that stays."""

    @abstractmethod
    def take_loaded(self, node: TreeNode, slots: IntArray, time: int) -> None:
        """``slots`` of the tree are the value of a node that had none.

        It is the youngest of its list, at ``time``.
        """

    @abstractmethod
    def cacheable_len(self, req: CacheableReq) -> int:
        """Tokens of ``req`` that this component can cache now."""

    def prepare_for_caching_req(self, tree: BasePrefixCache, caching: CachingReq) -> bool:
        """Complete the parameters of the insert; False, and nothing taken, if that cannot be."""
        del tree, caching
        return True

    def cleanup_after_caching_req(self, caching: CachingReq, result: InsertResult | None) -> None:
        """Free or keep what the request had, now that the insert, if there was one, is over."""
        del caching, result

    @abstractmethod
    def sanity_check(self, nodes: Sequence[TreeNode]) -> None:
        """Raise CacheSanityError where nodes, list and counts disagree."""
