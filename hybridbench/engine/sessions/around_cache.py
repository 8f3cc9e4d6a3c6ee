"""A prefix cache that wraps another and forwards every call."""

from __future__ import annotations

from collections.abc import Iterator

from hybridbench.engine.cache.base import (
    BasePrefixCache,
    CacheableReq,
    DecLockRefParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
    TreeSlots,
)
from hybridbench.engine.cache.kv_events import KvEvent
from hybridbench.engine.cache.tree_node import TreeNode


class CacheAround(BasePrefixCache):
    """Forwards the whole interface to ``inner``; subclasses override what they change.

    Every method is written out, and a test checks that none is missing: an inherited default would
    silently answer for an empty cache.
    """

    def __init__(self, inner: BasePrefixCache) -> None:
        self.inner = inner
        self.req_to_token_pool = inner.req_to_token_pool
        self.token_to_kv_pool_allocator = inner.token_to_kv_pool_allocator
        self.page_size = inner.page_size
        self.disable = inner.disable
        self.device = inner.device
        self.events = inner.events
        self.kv_events = inner.kv_events

    @property
    def root_node(self) -> TreeNode:  # type: ignore[override]
        """The root of ``inner``; a flush replaces it, so do not keep a reference."""
        return self.inner.root_node

    def reset(self) -> None:
        self.inner.reset()

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        return self.inner.match_prefix(params)

    def insert(self, params: InsertParams) -> InsertResult:
        return self.inner.insert(params)

    def cache_finished_req(self, req: CacheableReq, is_insert: bool = True) -> None:
        self.inner.cache_finished_req(req, is_insert)

    def cache_unfinished_req(self, req: CacheableReq, chunked: bool = False) -> None:
        self.inner.cache_unfinished_req(req, chunked)

    def evict(self, params: EvictParams) -> EvictResult:
        return self.inner.evict(params)

    def inc_lock_ref(self, node: TreeNode) -> IncLockRefResult:
        return self.inner.inc_lock_ref(node)

    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        return self.inner.dec_lock_ref(node, params)

    def dec_swa_lock_only(self, node: TreeNode, receipt: DecLockRefParams) -> DecLockRefParams:
        return self.inner.dec_swa_lock_only(node, receipt)

    def tree_slots(self) -> TreeSlots:
        return self.inner.tree_slots()

    def iter_nodes(self) -> Iterator[TreeNode]:
        return self.inner.iter_nodes()

    def sanity_check(self) -> None:
        self.inner.sanity_check()

    def take_events(self) -> list[KvEvent]:
        return self.inner.take_events()

    def node_count(self) -> int:
        return self.inner.node_count()

    def live_node_count(self) -> int:
        return self.inner.live_node_count()

    def evictable_size(self) -> int:
        return self.inner.evictable_size()

    def protected_size(self) -> int:
        return self.inner.protected_size()

    def mamba_evictable_size(self) -> int:
        return self.inner.mamba_evictable_size()

    def mamba_protected_size(self) -> int:
        return self.inner.mamba_protected_size()

    def swa_evictable_size(self) -> int:
        return self.inner.swa_evictable_size()

    def swa_protected_size(self) -> int:
        return self.inner.swa_protected_size()

    def session_held_tokens(self, active_pool_idxs: set[int] | None = None) -> int:
        return self.inner.session_held_tokens(active_pool_idxs)

    def session_held_swa_tokens(self, active_pool_idxs: set[int] | None = None) -> int:
        return self.inner.session_held_swa_tokens(active_pool_idxs)

    def session_held_mamba_slots(self, active_pool_idxs: set[int] | None = None) -> int:
        return self.inner.session_held_mamba_slots(active_pool_idxs)

    def session_held_req_count(self, active_pool_idxs: set[int] | None = None) -> int:
        return self.inner.session_held_req_count(active_pool_idxs)

    def supports_mamba(self) -> bool:
        return self.inner.supports_mamba()

    def supports_swa(self) -> bool:
        return self.inner.supports_swa()
