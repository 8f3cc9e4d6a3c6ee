"""Every way a request lets go of what it holds: one walk over all fields of its ``ReqKv``.

Finish, abort at any stage, retract, refusal and disconnect all end here.  Nothing is freed by a
destructor, so that a field that is forgotten stays visible as a leak.
"""

from __future__ import annotations

import numpy as np

from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.req import Req, ReqKv
from hybridbench.engine.scheduler.pools import Pools


class RequestRelease:
    """Gives back what requests hold; each give-back is its own method, called through self."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def release(self, req: Req, *, is_insert: bool) -> None:
        """Give back all that ``req`` holds; its record is empty afterwards.

        With ``is_insert`` the prefix cache is offered the committed KV and the state; without, it
        gets nothing new.  A request that holds nothing may be released again: nothing happens.
        What a session's turn holds goes to its session, unless the turn is aborted.
        """
        if req.kv.req_pool_idx is not None:
            self._give_back_kv(req, is_insert=is_insert)
        self._release_prefetch(req)
        # A session that took the record over has taken the row with it.
        if req.kv.req_pool_idx is not None:
            self._give_back_row(req)
        self.return_mamba_slot(req)
        self._unlock(req)
        self._forget(req)

    def retract(self, req: Req) -> None:
        """Give back all that a request holds which will be prefilled again; nothing is cached.

        The KV goes from ``cache_protected_len`` on, which is a page border.  Its prefix may end
        inside a page, and must not decide where to begin: that page is the request's own.
        """
        self.release(req, is_insert=False)

    def free_draft_tail(self, req: Req) -> None:
        """Free the pages behind the last token that was right, if there are any.

        What is left of that token's own page stays the request's, and its next tokens fill it.
        """
        kv, pools = req.kv, self._pools
        start = ceil_align(kv.kv_committed_len, pools.page_size)
        end, kv.kv_allocated_len = kv.kv_allocated_len, kv.kv_committed_len
        if start < end:
            tail = pools.req_to_token_pool.req_to_token[kv.row, start:end]
            pools.token_to_kv_pool_allocator.free(tail.astype(np.int64))

    def return_mamba_slot(self, req: Req) -> None:
        """Free the request's own state slot, if the tree did not take it over."""
        rows = self._pools.hybrid_rows
        if rows is not None and req.kv.mamba_pool_idx is not None:
            rows.free_mamba_cache(req)

    def _give_back_kv(self, req: Req, *, is_insert: bool) -> None:
        """Let the cache take or free the KV and the state; it unlocks the prefix too.

        Positions allocated for a step that never ran hold no KV, so the cache frees them.  It alone
        can: they may share their first page with committed ones.
        """
        self._pools.cache_finished_req(req, is_insert=is_insert)
        req.kv.lock_receipt = None

    def _give_back_row(self, req: Req) -> None:
        self._pools.req_to_token_pool.free(req)

    def _release_prefetch(self, req: Req) -> None:
        """End what still comes from the storage for a request that waited."""
        storage_tier = self._pools.storage_tier
        if storage_tier is not None:
            storage_tier.release_aborted_request(req.rid)

    def _unlock(self, req: Req) -> None:
        """Take back the lock of a request that was admitted but never got a row."""
        kv = req.kv
        if kv.is_locked and kv.last_node is not None:
            self._pools.tree_cache.dec_lock_ref(kv.last_node, kv.lock_receipt)
        kv.lock_receipt = None

    def _forget(self, req: Req) -> None:
        """A fresh record: whatever still had a holder's number in it would otherwise look held.

        Slots that are not given back stay in the record, so that the leak keeps its holder.
        """
        req.kv = ReqKv(
            req_pool_idx=req.kv.req_pool_idx,
            mamba_pool_idx=req.kv.mamba_pool_idx,
            mamba_ping_pong_track_buffer=req.kv.mamba_ping_pong_track_buffer,
        )
        req.forget_match()
