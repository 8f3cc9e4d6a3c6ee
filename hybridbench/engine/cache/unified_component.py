"""The interface of a unified tree's components: their part of match, insert, lock and eviction.

KV is the base of every unified tree and not a component: a node lives as long as it has
KV.  Anything else that a node may have, and may lose before its KV, is a component.

Source, also of the method names: TreeComponent of SGLang's UnifiedRadixCache.
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
)
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.indices import IntArray


@dataclass(slots=True)
class Evicted:
    """The result of one eviction so far; ``kv`` is freed when it ends."""

    tokens: int = 0
    states: int = 0
    swa_tokens: int = 0
    kv: list[IntArray] = field(default_factory=list)


@dataclass(slots=True)
class CachingReq:
    """A request that hands over what it has computed to the tree.

    Attributes:
        params: what will be inserted; None if the tree gets nothing.
        finished: the request ends, and keeps nothing.
        spare_slot: a slot for a copy of its state, or to replace a saved state that the tree gets;
            allocated before the insert, so that nothing can fail after it.
    """

    req: CacheableReq
    params: InsertParams | None
    finished: bool
    spare_slot: int | None = None


class TreeComponent(ABC):
    """A value, a lock count and a place in an LRU list for each node.

    Methods that are not abstract do nothing by default.

    Attributes:
        name: name of its pool.
        list_ends: number of sentinels in its list.
    """

    name: str
    list_ends: int

    @abstractmethod
    def evictable_size(self) -> int:
        """Amount of the component's pool that unlocked values occupy."""

    @abstractmethod
    def protected_size(self) -> int:
        """Amount of the component's pool that locked values occupy."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all nodes, which are dismantled afterwards."""

    @abstractmethod
    def has_value(self, node: TreeNode) -> bool:
        """Whether the node has a value, and is thus not a tombstone."""

    @abstractmethod
    def match_end(self, path: Sequence[TreeNode], end: int) -> int:
        """The maximum number of the first ``end`` nodes of a path that a match may cover."""

    def finalize_match_result(
        self, tree: BasePrefixCache, req: CacheableReq, node: TreeNode
    ) -> bool:
        """Give a request that hit ``node`` its part; False if that fails, which cancels the hit."""
        del tree, req, node
        return True

    @abstractmethod
    def touch(self, path: Sequence[TreeNode]) -> None:
        """Make the part of a path that was just read the youngest; the lowest node is youngest."""

    @abstractmethod
    def redistribute_on_node_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Update after a split; ``lower`` is the original node, and the younger."""

    def update_on_insert_overlap(
        self,
        path: list[TreeNode],
        value: IntArray,
        params: InsertParams,
        split: Callable[[TreeNode, int], TreeNode],
    ) -> list[TreeNode]:
        """Take the parts of ``value``, the KV of ``path``, that its nodes lack.

        Return the path, after splits.  ``split`` splits a node after the given number of tokens,
        and returns the upper half.
        """
        del value, params, split
        return path

    def leaf_cut(self, prefix_len: int, params: InsertParams) -> int:
        """Where to split new tokens from ``prefix_len`` on; ``prefix_len`` if nowhere."""
        del params
        return prefix_len

    def add_node(self, node: TreeNode, end: int, params: InsertParams) -> None:
        """Add a new node, whose key ends after ``end`` tokens from the root."""
        del node, end, params

    def commit_insert_component_data(self, node: TreeNode, params: InsertParams) -> bool:
        """Take the value in ``params`` for the node at the key's end; False if it is not taken."""
        del node, params
        return False

    @abstractmethod
    def acquire_component_lock(self, node: TreeNode, lock: IncLockRefResult) -> IncLockRefResult:
        """Lock a node's value, if it has one; return ``lock`` with this part of the receipt."""

    def acquire_transfer_lock(self, node: TreeNode, lock: IncLockRefResult) -> IncLockRefResult:
        """Lock for a transfer of this value, or of one below; the value may be missing."""
        return self.acquire_component_lock(node, lock)

    @abstractmethod
    def release_component_lock(self, node: TreeNode, receipt: DecLockRefParams | None) -> None:
        """Undo one ``acquire_component_lock``; without its receipt, release a lock if any."""

    @abstractmethod
    def drive_eviction(self, params: EvictParams, evicted: Evicted) -> Iterator[TreeNode]:
        """Yield victims, oldest first, until enough is free; evict each before taking the next."""

    @abstractmethod
    def evict_component(self, node: TreeNode, evicted: Evicted) -> None:
        """Free the value, if any, of a leaf that is being evicted."""

    @abstractmethod
    def make_tombstone(self, node: TreeNode, evicted: Evicted) -> None:
        """Free the value of a node that stays."""

    @abstractmethod
    def take_loaded(self, node: TreeNode, slots: IntArray, time: int) -> None:
        """Make ``slots``, which the tree owns, the value of a node that had none.

        The node becomes the youngest of its list, as of ``time``.
        """

    @abstractmethod
    def cacheable_len(self, req: CacheableReq) -> int:
        """Number of tokens of ``req`` that this component can cache now."""

    def prepare_for_caching_req(self, tree: BasePrefixCache, caching: CachingReq) -> bool:
        """Complete the parameters of the insert; False, with nothing taken, if it is impossible."""
        del tree, caching
        return True

    def cleanup_after_caching_req(self, caching: CachingReq, result: InsertResult | None) -> None:
        """Free or keep what the request had, after the insert, if there was one."""
        del caching, result

    @abstractmethod
    def sanity_check(self, nodes: Sequence[TreeNode]) -> None:
        """Raise CacheSanityError where nodes, list and counts disagree."""
