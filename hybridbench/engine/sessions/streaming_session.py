"""Sessions around any prefix cache: the cache serves a first turn, later ones resume from a slot.

How a turn ends, and what becomes of what its session holds:

    finished                the slot takes over the request's record; nothing goes to the tree
    retracted               the same; the turn resumes from there when it is admitted again
    refused after a match   the slot gets its record back
    rejected on submission  (too long, for example) the slot is not touched
    aborted while queued    the slot is not touched, or released if a retracted turn has grown it
    aborted in the first turn, in a later one, or between chunks
                            everything is freed and the slot is removed; the session keeps the
                            tokens, and the next turn computes them again
    closed, timed out       everything is freed

Source: SGLang's StreamingSession.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hybridbench.engine.cache.base import (
    BasePrefixCache,
    CacheableReq,
    MatchPrefixParams,
    MatchResult,
)
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import REQ, SESSION, Owner
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool, track_buffer_owner
from hybridbench.engine.req import Req, ReqKv
from hybridbench.engine.sessions.around_cache import CacheAround
from hybridbench.engine.sessions.session_slot import SessionSlot


@dataclass(slots=True)
class SessionEvents:
    """Counts of slot events since the cache was built."""

    saves: int = 0  # a finished or retracted turn left its record
    restores: int = 0  # a turn matched its slot, even if it was refused afterwards
    tail_frees: int = 0  # a turn resumed before the end of what its session held
    tail_tokens: int = 0  # tokens freed by tail_frees
    overshoot_tokens: int = 0  # tokens freed past the answer of a turn that ended
    releases: int = 0


class StreamingSession(CacheAround):
    """A prefix cache that keeps each session's KV and state from turn to turn.

    Requests without a session go to ``inner``, and so does a session's first turn until it ends.
    """

    def __init__(self, inner: BasePrefixCache) -> None:
        super().__init__(inner)
        # In the order of their last save, oldest first.
        self.slots: dict[str, SessionSlot] = {}
        self.session_events = SessionEvents()

    # Turns.

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        slot = self.find_active_slot(params.req)
        if slot is not None and self._is_behind(slot, params.key):
            self.release_session(slot.session_id)
            slot = None
        if slot is None:
            return self.inner.match_prefix(params)
        assert isinstance(params.req, Req)
        return self._resume(slot, params.req, params.key)

    def find_active_slot(self, req: CacheableReq | None) -> SessionSlot | None:
        """Return the slot that a match of ``req`` resumes from; None if ``inner`` handles it."""
        session = req.session if isinstance(req, Req) else None
        return None if session is None else self.slots.get(session.session_id)

    def cache_unfinished_req(self, req: CacheableReq, chunked: bool = False) -> None:
        """Share a first turn's prompt through the inner cache; a later turn shares nothing."""
        if self.find_active_slot(req) is None:
            self.inner.cache_unfinished_req(req, chunked)
        else:
            req.kv.prefix_indices = self._row(req, 0, req.kv.kv_committed_len)

    def cache_finished_req(self, req: CacheableReq, is_insert: bool = True) -> None:
        """End or retract a turn: the slot takes over its record, including row and lock.

        If the turn was aborted, or is a first one that has computed nothing itself, everything is
        freed instead; the caller then frees the row, as for any request.
        """
        if not isinstance(req, Req) or req.session is None:
            self.inner.cache_finished_req(req, is_insert)
            return
        session_id = req.session.session_id
        slot = self.slots.pop(session_id, None)
        if req.to_abort is not None or (slot is None and req.kv.uncached_len == 0):
            self._give_up(req)
            return
        self._trim_overshoot(req)
        slot = slot or SessionSlot(session_id)
        slot.save_from_req(req)
        self._hand_over(slot.kv, REQ, SESSION)
        self.slots[session_id] = slot
        self.session_events.saves += 1

    def take_back(self, req: Req) -> bool:
        """Return a refused turn's record to its session.  False if it was not resumed."""
        slot = self.find_active_slot(req)
        if slot is None or slot.borrower is not req:
            return False
        slot.take_back()
        self._hand_over(slot.kv, REQ, SESSION)
        return True

    def release_session(self, session_id: str) -> None:
        """Free everything that the session's slot holds; no effect if it has no slot.

        The record tells the tree's part from the session's own: ``last_node`` with its lock
        receipt, and ``cache_protected_len``.  Matching the prompt again would be wrong.  Other
        requests may have split the locked node since, or extended the tree's path.  The match would
        then end at a node whose lock is not the session's, and at a length that frees KV twice or
        not at all.  A split keeps the record valid: the locked node stays the lower half, and the
        upper half inherits the lock.

        Raises:
            AssertionError: a request holds the record.
        """
        slot = self.slots.pop(session_id, None)
        if slot is None:
            return
        assert slot.borrower is None, f"{slot.rid} is released under a turn"
        # Free the KV first, because the row lists it.
        self._free_slot_kv(slot)
        self._free_slot_mamba(slot)
        self._free_slot_row(slot)
        self._unlock_slot(slot)
        slot.kv = ReqKv()
        self.session_events.releases += 1

    def evict_session(self) -> bool:
        """Release the slot that has been idle longest; False if there is none.

        Its session stays open, and its next turn recomputes everything.  This is the last resort
        when idle sessions hold what requests need; upstream does not have it (sglang#27024).
        """
        idle = next((slot for slot in self.slots.values() if slot.borrower is None), None)
        if idle is None:
            return False
        self.release_session(idle.session_id)
        return True

    # What sessions hold.

    def cached_len(self, session_id: str) -> int:
        """Return how many tokens' KV the session's slot holds or locks; 0 without a slot."""
        slot = self.slots.get(session_id)
        return 0 if slot is None else slot.kv.kv_committed_len

    def idle_slots(self) -> Iterator[SessionSlot]:
        """Return the slots whose record is not lent to a request."""
        return (slot for slot in self.slots.values() if slot.borrower is None)

    def any_holding_kv(self) -> bool:
        """Return whether any session holds KV, rows, states or locks, including lent ones."""
        return bool(self.slots)

    def session_held_tokens(self, active_pool_idxs: set[int] | None = None) -> int:
        page_size = self.page_size
        return sum(kv.held_len(page_size) for kv in self._held(active_pool_idxs))

    def session_held_swa_tokens(self, active_pool_idxs: set[int] | None = None) -> int:
        if not self.supports_swa():
            return 0
        page_size = self.page_size
        return sum(kv.swa_held_len(page_size) for kv in self._held(active_pool_idxs))

    def session_held_mamba_slots(self, active_pool_idxs: set[int] | None = None) -> int:
        return sum(kv.state_slots_held for kv in self._held(active_pool_idxs))

    def session_held_req_count(self, active_pool_idxs: set[int] | None = None) -> int:
        return sum(kv.req_pool_idx is not None for kv in self._held(active_pool_idxs))

    def _held(self, active_pool_idxs: set[int] | None) -> Iterable[ReqKv]:
        """Return the records of all slots whose row no admitted request counts already."""
        records = [slot.kv for slot in self.slots.values()]
        if not active_pool_idxs:
            return records
        return [kv for kv in records if kv.req_pool_idx not in active_pool_idxs]

    # Resuming.

    def _resume(self, slot: SessionSlot, req: Req, key: RadixKey) -> MatchResult:
        """Lend the slot's record to ``req``, truncated to the prefix that its prompt shares.

        The result's node is the root, where a lock has no effect, because the session already locks
        the tree's part.
        """
        prefix_len = self._prefix_len(slot, key)
        kv = slot.kv
        assert prefix_len >= kv.cache_protected_len, (
            f"{slot.rid} is append-only: {req.rid} begins with {prefix_len} of the "
            f"{kv.cache_protected_len} tokens that the tree holds for it"
        )
        # Upstream lowers this to the prefix, which would claim window KV that was freed.
        assert kv.swa_evicted_seqlen <= prefix_len, (
            f"{slot.rid}: {req.rid} begins with {prefix_len} tokens, the window has left "
            f"{kv.swa_evicted_seqlen} behind"
        )
        slot.restore_to_req(req)
        self._hand_over(kv, SESSION, REQ)
        self._note_tail(req.kv, prefix_len)
        self._free_tail(slot, prefix_len)
        req.kv.kv_committed_len = req.kv.kv_allocated_len = prefix_len
        self.session_events.restores += 1
        indices = self._row(req, 0, prefix_len)
        root = self.inner.root_node
        return MatchResult(indices, root, root, None, kv.cache_protected_len)

    def _is_behind(self, slot: SessionSlot, key: RadixKey) -> bool:
        """Return whether ``key`` ends before the slot's state, which cannot be rolled back.

        This happens after a turn was retracted with its prefill in flight, for example by
        ``pause_generation("retract")``: the state includes the last token, which must be computed
        again for its logits.  The turn then recomputes everything.
        """
        return slot.kv.mamba_pool_idx is not None and len(key) < slot.kv.kv_committed_len

    def _prefix_len(self, slot: SessionSlot, key: RadixKey) -> int:
        """Return how many tokens of ``key`` need not be computed again.

        The key excludes the token that must be computed for its logits.
        """
        return min(slot.kv.kv_committed_len, len(key))

    def _free_tail(self, slot: SessionSlot, prefix_len: int) -> None:
        """Free [prefix_len, kv_allocated_len), whose indices the next prefill overwrites.

        Launched steps that no longer count leave such a tail.  Before sglang#22862 its indices were
        overwritten and lost.
        """
        self._free_kv_aligned(slot.kv, prefix_len)

    def _note_tail(self, kv: ReqKv, prefix_len: int) -> None:
        """Count the tail about to be freed; a tail within one page frees nothing."""
        end, start = (ceil_align(n, self.page_size) for n in (kv.kv_allocated_len, prefix_len))
        self.session_events.tail_frees += start < end
        self.session_events.tail_tokens += max(0, end - start)

    def _trim_overshoot(self, req: Req) -> None:
        """Free the positions past the answer, which were reserved for draft tokens."""
        kv, target = req.kv, len(req.origin_input_ids) + len(req.output_ids)
        if kv.kv_allocated_len > target:
            self.session_events.overshoot_tokens += self._free_kv_aligned(kv, target)
            kv.kv_allocated_len = target
            kv.kv_committed_len = min(kv.kv_committed_len, target)

    def _free_kv_aligned(self, kv: ReqKv, start: int) -> int:
        """Free the request's positions in ``kv`` from ``start`` on; return how many were freed."""
        # Round up: the allocator frees whole pages, and the first page still holds kept tokens.
        start = ceil_align(start, self.page_size)
        if start >= kv.kv_allocated_len:
            return 0
        tail = self._indices(kv.row, start, kv.kv_allocated_len)
        self.token_to_kv_pool_allocator.free(tail, REQ)
        return len(tail)

    # Freeing.

    def _give_up(self, req: Req) -> None:
        """Free everything that the turn and the session hold; the tree gets nothing new."""
        self.inner.cache_finished_req(req, is_insert=False)

    def _free_slot_kv(self, slot: SessionSlot) -> None:
        kv = slot.kv
        if kv.cache_protected_len < kv.kv_allocated_len:
            own = self._indices(kv.row, kv.cache_protected_len, kv.kv_allocated_len)
            self.token_to_kv_pool_allocator.free(own, SESSION)

    def _free_slot_mamba(self, slot: SessionSlot) -> None:
        """Free the states that the session took over from its last request (sglang#23496)."""
        rows = self.req_to_token_pool
        if isinstance(rows, HybridReqToTokenPool) and slot.kv.mamba_pool_idx is not None:
            rows.free_mamba_cache(slot, owner=SESSION)

    def _free_slot_row(self, slot: SessionSlot) -> None:
        self.req_to_token_pool.free(slot, owner=SESSION)

    def _unlock_slot(self, slot: SessionSlot) -> None:
        """Release the lock that the first turn took and the session has held since."""
        kv = slot.kv
        if kv.is_locked and kv.last_node is not None:
            self.inner.dec_lock_ref(kv.last_node, kv.lock_receipt)

    def _hand_over(self, kv: ReqKv, giver: Owner, taker: Owner) -> None:
        """Transfer everything in ``kv`` in the ledgers."""
        rows = self.req_to_token_pool
        rows.transfer(kv.row, giver, taker)
        if isinstance(rows, HybridReqToTokenPool) and kv.mamba_pool_idx is not None:
            rows.mamba_allocator.transfer(kv.mamba_pool_idx, giver, taker)
            rows.mamba_allocator.transfer(
                kv.track_slots, track_buffer_owner(giver), track_buffer_owner(taker)
            )
        if kv.cache_protected_len < kv.kv_allocated_len:
            own = self._indices(kv.row, kv.cache_protected_len, kv.kv_allocated_len)
            self.token_to_kv_pool_allocator.transfer(own, giver, taker)

    def _row(self, req: CacheableReq, start: int, end: int) -> IntArray:
        assert req.kv.req_pool_idx is not None, f"request {req.rid} has no row"
        return self._indices(req.kv.req_pool_idx, start, end)

    def _indices(self, row: int, start: int, end: int) -> IntArray:
        """Return the KV indices of a row's positions, as a new array."""
        return self.req_to_token_pool.req_to_token[row, start:end].astype(np.int64)
