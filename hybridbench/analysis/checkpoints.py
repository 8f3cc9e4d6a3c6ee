"""Arithmetic at quiescent checkpoints: with no request in the engine, every slot and lock has a
known place.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hybridbench.analysis.counters import EventCounters, singular
from hybridbench.analysis.drivers import Driver, find_driver
from hybridbench.analysis.findings import Finding, Rate, VerdictKind
from hybridbench.analysis.pools import (
    pool_at,
    pool_names,
    pool_unit,
    pool_values,
    pool_words,
    quiescent_checkpoints,
)
from hybridbench.analysis.reading import mapping, number, numbers
from hybridbench.analysis.record import FloatArray, RunEvent, RunRecord, Series
from hybridbench.units import format_count, format_duration

RESIDUAL = "residual"
LOCKS = "locks-at-idle"
HELD = "held-at-idle"

# Without a checkpoint at the end (the worker died), samples that never came back to zero stand in
# for it.
_TAIL_SAMPLES = 5
_MIN_CONTAINER_CHECKPOINTS = 4
_KEEPS_GROWING = 0.5


def checkpoint_findings(record: RunRecord, counters: EventCounters) -> list[Finding]:
    """Missing slots, slots counted twice, locks without a holder, containers that only grow."""
    resting = quiescent_checkpoints(record)
    findings: list[Finding] = []
    for pool in pool_names(record):
        findings.extend(_residuals(record, counters, pool, resting))
        findings.extend(_orphans(pool, resting))
    if resting:
        findings.extend(_locks(resting))
    findings.extend(_containers(record, counters, resting))
    return findings


def _residuals(
    record: RunRecord, counters: EventCounters, pool: str, resting: list[RunEvent]
) -> Iterable[Finding]:
    at_rest = [(e.t_s, number(pool_at(e, pool), "residual")) for e in resting]
    t, sampled = pool_values(record, pool, "residual")
    negative = [(when, value) for when, value in at_rest if value < 0]
    if negative:
        when, value = negative[0]
        yield Finding(
            kind="negative-residual",
            verdict=VerdictKind.INVARIANT,
            subject=pool_words(pool),
            title=f"{-value:.0f} {pool_unit(pool)} have more than one holder at rest",
            cause="a slot was freed twice, or is counted by two holders",
            evidence=(f"residual {value:.0f} at the checkpoint at {format_duration(when)}",),
            since_s=when,
        )
    missing, said = _missing(at_rest, t, sampled)
    if missing <= 0:
        return
    driver = find_driver(t, sampled, counters)
    if driver is None and len(at_rest) > 1:
        times, values = (np.array(column) for column in zip(*at_rest, strict=True))
        driver = find_driver(times, values, counters)
    since = next((when for when, value in at_rest if value > 0), float(t[-1]) if t.size else 0.0)
    lost = np.flatnonzero(sampled > 0)
    since = min(since, float(t[lost[0]])) if lost.size else since
    yield Finding(
        kind=RESIDUAL,
        verdict=VerdictKind.LEAK,
        subject=pool_words(pool),
        title=f"{missing:.0f} {pool_unit(pool)} are missing: neither free nor held by anyone"
        + _driven(driver, pool),
        driver=driver.counter if driver else None,
        rates=tuple(_per_event(driver, pool_unit(pool))),
        evidence=(said, *_association(driver)),
        since_s=since,
        data={"pool": pool, "missing": missing},
    )


def _missing(
    at_rest: list[tuple[float, float]], t: FloatArray, sampled: FloatArray
) -> tuple[float, str]:
    """Slots that did not come back, and how that is known."""
    last_rest = at_rest[-1][0] if at_rest else -np.inf
    if at_rest and at_rest[-1][1] > 0:
        values = ", ".join(f"{value:.0f}" for _, value in at_rest[-5:])
        return at_rest[-1][1], f"residual at the last checkpoints: {values}"
    after = sampled[t > last_rest]
    if at_rest and after.size < 2 * _TAIL_SAMPLES:
        return 0.0, ""
    tail = after[-_TAIL_SAMPLES:]
    # Without a rest the smallest of the last samples is what surely did not come back.
    if tail.size == _TAIL_SAMPLES and float(tail.min()) > 0:
        least = float(tail.min())
        return least, f"residual over the last {_TAIL_SAMPLES} samples: at least {least:.0f}"
    return 0.0, ""


def _orphans(pool: str, resting: list[RunEvent]) -> Iterable[Finding]:
    """Slots on the account of requests when there is no request."""
    if not resting:
        return
    held = number(pool_at(resting[-1], pool), "in_flight")
    if held > 0:
        yield Finding(
            kind=HELD,
            verdict=VerdictKind.LEAK,
            subject=pool_words(pool),
            title=f"{held:.0f} {pool_unit(pool)} are held by requests that no longer exist",
            evidence=(f"in flight at the checkpoint at {format_duration(resting[-1].t_s)}",),
            since_s=resting[-1].t_s,
            data={"pool": pool, "held": held},
        )


def _locks(resting: list[RunEvent]) -> Iterable[Finding]:
    # An open session may pin its prefix; only with none open has every lock outlived its holder.
    alone = [e for e in resting if not _session_held(e)]
    if not alone:
        return
    last = alone[-1]
    for component, count in numbers(last.data, "locks").items():
        if count == 0:
            continue
        negative = count < 0
        yield Finding(
            kind="negative-locks" if negative else LOCKS,
            verdict=VerdictKind.INVARIANT if negative else VerdictKind.LEAK,
            subject=f"locks: {component}",
            title=f"{count:.0f} {component} locks are held with no request in the engine",
            cause="a lock was released twice" if negative else "a lock was never released",
            evidence=(f"at the checkpoint at {format_duration(last.t_s)}",),
            since_s=next(e.t_s for e in alone if numbers(e.data, "locks").get(component, 0.0)),
        )


def _session_held(event: RunEvent) -> bool:
    pools = mapping(event.data, "pools")
    return any(number(mapping(pools, pool), "session_held") > 0 for pool in pools)


def _containers(
    record: RunRecord, counters: EventCounters, resting: list[RunEvent]
) -> Iterable[Finding]:
    """Containers that were longer at every checkpoint, and not ever less so."""
    names = sorted({name for e in resting for name in mapping(e.data, "containers")})
    for name in names:
        seen = [(e.t_s, numbers(e.data, "containers").get(name)) for e in resting]
        points = [(t, v) for t, v in seen if v is not None]
        if len(points) < _MIN_CONTAINER_CHECKPOINTS:
            continue
        t, value = (np.array(column) for column in zip(*points, strict=True))
        growth = np.diff(value)
        if growth.min() <= 0 or growth[-1] < _KEEPS_GROWING * growth.mean():
            continue
        series = record.series.get(f"container.{name}.len", Series(name, t, value))
        driver = find_driver(series.t_s, series.value, counters)
        hours = float(t[-1] - t[0]) / 3600.0
        spread = np.quantile(growth / np.diff(t) * 3600.0, [0.025, 0.975])
        rate = float(value[-1] - value[0]) / hours
        per_hour = Rate(rate, float(spread[0]), float(spread[1]), "entries", "h")
        yield Finding(
            kind="container-grows",
            verdict=VerdictKind.LEAK,
            subject=f"container: {name}",
            title=f"{name} was longer at each of {value.size} checkpoints: "
            f"{format_count(float(value[0]))} to {format_count(float(value[-1]))} entries",
            driver=driver.counter if driver else None,
            rates=(per_hour, *_per_event(driver, "entries")),
            evidence=tuple(_association(driver)),
            since_s=float(t[0]),
        )


def _driven(driver: Driver | None, pool: str) -> str:
    if driver is None:
        return ""
    return f"; {driver.per_event:+.2f} {pool_unit(pool)} per {singular(driver.counter)}"


def _per_event(driver: Driver | None, unit: str) -> Iterable[Rate]:
    if driver is not None:
        error = 1.96 * float(np.sqrt(driver.rise)) / driver.events
        value = driver.per_event
        yield Rate(value, max(0.0, value - error), value + error, unit, singular(driver.counter))


def _association(driver: Driver | None) -> Iterable[str]:
    if driver is not None:
        yield f"{driver.covered:.0%} of the rises came when events.{driver.counter} moved"
