"""Check the pools: every slot has exactly one holder, and waiting requests hold nothing.

Each term of a pool's sum comes from the record of the holder that would free the slots, never from
a literal: a hard-coded 0 for sessions once made an idle engine report a leak.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.cache.base import CacheSanityError
from hybridbench.engine.events import EngineEvent
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.engine.req import FinishKind, Req
from hybridbench.engine.scheduler.audit import (
    SHOWN_SLOTS,
    InvariantViolation,
    SlotAudit,
    ViolationKind,
    shown_slots,
)
from hybridbench.engine.scheduler.pool_stats import PoolStats, PoolStatsObserver
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch
from hybridbench.foundation.engine_config import EngineConfig


class InvariantError(RuntimeError):
    """An invariant is violated, and the engine's configuration makes violations fatal."""


class InvariantChecker:
    """Checks invariants between steps; ``check`` is O(requests), ``audit`` walks all slots."""

    def __init__(self, pools: Pools, limits: EngineConfig) -> None:
        self._pools = pools
        self._limits = limits
        self._observer = PoolStatsObserver(pools)
        self._audit = SlotAudit(pools)

    def stats(self, admitted: Sequence[Req], waiting: Sequence[Req]) -> dict[str, PoolStats]:
        """Return each pool's slots by holder; see :class:`PoolStatsObserver`."""
        return self._observer.stats(admitted, waiting)

    def check(
        self,
        admitted: Sequence[Req],
        waiting: Sequence[Req],
        *,
        idle: bool,
        name_missing: bool = True,
    ) -> list[InvariantViolation]:
        """Check that every pool adds up and waiting requests hold nothing.

        With ``idle``, no request may be running.  With ``name_missing``, a wrong sum triggers a
        walk over the pool and the tree to name the slots.
        """
        found: list[InvariantViolation] = []
        for pool, stats in self._account(admitted, waiting).items():
            if stats.residual != 0:
                missing = self.missing_slots(pool, admitted, waiting) if name_missing else ()
                found.append(_residual(pool, stats, missing))
            if stats.waiting_held != 0:
                found.append(self._waiting_held(pool, waiting))
            if idle:
                found += _busy_at_idle(pool, stats, self._pools.sessions.any_holding_kv())
        found += _records_of_waiting(waiting)
        found += self._states_by_map(admitted)
        return found

    def check_step(
        self,
        batch: ScheduleBatch | None,
        waiting: Sequence[Req],
        ended: Sequence[Req],
        passed_over: int,
        began_s: float,
    ) -> list[InvariantViolation]:
        """Check the size of a step that began at ``began_s``, and what it left behind.

        Waiting requests must refer to no tree node, ended ones must hold nothing, and none may wait
        without a reason or too long.  Reads a few attributes per request: cheap enough for every
        step.
        """
        found = [] if batch is None else self._size_of_step(batch)
        found += self._overdue(waiting, began_s)
        found += _passed_over(passed_over)
        found += _records_of_waiting(waiting)
        return found + _records_of_ended(ended)

    def check_tree(self) -> list[InvariantViolation]:
        """Run the cache's own consistency check; O(n log n), so only at checkpoints."""
        try:
            self._pools.tree_cache.sanity_check()
        except CacheSanityError as error:
            return [InvariantViolation(ViolationKind.TREE, "tree", f"sanity check: {error}")]
        return []

    def audit(self, admitted: Sequence[Req], waiting: Sequence[Req]) -> list[InvariantViolation]:
        """Check slot by slot; see :class:`SlotAudit`."""
        return self._audit.audit(admitted, waiting)

    def audit_rows(self, admitted: Sequence[Req]) -> list[InvariantViolation]:
        """Check what requests and sessions read; see :class:`SlotAudit`."""
        return self._audit.audit_rows(admitted)

    def missing_slots(
        self, pool: str, admitted: Sequence[Req], waiting: Sequence[Req]
    ) -> tuple[int, ...]:
        """Return the slots of ``pool`` without a known holder; walks the pool and the tree."""
        return self._audit.missing_slots(pool, admitted, waiting)

    def last_owner(self, pool: str, slot: int) -> str:
        """Return the holder of ``slot`` according to the ledger; for information only."""
        return self._audit.last_owner(pool, slot)

    def _account(self, admitted: Sequence[Req], waiting: Sequence[Req]) -> dict[str, PoolStats]:
        """Return the terms that ``check`` adds up; each must come from its holder."""
        return self._observer.stats(admitted, waiting)

    def _size_of_step(self, batch: ScheduleBatch) -> list[InvariantViolation]:
        """Check that a prefill stays within a step's budget.

        Without chunking, a single prompt may exceed it.
        """
        limits, tokens, count = self._limits, len(batch.forward.input_ids), len(batch.reqs)
        if batch.forward.mode != "extend":
            return []
        name, limit = "chunked_prefill_size", limits.chunked_prefill_size
        if limit is None:
            name, limit = "max_prefill_tokens", limits.max_prefill_tokens
            if count == 1:
                return []
        if tokens <= limit:
            return []
        message = f"a prefill step of {count} request(s) has {tokens} tokens, but {name} is {limit}"
        return [InvariantViolation(ViolationKind.LIMIT, "", message, count=tokens - limit)]

    def _overdue(self, waiting: Sequence[Req], began_s: float) -> list[InvariantViolation]:
        """Check that the step aborted every request that had waited too long when it began."""
        limit_s = self._limits.req_waiting_timeout_s
        if limit_s is None:
            return []
        late = [req for req in waiting if req.to_abort is None and began_s - req.queued_s > limit_s]
        if not late:
            return []
        rids = ", ".join(req.rid for req in late[:SHOWN_SLOTS])
        message = (
            f"{len(late)} request(s) ({rids}) waited longer than req_waiting_timeout, "
            f"{limit_s:g} s, and were not aborted"
        )
        # No count: a request that waits through many steps is one fault.
        return [InvariantViolation(ViolationKind.LIMIT, "", message)]

    def _states_by_map(self, admitted: Sequence[Req]) -> list[InvariantViolation]:
        """Check that the row map gives each request its own state, which no sum can show.

        One gather covers all requests: cheap enough for every step.
        """
        hybrid_rows = self._pools.hybrid_rows
        running = [req for req in admitted if req.kv.req_pool_idx is not None]
        if hybrid_rows is None or not running:
            return []
        mapped: list[int] = hybrid_rows.get_mamba_indices([req.kv.row for req in running]).tolist()
        wrong = [
            f"request {req.rid} holds {req.kv.mamba_pool_idx}, but row {req.kv.row} has {slot}"
            for req, slot in zip(running, mapped, strict=True)
            if slot != req.kv.mamba_pool_idx
        ]
        wrong += [f"slot {slot} is in several rows" for slot in _repeated(mapped)]
        if hybrid_rows.enable_mamba_extra_buffer:
            wrong += _wrong_track_buffers(hybrid_rows, running)
        if not wrong:
            return []
        more = f" and {len(wrong) - SHOWN_SLOTS} more" if len(wrong) > SHOWN_SLOTS else ""
        message = f"mamba pool: wrong states by row: {'; '.join(wrong[:SHOWN_SLOTS])}{more}"
        return [InvariantViolation(ViolationKind.ALIAS, "mamba", message)]

    def _waiting_held(self, pool: str, waiting: Sequence[Req]) -> InvariantViolation:
        holders = [req for req in waiting if self._audit.req_slots(pool, req)]
        slots = tuple(sorted(slot for req in holders for slot in self._audit.req_slots(pool, req)))
        rids = ", ".join(req.rid for req in holders[:SHOWN_SLOTS])
        message = (
            f"{pool} pool: {len(holders)} waiting request(s) ({rids}) hold {len(slots)} "
            f"slot(s) {shown_slots(slots)} between steps"
        )
        return InvariantViolation(ViolationKind.WAITING_HELD, pool, message, slots, len(slots))


def _wrong_track_buffers(rows: HybridReqToTokenPool, running: Sequence[Req]) -> list[str]:
    """Compare the row map of track buffers, which steps use to save states, with the requests."""
    by_row = rows.req_index_to_mamba_ping_pong_track_buffer_mapping
    mapped: list[list[int]] = by_row[[req.kv.row for req in running]].tolist()
    return [
        f"request {req.rid} saves states in {req.kv.mamba_ping_pong_track_buffer}, "
        f"but row {req.kv.row} has {slots}"
        for req, slots in zip(running, mapped, strict=True)
        if slots != (req.kv.mamba_ping_pong_track_buffer or [0] * len(slots))
    ]


def _repeated(slots: Sequence[int]) -> list[int]:
    """Return the slots that occur more than once, except the dump slot, which means "no state"."""
    if len(set(slots)) == len(slots):
        return []
    return sorted(slot for slot in set(slots) if slot and slots.count(slot) > 1)


def _residual(pool: str, stats: PoolStats, missing: tuple[int, ...]) -> InvariantViolation:
    count = stats.residual
    what = f"{count} unaccounted" if count > 0 else f"{-count} counted twice"
    terms = (
        f"available {stats.available} + evictable {stats.evictable} + protected "
        f"{stats.protected} + in flight {stats.in_flight} + sessions {stats.session_held} "
        f"+ waiting {stats.waiting_held} != total {stats.total}"
    )
    named = f"; missing slots {shown_slots(missing)}" if missing else ""
    message = f"{pool} pool: {what}: {terms}{named}"
    return InvariantViolation(ViolationKind.RESIDUAL, pool, message, missing, count)


def _busy_at_idle(pool: str, stats: PoolStats, sessions: bool) -> list[InvariantViolation]:
    """Check that an idle pool has nothing in flight, and no locks unless ``sessions`` hold some.

    The audit checks each of the sessions' locks.
    """
    found = []
    if stats.in_flight:
        message = f"{pool} pool: {stats.in_flight} slot(s) in flight with nothing running"
        kind, count = ViolationKind.IN_FLIGHT_AT_IDLE, stats.in_flight
        found.append(InvariantViolation(kind, pool, message, count=count))
    if stats.protected and not sessions:
        message = f"{pool} pool: {stats.protected} slot(s) of the tree locked with nothing running"
        kind, count = ViolationKind.LOCKED_AT_IDLE, stats.protected
        found.append(InvariantViolation(kind, pool, message, count=count))
    return found


def _records_of_waiting(waiting: Sequence[Req]) -> list[InvariantViolation]:
    """Check that waiting requests do not refer to tree nodes, which would stay alive or locked."""
    rids = [req.rid for req in waiting if req.kv.last_node is not None]
    if not rids:
        return []
    shown = ", ".join(rids[:SHOWN_SLOTS])
    message = f"{len(rids)} waiting request(s) ({shown}) refer to tree nodes"
    # No pool is named, because a reference takes no slot.
    return [InvariantViolation(ViolationKind.WAITING_HELD, "", message, count=len(rids))]


def _passed_over(count: int) -> list[InvariantViolation]:
    """Check that no request was left waiting although nothing refused it."""
    if count <= 0:
        return []
    message = f"{count} waiting request(s) were not admitted although nothing refused them"
    # No count: a request passed over in many steps is one fault.
    return [InvariantViolation(ViolationKind.PASSED_OVER, "", message)]


def _records_of_ended(ended: Sequence[Req]) -> list[InvariantViolation]:
    """Check that requests that ended in this step hold nothing."""
    rids = [
        req.rid
        for req in ended
        if not req.kv.is_empty or req.kv.is_locked or req.session is not None
    ]
    if not rids:
        return []
    shown = ", ".join(rids[:SHOWN_SLOTS])
    message = (
        f"{len(rids)} request(s) that ended ({shown}) still hold slots, tree nodes or their session"
    )
    return [InvariantViolation(ViolationKind.ENDED_HELD, "", message, count=len(rids))]


def malformed_answers(events: Sequence[EngineEvent]) -> list[InvariantViolation]:
    """Check that each answer in ``events`` matches its request's output and ends correctly."""
    faults = [
        f"{event.rid} {fault}"
        for event in events
        if event.req is not None and (fault := _fault_of_answer(event.req, event.output_ids))
    ]
    if not faults:
        return []
    shown = "; ".join(faults[:SHOWN_SLOTS])
    message = f"{len(faults)} answer(s) are not what their requests asked for: {shown}"
    return [InvariantViolation(ViolationKind.ANSWER, "", message, count=len(faults))]


def _fault_of_answer(req: Req, answer: Sequence[int]) -> str:
    """Return what is wrong with the ``answer`` to a finished request; empty if nothing is."""
    if list(answer) != req.output_ids:
        return "has other tokens than the request produced"
    length, limit = len(answer), req.sampling_params.max_new_tokens
    if length > limit:
        return f"has {length} tokens, but max_new_tokens is {limit}"
    first_stop = next((n for n, token in enumerate(answer) if token in req.stop_token_ids), length)
    if first_stop + 1 < length:
        return f"goes on for {length - first_stop - 1} token(s) after a stop token"
    assert req.finished_reason is not None
    if req.finished_reason.kind is FinishKind.LENGTH and length < limit:
        return f"ends for its length after {length} token(s), but max_new_tokens is {limit}"
    if req.finished_reason.kind is FinishKind.STOP and first_stop == length:
        return "ends for a stop token, but has none"
    return ""


def unanswered(rids: Sequence[str]) -> list[InvariantViolation]:
    """Report the front end's entries ``rids`` that remain although the engine has no request."""
    if not rids:
        return []
    count = f"{len(rids):,} request" + "s" * (len(rids) > 1)
    message = f"the front end has entries of {count}, but the engine has no request"
    return [InvariantViolation(ViolationKind.UNANSWERED, "", message, count=len(rids))]
