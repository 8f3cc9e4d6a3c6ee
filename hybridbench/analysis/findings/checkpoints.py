"""Account for slots at idle checkpoints, when no request is in the engine.

Counts are exact, so one checkpoint decides; the samples between checkpoints show which event loses
the slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import msgspec
import numpy as np

from hybridbench.analysis.drivers.idle import idle_driver, idle_hints
from hybridbench.analysis.drivers.rates import rate_per_hour
from hybridbench.analysis.drivers.search import Driver, explained, find_driver
from hybridbench.analysis.drivers.steps import LosingSteps, losing_steps
from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import (
    CHECKPOINTS_NAMED,
    SESSION_HELD,
    pool_count,
    pool_names,
    pool_unit,
    pool_values,
    pool_words,
)
from hybridbench.analysis.findings.words import (
    driver_evidence,
    is_or_are,
    per_event,
    readings,
    times,
)
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.foundation.units import format_duration, format_percent
from hybridbench.records.events import IN_USE, KV_SHARE, Checkpoint, EngineViolation
from hybridbench.records.finding import Basis, Finding, VerdictKind, Words

# If there is no final checkpoint (the worker died), this many last samples must be above zero
# instead.
_TAIL_SAMPLES = 5
_SLOTS_NAMED = 10
# Rises of a gauge between idle points, without a fall.  A gauge may lag: SGLang reports the tokens
# of its last batch for half a minute.  Such readings are in order by chance, once in 5,000 times if
# there are seven after the first, which is low because nothing was sent before.
_RISES_OF_GAUGES = 3
_RISES_WITHOUT_CHANCE = 7
_OPENS, _CLOSES = "session_opens", "session_closes"
# The engine's name for missing slots in its own check.
_VIOLATION = "residual"
# Its name for a tree whose records contradict each other.
_TREE = "tree"
_HOLDERS = {
    "REQ": "a request",
    "TREE": "the prefix tree",
    "SESSION": "a session",
    "TRACK": "a track buffer",
    "HOST": "a transfer",
    "FREE": "free in the ledger",
}


class CauseOfLoss(msgspec.Struct, frozen=True, kw_only=True):
    """One of several causes: its share of the lost slots and of all steps."""

    counter: str
    share: float
    of_steps: float


class Residual(Basis, frozen=True, kw_only=True):
    """Slots of one pool without a holder.

    Attributes:
        at_checkpoints: missing slots at the last idle checkpoints; empty if ``last_samples`` are
            used instead.
        slots: the first missing slots in the engine's last report.
        slots_reported: the number of slots in that report.
        slot_holders: the last holders of ``slots``, if the ledger has them.
        losing_steps: set if no single event is known to lose all of the slots.
        miscounted: whether the engine found a holder for every slot, and its tree inconsistent.
    """

    kind = "residual"
    meaning = "Slots of a pool are neither free nor held by anyone."
    question = "no slot is unaccounted for at an idle checkpoint"
    names_mechanism = True
    from_checkpoints = True

    pool: str
    missing: float
    at_checkpoints: tuple[float, ...] = ()
    last_samples: int | None = None
    slots: tuple[int, ...] | None = None
    slots_reported: int | None = None
    slot_holders: tuple[str, ...] = ()
    losing_steps: tuple[CauseOfLoss, ...] = ()
    miscounted: bool = False

    def words(self, found: Finding) -> Words:
        if self.last_samples is None:
            seen = f"residual at the last checkpoints: {readings(self.at_checkpoints)}"
        else:
            seen = (
                f"residual over the last {self.last_samples:,.0f} samples: at least "
                f"{self.missing:,.0f}"
            )
        why = (
            "every slot has a holder, but the prefix tree counts too few"
            if self.miscounted
            else "neither free nor held by anyone"
        )
        return Words(
            f"{pool_count(self.missing, self.pool)} {is_or_are(self.missing)} missing"
            f"{per_event(found)}: {why}",
            evidence=(
                seen,
                *self._missing_slots(),
                *driver_evidence(found),
                *self._lost_in(),
            ),
        )

    def _missing_slots(self) -> Iterable[str]:
        if not self.slots:
            return
        holders = self.slot_holders
        names = [
            f"{slot:.0f} ({_HOLDERS.get(holders[i], holders[i])})"
            if i < len(holders)
            else f"{slot:.0f}"
            for i, slot in enumerate(self.slots)
        ]
        left = (self.slots_reported or 0) - len(names)
        more = f" and {left:,.0f} more" if left > 0 else ""
        known = ", each with its last holder in the allocator's ledger" if holders else ""
        yield f"missing {self.pool} slots{known}: {', '.join(names)}{more}"

    def _lost_in(self) -> Iterable[str]:
        for part in self.losing_steps:
            of_steps = format_percent(part.of_steps, 1)
            yield (
                f"{format_percent(part.share)} of the slots were lost in steps with "
                f"{part.counter}, which are {of_steps} of all steps"
            )

    def advice(self, found: Finding) -> str:
        slots = pool_unit(self.pool)
        if self.miscounted:
            return (
                "Start with the finding engine-tree, which says which count of the prefix tree is "
                f"wrong: {slots} that the tree does not count cannot be evicted for others."
            )
        appears = "verdict.json names the checkpoint at which the loss appears."
        if found.driver is not None:
            return (
                f"Start with the {singular(found.driver)} handler: it acquires {slots} and never "
                f"releases them; {appears}"
            )
        return (
            "Check every exit path of a request (finish, abort, retract, refusal) for a missing "
            f"release of {slots}; {appears}"
        )


class NegativeResidual(Basis, frozen=True, kw_only=True):
    """More slots than the pool has: ``surplus`` slots are counted twice, as free or as held."""

    kind = "negative-residual"
    meaning = (
        "At an idle checkpoint, free and held slots add up to more than the pool has: a slot was "
        "freed twice or has two holders."
    )
    leads_to = "INVARIANT"
    from_checkpoints = True

    pool: str
    surplus: float
    at_checkpoints: tuple[float, ...]

    def words(self, found: Finding) -> Words:
        have = "has" if self.surplus == 1 else "have"
        return Words(
            f"{pool_count(self.surplus, self.pool)} {have} more than one holder while idle"
            f"{per_event(found)}",
            cause="a slot was freed twice, or is counted by two holders",
            evidence=(
                f"residual at the last checkpoints: {readings(self.at_checkpoints)}",
                *driver_evidence(found),
            ),
        )


class HeldAtIdle(Basis, frozen=True, kw_only=True):
    """Slots of requests that have ended, or of transfers whose completion went unnoticed."""

    kind = "held-at-idle"
    meaning = "Slots are charged to requests that no longer exist."
    question = "no request holds slots while the engine is idle"
    from_checkpoints = True

    pool: str
    held: float

    def words(self, found: Finding) -> Words:
        holders = "requests that no longer exist"
        if self.pool.startswith("host_"):
            holders = "transfers that were never acknowledged"
        return Words(
            f"{pool_count(self.held, self.pool)} {is_or_are(self.held)} held by {holders}"
            f"{per_event(found)}",
            evidence=(
                f"in flight at the checkpoint at {format_duration(found.since_s or 0.0)}",
                *driver_evidence(found),
            ),
        )

    def advice(self, found: Finding) -> str:
        return (
            "Look for a request or a transfer that was removed from every list without being "
            f"released: nothing else frees its {pool_unit(self.pool)}."
        )


class HeldByClosedSessions(Basis, frozen=True, kw_only=True):
    """Sessions that hold slots at the last idle checkpoint although they were closed.

    Attributes:
        closed: number of sessions that hold a row, less those that are open.
        open: number of sessions that were opened and not closed.
        held: slots that all sessions hold, by pool; only if none is open.
    """

    kind = "held-by-closed-sessions"
    meaning = "Sessions that were closed still hold their slots."
    question = "a closed session holds nothing"
    names_mechanism = True
    from_checkpoints = True
    advised = (
        "Check every way in which a session ends (close, time-out, close during a turn) for a "
        "missing release of its slot."
    )

    closed: float
    open: float
    at_checkpoints: tuple[float, ...]
    held: Mapping[str, float] = {}

    def words(self, found: Finding) -> Words:
        slots = ", ".join(pool_count(n, pool) for pool, n in self.held.items())
        hold = "holds" if self.closed == 1 else "hold"
        return Words(
            f"{times(self.closed, 'closed session')} still {hold} slots{per_event(found)}",
            cause="closing a session does not release what it holds",
            evidence=(
                f"closed sessions with a row at the last checkpoints: "
                f"{readings(self.at_checkpoints)}; {self.open:,.0f} {is_or_are(self.open)} still "
                "open",
                *((f"{'it' if self.closed == 1 else 'they'} {hold} {slots}",) if slots else ()),
                *driver_evidence(found),
            ),
        )


class InUseAtIdle(Basis, frozen=True, kw_only=True):
    """Slots that a server's metrics page reports as in use at idle points.

    A single gauge reading is not enough: slots that a server keeps for itself, or reports late, are
    not lost.

    Attributes:
        may_lag: whether the readings may be what the last requests used, in rising order by chance.
    """

    kind = "in-use-at-idle"
    meaning = (
        "The server's own metrics report pool slots as in use that no request or session holds."
    )
    leads_to = (
        "LEAK; INCONCLUSIVE if the metrics give only a share, or if a gauge rose fewer than "
        f"{_RISES_WITHOUT_CHANCE} times and not by exactly as much for each event"
    )
    question = "no slots stay in use at idle points"
    names_mechanism = True
    from_checkpoints = True
    cause: ClassVar[str] = (
        "they are neither free nor left in the prefix cache, and no request holds them"
    )

    pool: str
    in_use: float
    at_checkpoints: tuple[float, ...]
    may_lag: bool = False

    def words(self, found: Finding) -> Words:
        late = "either the server reports those of its last requests for too long, or "
        return Words(
            f"{self._amount()} in use with no request in the server{per_event(found)}",
            cause=f"{late * self.may_lag}{self.cause}",
            evidence=(
                f"in use at the last idle points: {self._readings()}",
                *driver_evidence(found),
            ),
        )

    def _amount(self) -> str:
        return f"{pool_count(self.in_use, self.pool)} {is_or_are(self.in_use)}"

    def _readings(self) -> str:
        return readings(self.at_checkpoints)

    def advice(self, found: Finding) -> str:
        slots = pool_unit(self.pool)
        if found.driver is not None:
            return (
                f"Find where a {singular(found.driver)} takes {slots}, and what should free them."
            )
        return f"Repeat the run with traffic of one kind, to see which kind leaves {slots} behind."


class ShareInUseAtIdle(InUseAtIdle, frozen=True, kw_only=True):
    """The same for a page that gives only the share of the KV cache in use, in millionths.

    It is not known whether the share includes the prefix cache, so a rise is not called a leak.
    """

    decided_by_length = False
    cause = "either pages are lost, or the server counts its prefix cache as in use"
    advised = "Run again without the prefix cache; if the share still rises, pages are lost."

    def _amount(self) -> str:
        return f"{pool_count(self.in_use, self.pool)} is"

    def _readings(self) -> str:
        return ", ".join(format_percent(1e-6 * value, 2) for value in self.at_checkpoints)


def checkpoint_findings(facts: Facts) -> list[Finding]:
    """Return findings about missing slots, surplus slots, and slots without a holder."""
    findings: list[Finding] = []
    for pool in pool_names(facts.record):
        findings.extend(_residuals(facts, pool))
        findings.extend(_orphans(facts, pool))
        findings.extend(_in_use(facts, pool))
    findings.extend(_closed_sessions(facts))
    return findings


def _residuals(facts: Facts, pool: str) -> Iterable[Finding]:
    at_idle = [(at.t_s, at.pool(pool, "residual")) for at in facts.idle]
    t, sampled = pool_values(facts.record, pool, "residual")
    if any(value < 0 for _, value in at_idle):
        yield _surplus(facts, pool, at_idle)
    basis = _missing(pool, at_idle, t, sampled)
    if basis is None:
        return
    seen = facts.idle_readings(lambda at: at.pool(pool, "residual"))
    losing = losing_steps(facts.record, pool, facts.counters)
    driver = idle_driver(facts, f"pool.{pool}.residual", seen, losing=losing)
    unit = pool_unit(pool)
    since = next((when for when, value in at_idle if value > 0), float(t[-1]) if t.size else 0.0)
    lost = np.flatnonzero(sampled > 0)
    since = min(since, float(t[lost[0]])) if lost.size else since
    hourly = rate_per_hour(t, sampled, unit)
    basis = msgspec.structs.replace(
        _with_slots(basis, facts.record), losing_steps=_losing_steps(losing, driver)
    )
    found = Finding(
        basis,
        VerdictKind.LEAK,
        pool_words(pool),
        rates=() if hourly is None else (hourly,),
        since_s=since,
    )
    yield explained(found, driver, unit)


def _with_slots(basis: Residual, record: RunRecord) -> Residual:
    """Add the slots and their last holders from the engine's last report to ``basis``."""
    reports = [
        found
        for found in record.all_events(EngineViolation)
        if found.kind == _VIOLATION and found.pool == basis.pool
    ]
    if not reports:
        return basis
    last = reports[-1]
    # At a checkpoint the engine walks the pool and checks its tree.
    inconsistent = {
        found.checkpoint for found in record.all_events(EngineViolation) if found.kind == _TREE
    }
    return msgspec.structs.replace(
        basis,
        miscounted=not last.slots
        and last.checkpoint is not None
        and last.checkpoint in inconsistent,
        slots=last.slots[:_SLOTS_NAMED],
        slots_reported=max(len(last.slots), int(last.count)),
        slot_holders=last.owners[:_SLOTS_NAMED],
    )


def _surplus(facts: Facts, pool: str, at_idle: Sequence[tuple[float, float]]) -> Finding:
    """Return the finding that a pool has more slots than its size."""
    negative = [(when, value) for when, value in at_idle if value < 0]
    seen = facts.idle_readings(lambda at: -at.pool(pool, "residual"))
    t, sampled = pool_values(facts.record, pool, "residual")
    hints = idle_hints(facts, seen)
    driver = find_driver(t, -sampled, facts.counters, hints)
    unit = pool_unit(pool)
    basis = NegativeResidual(
        pool=pool,
        surplus=-negative[-1][1],  # the pool may add up again at the last checkpoint
        at_checkpoints=tuple(value for _, value in at_idle[-CHECKPOINTS_NAMED:]),
    )
    found = Finding(basis, VerdictKind.INVARIANT, pool_words(pool), since_s=negative[0][0])
    return explained(found, driver, unit)


def _missing(
    pool: str, at_idle: list[tuple[float, float]], t: FloatArray, sampled: FloatArray
) -> Residual | None:
    """Return the slots that were never freed, with the readings that show it."""
    last_idle = at_idle[-1][0] if at_idle else -np.inf
    if at_idle and at_idle[-1][1] > 0:
        last = tuple(value for _, value in at_idle[-CHECKPOINTS_NAMED:])
        return Residual(pool=pool, missing=last[-1], at_checkpoints=last)
    after = sampled[t > last_idle]
    if at_idle and after.size < 2 * _TAIL_SAMPLES:
        return None
    tail = after[-_TAIL_SAMPLES:]
    # Without an idle checkpoint, at least the minimum of the last samples was never freed.
    if tail.size == _TAIL_SAMPLES and float(tail.min()) > 0:
        return Residual(pool=pool, missing=float(tail.min()), last_samples=_TAIL_SAMPLES)
    return None


def _orphans(facts: Facts, pool: str) -> Iterable[Finding]:
    """Yield a finding about slots charged to requests when there is no request."""
    held = facts.idle[-1].pool(pool, "in_flight") if facts.idle else 0.0
    if held <= 0:
        return
    seen = facts.idle_readings(lambda at: at.pool(pool, "in_flight"))
    driver = idle_driver(facts, f"pool.{pool}.in_flight", seen)
    unit = pool_unit(pool)
    found = Finding(
        HeldAtIdle(pool=pool, held=held),
        VerdictKind.LEAK,
        pool_words(pool),
        since_s=facts.idle[-1].t_s,
    )
    yield explained(found, driver, unit)


def _closed_sessions(facts: Facts) -> Iterable[Finding]:
    """Yield a finding if more sessions hold rows than are open."""
    seen = facts.idle_readings(_closed_with_rows)
    if not seen or seen[-1].value <= 0:
        return
    t, rows = pool_values(facts.record, "req", SESSION_HELD)
    counters = facts.counters
    counts = [
        counters.at(name, t) if name in counters.series else np.zeros(t.size)
        for name in (_OPENS, _CLOSES)
    ]
    hints = idle_hints(facts, seen, (_CLOSES,))
    driver = find_driver(t, rows - counts[0] + counts[1], counters, hints)
    last = facts.idle[-1]
    still_open = _open_sessions(last)
    held = {pool: last.pool(pool, SESSION_HELD) for pool in last.pools}
    basis = HeldByClosedSessions(
        closed=seen[-1].value,
        open=still_open,
        at_checkpoints=tuple(reading.value for reading in seen[-CHECKPOINTS_NAMED:]),
        held={} if still_open else {pool: slots for pool, slots in held.items() if slots > 0},
    )
    since_s = next(reading.t_s for reading in seen if reading.value > 0)
    found = Finding(basis, VerdictKind.LEAK, "closed sessions", since_s=since_s)
    yield explained(found, driver, "sessions")


def _closed_with_rows(at: Checkpoint) -> float | None:
    """The sessions that hold a row but are not open; None if the engine does not count them."""
    if _OPENS not in at.counters or SESSION_HELD not in at.pools.get("req", {}):
        return None
    return at.pool("req", SESSION_HELD) - _open_sessions(at)


def _open_sessions(at: Checkpoint) -> float:
    return at.counters.get(_OPENS, 0) - at.counters.get(_CLOSES, 0)


def _in_use(facts: Facts, pool: str) -> Iterable[Finding]:
    """Yield a finding about slots that a server's own metrics report as in use when idle.

    It needs a full account of the pool at the last idle point, or gauges that only rise from one
    idle point to the next.
    """
    seen = facts.idle_readings(lambda at: at.pools.get(pool, {}).get(IN_USE))
    if not seen or seen[-1].value <= 0:
        return
    changes = [b.value - a.value for a, b in pairwise(seen)]
    rises = sum(change > 0 for change in changes)
    is_account = "residual" in facts.idle[-1].pools.get(pool, {})
    if not is_account and (rises < _RISES_OF_GAUGES or min(changes) < 0):
        return
    driver = idle_driver(facts, f"pool.{pool}.{IN_USE}", seen)
    is_exact = driver is not None and driver.exact
    is_share = pool == KV_SHARE
    may_lag = not (is_share or is_account or is_exact or rises >= _RISES_WITHOUT_CHANCE)
    kind, subject = InUseAtIdle, pool_words(pool)
    if is_share:
        kind, subject = ShareInUseAtIdle, "KV cache"
    verdict = VerdictKind.INCONCLUSIVE if is_share or may_lag else VerdictKind.LEAK
    basis = kind(
        pool=pool,
        in_use=seen[-1].value,
        at_checkpoints=tuple(reading.value for reading in seen[-CHECKPOINTS_NAMED:]),
        may_lag=may_lag,
    )
    since_s = next(reading.t_s for reading in seen if reading.value > 0)
    found = Finding(basis, verdict, subject, since_s=since_s)
    yield explained(found, driver, pool_unit(pool))


def _losing_steps(losing: LosingSteps | None, driver: Driver | None) -> tuple[CauseOfLoss, ...]:
    """Return the several causes of a loss; none if ``driver`` explains it exactly."""
    if losing is None or (driver is not None and driver.exact):
        return ()
    return tuple(
        CauseOfLoss(counter=counter, share=share, of_steps=of_all)
        for counter, share, of_all in losing.parts
    )
