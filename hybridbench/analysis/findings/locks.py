"""Locks on nodes of the prefix tree that are held at idle checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np

from hybridbench.analysis.drivers.idle import idle_driver, idle_hints
from hybridbench.analysis.drivers.search import Hints, explained, find_driver
from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import (
    CHECKPOINTS_NAMED,
    SESSION_HELD,
    IdleReading,
    pool_count,
    pool_unit,
)
from hybridbench.analysis.findings.words import (
    driver_evidence,
    is_or_are,
    per_event,
    readings,
    times,
)
from hybridbench.analysis.record import FloatArray
from hybridbench.records.finding import Basis, Finding, VerdictKind, Words

# Share of the last events that may lock no more tokens.  More of them mean that nearly all tokens
# are locked already, which hides what locks them.
_LOCK_NONE = 0.1
# Events that move or split locked nodes.
_LOCK_EVENTS = ("node_splits", "tombstones", "prefix_hits", "abort", "retract", "finish")
_LOCKS, _UNLOCKS = "lock_calls", "unlock_calls"


class _Locks(Basis, frozen=True, kw_only=True):
    """Locks of one component of the tree at the last idle checkpoints."""

    from_checkpoints = True

    pool: str
    component: str
    locks: float
    at_checkpoints: tuple[float, ...]

    def _counts(self) -> str:
        return f"locked at the last checkpoints: {readings(self.at_checkpoints)}"


class LocksAtIdle(_Locks, frozen=True, kw_only=True):
    """Locks that outlived their holders.

    ``held`` is their number, if the engine counts locks; ``locks`` counts what they lock.
    """

    kind = "locks-at-idle"
    meaning = "Tree nodes are still locked with no request in the engine."
    question = "no lock is held while the engine is idle"
    names_mechanism = True

    held: float | None = None

    def words(self, found: Finding) -> Words:
        by = "" if self.held is None else f", by {times(self.held, 'lock')}"
        return Words(
            f"{pool_count(self.locks, self.pool)} {is_or_are(self.locks)} locked in the prefix "
            f"tree with no request in the engine{by}{per_event(found)}",
            cause="a lock was never released",
            evidence=(self._counts(), *driver_evidence(found)),
        )

    def advice(self, found: Finding) -> str:
        if self.held is not None:
            event = "each path" if found.driver is None else f"the {singular(found.driver)} handler"
            return (
                f"Check {event} for a lock that is taken and not released: the calls that take "
                f"locks outnumber those that release them by {self.held:,.0f}."
            )
        return (
            "Check that lock and unlock traverse the same nodes, in particular after a node "
            "split, and that an idle engine still acknowledges the transfers that hold a lock."
        )


class NegativeLocks(_Locks, frozen=True, kw_only=True):
    """Locks that were released more often than taken."""

    kind = "negative-locks"
    meaning = "Tree nodes were unlocked more often than locked."
    leads_to = "INVARIANT"
    question = "no lock count is negative"

    def words(self, found: Finding) -> Words:
        return Words(
            f"the count of locked {pool_unit(self.pool)} is {self.locks:,.0f} with no request in "
            "the engine",
            cause="a lock was released twice",
            evidence=(self._counts(),),
        )


def lock_findings(facts: Facts) -> Iterable[Finding]:
    """Yield findings about nodes that are locked, or were unlocked too often, when idle."""
    # An open session may lock its prefix.  Only if no session holds anything has every lock
    # outlived its holder.
    alone = [
        at for at in facts.idle if not any(at.pool(pool, SESSION_HELD) > 0 for pool in at.pools)
    ]
    for component, count in sorted(alone[-1].locks.items()) if alone else ():
        if count != 0:
            counted = [at for at in alone if component in at.locks]
            seen = [IdleReading(at.t_s, at.locks[component], at.counters) for at in counted]
            yield _lock(facts, component, seen)


def _lock(facts: Facts, component: str, seen: Sequence[IdleReading]) -> Finding:
    count = seen[-1].value
    pool = "kv" if component == "full" else component
    twice = count < 0
    kind = NegativeLocks if twice else LocksAtIdle
    found = Finding(
        kind(
            pool=pool,
            component=component,
            locks=count,
            at_checkpoints=tuple(reading.value for reading in seen[-CHECKPOINTS_NAMED:]),
        ),
        VerdictKind.INVARIANT if twice else VerdictKind.LEAK,
        f"locks: {component}",
        since_s=next(reading.t_s for reading in seen if reading.value),
    )
    if twice:
        return found
    held = _held_locks(seen)
    if not held:
        driver = idle_driver(facts, f"pool.{pool}.protected", seen, _LOCK_EVENTS)
        if driver is not None and not _rose_to_the_end(seen, driver.counter):
            driver = None
        return explained(found, driver, f"locked {pool_unit(pool)}")
    # A lock on tokens that another has locked adds none, so the locks themselves are explained.
    found = replace(found, basis=msgspec.structs.replace(found.basis, held=held[-1].value))
    t, orphans = _locks_without_row(facts)
    hints = Hints(idle=held, from_zero=idle_hints(facts, held).from_zero)
    return explained(found, find_driver(t, orphans, facts.counters, hints), "locks")


def _rose_to_the_end(seen: Sequence[IdleReading], counter: str) -> bool:
    """Whether the idle readings rose until the last events of ``counter``."""
    rises = [now for before, now in pairwise(seen) if now.value > before.value]
    last = rises[-1] if rises else seen[0]
    events = seen[-1].counts.get(counter, 0.0)
    return events - last.counts.get(counter, 0.0) <= _LOCK_NONE * events


def _locks_without_row(facts: Facts) -> tuple[FloatArray, FloatArray]:
    """Return the sampled number of locks, less one for each row that a request or session holds."""
    taken = facts.record.series[f"events.{_LOCKS}"]
    count = taken.value.copy()
    for name in (f"events.{_UNLOCKS}", "pool.req.in_flight", f"pool.req.{SESSION_HELD}"):
        series = facts.record.series.get(name)
        if series is not None and len(series):
            count -= np.interp(taken.t_s, series.t_s, series.value)
    return taken.t_s, count


def _held_locks(rests: Sequence[IdleReading]) -> list[IdleReading]:
    """Return how many locks were held at ``rests``; empty if unknown, or all were released."""
    held = [
        replace(at, value=at.counts[_LOCKS] - at.counts[_UNLOCKS])
        for at in rests
        if _LOCKS in at.counts
    ]
    return held if held and held[-1].value > 0 else []
