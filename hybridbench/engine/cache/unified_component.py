"""What a unified tree asks of a component: its part of a match, an insert, a lock, an eviction.

KV is the base of every unified tree and no component of this kind: a node lives as long as it has
KV.  What else a node may have, and may lose before its KV goes, is a component.

Source: the TreeComponent of SGLang's UnifiedRadixCache, whose names the methods have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hybridbench.engine.cache.base import (
    BasePrefixCache,
    CacheableReq,
    EvictParams,
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

    Attributes:
        evictable_size, protected_size: values without and with a lock.
    """

    evictable_size: int
    protected_size: int

    @abstractmethod
    def reset(self) -> None:
        """Forget all nodes, which are dismantled after this."""

    @abstractmethod
    def match_end(self, path: Sequence[TreeNode], end: int) -> int:
        """How many of the first ``end`` nodes of a path a match may have at most."""

    @abstractmethod
    def match_result(self, result: MatchResult, walked_len: int) -> MatchResult:
        """``result`` with what this component has to say of a walk over ``walked_len`` tokens."""

    @abstractmethod
    def finalize_match_result(
        self, tree: BasePrefixCache, req: CacheableReq, node: TreeNode
    ) -> bool:
        """Give a request that hit ``node`` what it needs of it; False, and no hit, if it cannot."""

    @abstractmethod
    def touch(self, path: Sequence[TreeNode]) -> None:
        """The nodes of a path, from the top, were used just now; the lowest is the youngest."""

    @abstractmethod
    def check_insert(self, params: InsertParams) -> None:
        """Raise ValueError if these values cannot belong to this key."""

    @abstractmethod
    def commit_insert_component_data(self, node: TreeNode, params: InsertParams) -> bool:
        """Take over what ``params`` bring for the node where the key ends; whether it was taken."""

    @abstractmethod
    def acquire_component_lock(self, node: TreeNode) -> bool:
        """Lock the value of a node; False if it has none."""

    @abstractmethod
    def release_component_lock(self, node: TreeNode) -> None:
        """Undo one ``acquire_component_lock`` that locked something."""

    @abstractmethod
    def drive_eviction(self, params: EvictParams, evicted: Evicted) -> Iterator[TreeNode]:
        """Victims, oldest first, until enough is free; each goes before the next is asked for."""

    @abstractmethod
    def evict_component(self, node: TreeNode, evicted: Evicted) -> None:
        """Free the value of a node, if it has one."""

    @abstractmethod
    def cacheable_len(self, req: CacheableReq) -> int:
        """Tokens of ``req`` that this component can cache now."""

    @abstractmethod
    def prepare_for_caching_req(self, tree: BasePrefixCache, caching: CachingReq) -> bool:
        """Complete the parameters of the insert; False, and nothing taken, if that cannot be."""

    @abstractmethod
    def cleanup_after_caching_req(self, caching: CachingReq, result: InsertResult | None) -> None:
        """Free or keep what the request had, now that the insert, if there was one, is over."""

    @abstractmethod
    def sanity_check(self, nodes: Sequence[TreeNode]) -> None:
        """Raise CacheSanityError where nodes, list and counts disagree."""
