"""Requests that live for nobody, and requests that never end.

Neither makes memory grow: each holds a row, a state slot and its tokens for as long as it lives, so
that less and less is left for those whom somebody waits for.  A machine may be slow without any of
this, so nothing here is judged in seconds alone: a request is too old when all others of its time
have come and gone many times over.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hybridbench.analysis.counters import EventCounters, singular
from hybridbench.analysis.findings import Finding, Rate, VerdictKind
from hybridbench.analysis.pools import in_flight
from hybridbench.analysis.reading import number
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.analysis.step_drivers import StepDriver, find_rise_driver
from hybridbench.units import format_count, format_duration

WITHOUT_CLIENT = "running-without-client"
TOO_OLD = "request-too-old"

_CLIENTS = "requests_without_client"
_EXPECTED = ("disconnect", "abort")
# One look may fall between a client's leaving and the engine's hearing of it.
_FEWEST_LOOKS = 3
_TOGETHER = 2

# How often the engine's whole population must have been served while one request was not.
_TURNOVERS = {"oldest_silence_s": 10.0, "oldest_request_s": 50.0}
_TIMES_USUAL = 5.0  # the longest age at which any request before it ended
_LEAST_AGE_S = 10.0
_GROWS_BY = 0.5  # of the time that passes: the same request is still the oldest


def liveness_findings(record: RunRecord, counters: EventCounters) -> list[Finding]:
    """Requests without a client, and at most one finding on a request that does not end."""
    findings = list(_without_client(record, counters))
    for name in _TURNOVERS:
        if not any(finding.kind == TOO_OLD for finding in findings):
            findings.extend(_too_old(record, counters, name))
    return findings


def _without_client(record: RunRecord, counters: EventCounters) -> Iterable[Finding]:
    t, count = _looks(record)
    seen = count > 0
    if int(seen.sum()) < _FEWEST_LOOKS or _longest_run(seen.tolist()) < _TOGETHER:
        return
    driver = find_rise_driver(t, count, counters, _EXPECTED)
    first = float(t[seen][0])
    spent_s = float(np.trapezoid(count, t))
    upon = f", seen to begin upon a {singular(driver.counter)}" if driver is not None else ""
    yield Finding(
        kind=WITHOUT_CLIENT,
        verdict=VerdictKind.LEAK,
        subject="requests without a client",
        title=(
            f"up to {count.max():.0f} requests ran on for which no client waits "
            f"({float(count[t >= first].mean()):.1f} on average){upon}"
        ),
        driver=driver.counter if driver is not None else None,
        rates=tuple(_rates(driver)),
        cause="the client's leaving did not reach the request: it decodes to its limit for nobody",
        evidence=(
            f"in {int(seen.sum())} of {t.size} looks, first at {format_duration(first)}",
            f"{format_count(spent_s)} request-seconds of rows, slots and steps were spent on them",
            *_moved(driver),
        ),
        since_s=first,
        data={"most": float(count.max()), "request_seconds": spent_s},
    )


def _looks(record: RunRecord) -> tuple[FloatArray, FloatArray]:
    """The count in samples and at checkpoints, in the order of time."""
    series = record.series.get(_CLIENTS)
    looks: dict[float, float] = {}
    if series is not None:
        finite = np.isfinite(series.value)
        looks.update(zip(series.t_s[finite].tolist(), series.value[finite].tolist(), strict=True))
    for event in record.all_events("checkpoint"):
        if _CLIENTS in event.data:
            looks[event.t_s] = number(event.data, _CLIENTS)
    times = sorted(looks)
    return np.array(times), np.array([looks[t] for t in times])


def _longest_run(seen: list[bool]) -> int:
    longest = now = 0
    for holds in seen:
        now = now + 1 if holds else 0
        longest = max(longest, now)
    return longest


def _rates(driver: StepDriver | None) -> Iterable[Rate]:
    """How often an event left one behind (at least: some came and went between two looks)."""
    if driver is not None:
        error = 1.96 * float(np.sqrt(driver.rise)) / driver.events
        low, seen = max(0.0, driver.per_event - error), driver.per_event
        yield Rate(seen, low, seen + error, "requests", singular(driver.counter))


def _moved(driver: StepDriver | None) -> Iterable[str]:
    if driver is not None:
        yield (
            f"{driver.covered:.0%} of the rises came when events.{driver.counter} moved "
            f"({driver.events:.0f} events)"
        )


def _too_old(record: RunRecord, counters: EventCounters, name: str) -> Iterable[Finding]:
    series = record.series.get(name)
    if series is None or len(series) < 2 or "finishes" not in counters.series:
        return
    start, end = _last_climb(series)
    t, age = series.t_s, series.value
    lived_s = float(age[end])
    born_s = float(t[end]) - lived_s
    # Of the same quantity, among requests that did end.
    usual_s = float(age[:start].max()) if start else 0.0
    served = float(np.diff(counters.at("finishes", np.array([born_s, float(t[end])])))[0])
    population = _population(record, born_s, float(t[end]))
    turnovers = served / max(population, 1.0)
    if lived_s < max(_LEAST_AGE_S, _TIMES_USUAL * usual_s) or turnovers < _TURNOVERS[name]:
        return
    silent = name == "oldest_silence_s"
    what = "has had no token for" if silent else "has been in the engine for"
    yield Finding(
        kind=TOO_OLD,
        verdict=VerdictKind.LEAK,
        subject="oldest request",
        title=(
            f"a request {what} {format_duration(lived_s)}, while {format_count(served)} others "
            "finished"
        ),
        cause="its completion was lost: what it holds stays taken" if silent else "",
        evidence=(
            f"the others of its time were served {turnovers:.0f} times over",
            f"no request before it came to more than {format_duration(usual_s)}",
        ),
        since_s=max(0.0, born_s),
        data={"age_s": lived_s, "finished_meanwhile": served},
    )


def _last_climb(series: Series) -> tuple[int, int]:
    """Where the oldest age last began to grow, and the last sample of that growth.

    Only a climb that lasts until the samples end is of interest: what came back was merely slow.
    """
    t, age = series.t_s, series.value
    steady = np.diff(age) >= _GROWS_BY * np.diff(t)
    breaks = np.flatnonzero(~steady)
    start = int(breaks[-1]) + 1 if breaks.size else 0
    return start, age.size - 1


def _population(record: RunRecord, start_s: float, end_s: float) -> float:
    """The most requests that were in the engine at once."""
    most = 0.0
    for series in in_flight(record):
        if len(series):
            inside = series.between(start_s, end_s).value
            most += float(inside.max()) if inside.size else 0.0
    return most
