"""Waiting requests that hold slots between steps: a request that only waits holds nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hybridbench.analysis.counters import EventCounters, singular
from hybridbench.analysis.findings import Finding, Rate, VerdictKind
from hybridbench.analysis.pools import pool_at, pool_names, pool_unit, pool_values, pool_words
from hybridbench.analysis.reading import number, text
from hybridbench.analysis.record import FloatArray, RunEvent, RunRecord
from hybridbench.analysis.step_drivers import StepDriver, find_rise_driver, find_step_driver
from hybridbench.units import format_duration

KIND = "waiting-holds-slots"
VIOLATIONS = ("waiting-holds", "waiting-held")

# One sample may have been taken while an admission was being decided; two may not.
_MIN_SAMPLES = 2
_RATE_FROM = 0.05  # slots per event
# What makes a request wait with something in hand, likeliest first.
_EXPECTED = ("refus", "reject", "retract", "abort")


def violation_kind(event: RunEvent) -> str:
    """The kind of an ``engine_violation``, in one spelling."""
    return text(event.data, "kind", "unknown").replace("_", "-")


def waiting_findings(record: RunRecord, counters: EventCounters) -> list[Finding]:
    """One finding for each pool of which waiting requests held slots."""
    found = (_judge(record, counters, pool) for pool in pool_names(record))
    return [finding for finding in found if finding is not None]


def _judge(record: RunRecord, counters: EventCounters, pool: str) -> Finding | None:
    t, held = pool_values(record, pool, "waiting_held")
    holding = held > 0
    resting = [e for e in record.all_events("checkpoint") if _held_at(e, pool) > 0]
    said = [e for e in record.all_events("engine_violation") if _is_said(e, pool)]
    if int(holding.sum()) < _MIN_SAMPLES and not resting and not said:
        return None
    # A look after every step tells more than samples, between which every counter moves.
    driver = find_step_driver(record, pool, counters, _EXPECTED)
    if driver is None and holding.any():
        driver = find_rise_driver(t, held, counters, _EXPECTED)
    times = [float(t[holding][0])] if holding.any() else []
    since = min(times + [e.t_s for e in (*resting, *said)])
    unit = pool_unit(pool)
    most, mean = _most_and_mean(held, resting, pool)
    after = f"; each was taken upon a {singular(driver.counter)}" if driver else ""
    held_words = f"up to {most:.0f}, {mean:.1f} on average" if most else "by the engine's own check"
    return Finding(
        kind=KIND,
        verdict=VerdictKind.LEAK,
        subject=pool_words(pool),
        title=f"waiting requests hold {unit} between steps ({held_words}){after}",
        driver=driver.counter if driver else None,
        rates=tuple(_rates(driver, unit)),
        cause="a slot taken while a request was being admitted stays with it after it was put back",
        evidence=tuple(_evidence(t, held, resting, said, driver)),
        since_s=since,
        data={
            "pool": pool,
            "most": most,
            "mean": mean,
            "samples": int(held.size),
            "samples_holding": int(holding.sum()),
            "violations": len(said),
        },
    )


def _held_at(event: RunEvent, pool: str) -> float:
    return number(pool_at(event, pool), "waiting_held")


def _is_said(event: RunEvent, pool: str) -> bool:
    return violation_kind(event) in VIOLATIONS and text(event.data, "pool") == pool


def _most_and_mean(held: FloatArray, resting: list[RunEvent], pool: str) -> tuple[float, float]:
    """The most slots held, and the mean over all samples from the first that held any."""
    at_rest = [_held_at(event, pool) for event in resting]
    if not np.any(held > 0):
        return max(at_rest, default=0.0), float(np.mean(at_rest)) if at_rest else 0.0
    since = held[int(np.argmax(held > 0)) :]
    return max([float(held.max()), *at_rest]), float(since.mean())


def _rates(driver: StepDriver | None, unit: str) -> Iterable[Rate]:
    """Slots per event, where there is such a rate.

    A request that is refused again takes no second slot: once all that wait hold one, further
    refusals cost nothing, and their number says nothing.
    """
    if driver is not None and driver.per_event >= _RATE_FROM:
        seen = driver.per_event
        error = 1.96 * float(np.sqrt(driver.rise)) / driver.events
        yield Rate(seen, max(0.0, seen - error), seen + error, unit, singular(driver.counter))


def _evidence(
    t: FloatArray,
    held: FloatArray,
    resting: list[RunEvent],
    said: list[RunEvent],
    driver: StepDriver | None,
) -> Iterable[str]:
    holding = held > 0
    if holding.any():
        yield (
            f"{int(holding.sum())} of {held.size} samples show slots in the hands of waiting "
            f"requests, first at {format_duration(float(t[holding][0]))}"
        )
    if driver is not None and driver.base_rate is not None:
        yield (
            f"{driver.covered:.0%} of the {driver.rise:.0f} slots were taken in steps in which "
            f"events.{driver.counter} moved ({driver.events:.0f} events); such steps are "
            f"{driver.base_rate:.0%} of all"
        )
    elif driver is not None:
        yield (
            f"{driver.covered:.0%} of the rises came when events.{driver.counter} moved "
            f"({driver.rise:.0f} slots seen to go, {driver.events:.0f} events)"
        )
    if resting:
        yield f"still held at {len(resting)} checkpoint{'s' * (len(resting) > 1)}"
    if said:
        yield f"the engine's own check, {len(said)} times: {text(said[0].data, 'message')}"
