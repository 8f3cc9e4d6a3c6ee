"""Arithmetic at idle checkpoints: with no request in the engine, every slot and lock has a
known place.

Counts are exact, so one checkpoint decides; which event loses the slots is read from the samples
between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from hybridbench.analysis.drivers.rates import rate_per_hour
from hybridbench.analysis.drivers.search import Driver, Hints, explained, find_driver
from hybridbench.analysis.drivers.steps import LosingSteps, losing_steps
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import (
    IdleReading,
    pool_names,
    pool_unit,
    pool_values,
    pool_words,
)
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.codes import FindingCode
from hybridbench.records.events import Checkpoint, EngineViolation
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Finding, VerdictKind, untyped

# Without a checkpoint at the end (the worker died), samples that never came back to zero stand in
# for it.
_TAIL_SAMPLES = 5
# What moves or splits the locked nodes while they are held.
_LOCK_EVENTS = ("node_splits", "tombstones", "prefix_hits", "abort", "retract", "finish")
_SLOTS_NAMED = 10
_CHECKPOINTS_NAMED = 5
_LOCKED_POOL = {"full": "kv", "swa": "swa", "mamba": "mamba"}


def checkpoint_findings(facts: Facts) -> list[Finding]:
    """Missing slots, slots counted twice, slots and locks without a holder."""
    findings: list[Finding] = []
    for pool in pool_names(facts.record):
        findings.extend(_residuals(facts, pool))
        findings.extend(_orphans(facts, pool))
    findings.extend(_locks(facts))
    return findings


def _residuals(facts: Facts, pool: str) -> Iterable[Finding]:
    at_idle = [(at.t_s, at.pool(pool, "residual")) for at in facts.idle]
    t, sampled = pool_values(facts.record, pool, "residual")
    negative = [(when, value) for when, value in at_idle if value < 0]
    if negative:
        yield _surplus(facts, pool)
    missing, seen_in = _missing(at_idle, t, sampled)
    if missing <= 0:
        return
    seen = facts.idle_readings(lambda at: at.pool(pool, "residual"))
    losing = losing_steps(facts.record, pool, facts.counters)
    driver = _driver(facts, f"pool.{pool}.residual", seen, losing=losing)
    unit = pool_unit(pool)
    since = next((when for when, value in at_idle if value > 0), float(t[-1]) if t.size else 0.0)
    lost = np.flatnonzero(sampled > 0)
    since = min(since, float(t[lost[0]])) if lost.size else since
    hourly = rate_per_hour(t, sampled, unit)
    found = untyped(
        kind=FindingCode.RESIDUAL,
        verdict=VerdictKind.LEAK,
        subject=pool_words(pool),
        rates=() if hourly is None else (hourly,),
        since_s=since,
        data={
            "pool": pool,
            "missing": missing,
            **seen_in,
            **_missing_slots(facts.record, pool),
            **_losing_steps(losing, driver),
        },
    )
    yield explained(found, driver, unit)


def _missing_slots(record: RunRecord, pool: str) -> dict[str, JsonValue]:
    """Which slots are missing and who held them last, by the engine's last report of them."""
    reports = [
        found
        for found in record.all_events(EngineViolation)
        if found.kind == FindingCode.RESIDUAL and found.pool == pool
    ]
    if not reports:
        return {}
    last = reports[-1]
    holders = last.owners[:_SLOTS_NAMED]
    return {
        "slots": list(last.slots[:_SLOTS_NAMED]),
        "slots_reported": max(len(last.slots), int(last.count)),
        **({"slot_holders": list(holders)} if holders else {}),
    }


def _surplus(facts: Facts, pool: str) -> Finding:
    """More slots than there are: some are free or held twice."""
    seen = facts.idle_readings(lambda at: -at.pool(pool, "residual"))
    first = next(reading for reading in seen if reading.value > 0)
    t, sampled = pool_values(facts.record, pool, "residual")
    hints = Hints(load=facts.load, idle=seen, from_zero=True)
    driver = find_driver(t, -sampled, facts.counters, hints)
    unit = pool_unit(pool)
    found = untyped(
        kind=FindingCode.NEGATIVE_RESIDUAL,
        verdict=VerdictKind.INVARIANT,
        subject=pool_words(pool),
        since_s=first.t_s,
        data={
            "pool": pool,
            "surplus": seen[-1].value,
            "at_checkpoints": [-reading.value for reading in seen[-_CHECKPOINTS_NAMED:]],
        },
    )
    return explained(found, driver, unit)


def _missing(
    at_idle: list[tuple[float, float]], t: FloatArray, sampled: FloatArray
) -> tuple[float, dict[str, JsonValue]]:
    """Slots that did not come back, and the readings that show it."""
    last_idle = at_idle[-1][0] if at_idle else -np.inf
    if at_idle and at_idle[-1][1] > 0:
        last = [value for _, value in at_idle[-_CHECKPOINTS_NAMED:]]
        return last[-1], {"at_checkpoints": last}
    after = sampled[t > last_idle]
    if at_idle and after.size < 2 * _TAIL_SAMPLES:
        return 0.0, {}
    tail = after[-_TAIL_SAMPLES:]
    # Without a rest the smallest of the last samples is what surely did not come back.
    if tail.size == _TAIL_SAMPLES and float(tail.min()) > 0:
        return float(tail.min()), {"last_samples": _TAIL_SAMPLES}
    return 0.0, {}


def _orphans(facts: Facts, pool: str) -> Iterable[Finding]:
    """Slots on the account of requests when there is no request."""
    held = facts.idle[-1].pool(pool, "in_flight") if facts.idle else 0.0
    if held <= 0:
        return
    seen = facts.idle_readings(lambda at: at.pool(pool, "in_flight"))
    driver = _driver(facts, f"pool.{pool}.in_flight", seen)
    unit = pool_unit(pool)
    found = untyped(
        kind=FindingCode.HELD_AT_IDLE,
        verdict=VerdictKind.LEAK,
        subject=pool_words(pool),
        since_s=facts.idle[-1].t_s,
        data={"pool": pool, "held": held},
    )
    yield explained(found, driver, unit)


def _locks(facts: Facts) -> Iterable[Finding]:
    # An open session may pin its prefix; only with none open has every lock outlived its holder.
    alone = [e for e in facts.idle if not _session_held(e)]
    for component, count in sorted(alone[-1].locks.items()) if alone else ():
        if count != 0:
            yield _lock(facts, component, facts.idle_readings(_locks_of(component)))


def _locks_of(component: str) -> Callable[[Checkpoint], float | None]:
    def read(at: Checkpoint) -> float | None:
        return None if _session_held(at) else at.locks.get(component)

    return read


def _lock(facts: Facts, component: str, seen: Sequence[IdleReading]) -> Finding:
    count = seen[-1].value
    pool = _LOCKED_POOL.get(component, component)
    twice = count < 0
    found = untyped(
        kind=FindingCode.NEGATIVE_LOCKS if twice else FindingCode.LOCKS_AT_IDLE,
        verdict=VerdictKind.INVARIANT if twice else VerdictKind.LEAK,
        subject=f"locks: {component}",
        since_s=next(reading.t_s for reading in seen if reading.value),
        data={
            "pool": pool,
            "component": component,
            "locks": count,
            "at_checkpoints": [reading.value for reading in seen[-_CHECKPOINTS_NAMED:]],
        },
    )
    if twice:
        return found
    driver = _driver(facts, f"pool.{pool}.protected", seen, _LOCK_EVENTS)
    return explained(found, driver, f"locked {pool_unit(pool)}")


def _session_held(at: Checkpoint) -> bool:
    return any(at.pool(pool, "session_held") > 0 for pool in at.pools)


def _driver(
    facts: Facts,
    series: str,
    idle: Sequence[IdleReading],
    expected: Sequence[str] = (),
    losing: LosingSteps | None = None,
) -> Driver | None:
    """What drives a count that should be 0 at rest, from its samples, its rests and its steps."""
    sampled = facts.record.series.get(series, Series(series, np.empty(0), np.empty(0)))
    hints = Hints(expected, load=facts.load, idle=idle, from_zero=True)
    if losing is not None:
        hints = replace(hints, natural=losing.always, among=losing.mostly)
    driver = find_driver(sampled.t_s, sampled.value, facts.counters, hints)
    if losing is not None and driver is not None and driver.counter in losing.always:
        # Whatever did not move in the steps that lost slots is no rival, however well it fits.
        driver = replace(driver, rivals=tuple(r for r in driver.rivals if r in losing.always))
    return driver


def _losing_steps(losing: LosingSteps | None, driver: Driver | None) -> dict[str, JsonValue]:
    """Several causes, each with its share of the slots."""
    if losing is None or (driver is not None and driver.exact) or not losing.parts:
        return {}
    return {
        "losing_steps": [
            {"counter": counter, "share": share, "of_steps": of_all}
            for counter, share, of_all in losing.parts
        ]
    }
