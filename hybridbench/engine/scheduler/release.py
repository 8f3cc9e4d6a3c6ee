"""Release everything a request holds, in one pass over the fields of its ``ReqKv``.

Finish, abort at any stage, retract, refusal and disconnect all end here.  No destructor frees
anything, so a forgotten field stays visible as a leak.
"""

from __future__ import annotations

import numpy as np

from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.req import Req, ReqKv
from hybridbench.engine.scheduler.pools import Pools


class RequestRelease:
    """Frees what requests hold, with one method, called through self, per kind of slot."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def release(self, req: Req, *, is_insert: bool) -> None:
        """Free everything that ``req`` holds; its record is empty afterwards.

        With ``is_insert`` the prefix cache is offered the committed KV and the state; without it,
        the cache gets nothing new.  A session's turn passes what it holds to its session, unless it
        is aborted.  Releasing a request that holds nothing has no effect.
        """
        if req.kv.req_pool_idx is not None:
            self._give_back_kv(req, is_insert=is_insert)
        self._release_prefetch(req)
        # A session that took over the record has taken the row with it.
        if req.kv.req_pool_idx is not None:
            self._give_back_row(req)
        self.return_mamba_slot(req)
        self._unlock(req)
        self._forget(req)

    def retract(self, req: Req) -> None:
        """Free everything that a request holds, without caching it; it will be prefilled again.

        KV is freed from ``cache_protected_len`` on, which is a page border.  Freeing must not start
        at the end of the prefix, which may lie inside a page: that page is the request's own.
        """
        self.release(req, is_insert=False)

    def free_draft_tail(self, req: Req) -> None:
        """Free the pages after the last accepted token, if there are any.

        The request keeps the rest of that token's page and fills it with its next tokens.
        """
        kv, pools = req.kv, self._pools
        start = ceil_align(kv.kv_committed_len, pools.page_size)
        end, kv.kv_allocated_len = kv.kv_allocated_len, kv.kv_committed_len
        if start < end:
            tail = pools.req_to_token_pool.req_to_token[kv.row, start:end]
            pools.token_to_kv_pool_allocator.free(tail.astype(np.int64))

    def return_mamba_slot(self, req: Req) -> None:
        """Free the request's own state slot unless the tree has taken it over."""
        rows = self._pools.hybrid_rows
        if rows is not None and req.kv.mamba_pool_idx is not None:
            rows.free_mamba_cache(req)

    def _give_back_kv(self, req: Req, *, is_insert: bool) -> None:
        """Let the cache take or free the KV and the state, and unlock the prefix.

        The cache also frees positions allocated for a step that never ran.  Only the cache can free
        these: they may share their first page with committed positions.
        """
        self._pools.cache_finished_req(req, is_insert=is_insert)
        req.kv.lock_receipt = None

    def _give_back_row(self, req: Req) -> None:
        self._pools.req_to_token_pool.free(req)

    def _release_prefetch(self, req: Req) -> None:
        """End a waiting request's prefetch from storage."""
        storage_tier = self._pools.storage_tier
        if storage_tier is not None:
            storage_tier.release_aborted_request(req.arrival)

    def _unlock(self, req: Req) -> None:
        """Release the lock of a request that was admitted but never got a row."""
        kv = req.kv
        if kv.is_locked and kv.last_node is not None:
            self._pools.tree_cache.dec_lock_ref(kv.last_node, kv.lock_receipt)
        kv.lock_receipt = None

    def _forget(self, req: Req) -> None:
        """Reset the record, since leftover values would look like held slots.

        Slots that were not freed stay in the record, so that a leaked slot can be traced to its
        holder.
        """
        req.kv = ReqKv(
            req_pool_idx=req.kv.req_pool_idx,
            mamba_pool_idx=req.kv.mamba_pool_idx,
            mamba_ping_pong_track_buffer=req.kv.mamba_ping_pong_track_buffer,
        )
        req.forget_match()
