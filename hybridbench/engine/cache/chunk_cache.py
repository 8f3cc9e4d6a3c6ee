"""A cache without reuse: every request computes and frees its own KV.

It is the oracle for the others: an engine must produce exactly the same output with any cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hybridbench.engine.cache.base import (
    BasePrefixCache,
    CacheableReq,
    CacheEvents,
    CacheInitParams,
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
    no_indices,
)
from hybridbench.engine.cache.kv_events import KvEventRecorder
from hybridbench.engine.cache.tree_node import TreeNode, empty_root
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator


class ChunkCache(BasePrefixCache):
    """A cache that is always empty; it has a root so that locking needs no special case."""

    def __init__(self, params: CacheInitParams) -> None:
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size = params.page_size
        self.device = params.token_to_kv_pool_allocator.device
        self.disable = True
        self.events = CacheEvents()
        # Nothing is ever stored here, so there are no events.
        self.kv_events = KvEventRecorder(params.enable_kv_cache_events, params.page_size)
        self.root_node = empty_root()

    def reset(self) -> None:
        """Do nothing: there is nothing to forget."""

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        del params
        return MatchResult(no_indices(), self.root_node, self.root_node)

    def insert(self, params: InsertParams) -> InsertResult:
        """Keep nothing: KV and state stay the caller's."""
        return InsertResult(0, 0, mamba_exist=params.mamba_value is not None)

    def cache_finished_req(self, req: CacheableReq, is_insert: bool = True) -> None:
        del is_insert
        assert req.kv.req_pool_idx is not None, f"request {req.rid} has no row"
        start, end = (
            req.kv.cache_protected_len,
            max(req.kv.kv_committed_len, req.kv.kv_allocated_len),
        )
        if start < end:
            row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
            self.token_to_kv_pool_allocator.free(row[start:end].astype(np.int64))
        rows = self.req_to_token_pool
        if req.kv.mamba_pool_idx is not None and isinstance(rows, HybridReqToTokenPool):
            rows.free_mamba_cache(req)
        req.kv.last_node = req.kv.lock_receipt = None

    def cache_unfinished_req(self, req: CacheableReq, chunked: bool = False) -> None:
        """Let the request's next chunk continue from here; no other request can use its KV."""
        del chunked
        assert req.kv.req_pool_idx is not None, f"request {req.rid} has no row"
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        req.kv.prefix_indices = row[: req.kv.kv_committed_len].astype(np.int64)

    def evict(self, params: EvictParams) -> EvictResult:
        del params
        self.events.evict_calls += 1
        return EvictResult()

    def inc_lock_ref(self, node: TreeNode) -> IncLockRefResult:
        del node
        return IncLockRefResult(0)

    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        del node, params
        return DecLockRefResult(0)

    def tree_slots(self) -> TreeSlots:
        return TreeSlots(no_indices(), [], no_indices())

    def iter_nodes(self) -> Iterator[TreeNode]:
        return iter(())

    def live_node_count(self) -> int:
        return 1

    def sanity_check(self) -> None:
        """Do nothing: there is nothing to check."""


class SWAChunkCache(ChunkCache):
    """The same for a model with sliding windows, whose KV is in two pools.

    The scheduler frees the KV that running requests have left behind their windows.
    """

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        allocator = params.token_to_kv_pool_allocator
        if not isinstance(allocator, SWATokenToKVPoolAllocator):
            raise TypeError(f"windows need two pools, not {type(allocator).__name__}")

    def supports_swa(self) -> bool:
        return True
