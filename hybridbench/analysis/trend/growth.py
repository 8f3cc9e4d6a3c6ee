"""Findings from the trends: what grows, with what event, and when it reaches its limit.

A part of the process's memory may grow by more than the whole, as memory that was freed is used
again: then the finding says so.  Growth that answering probes explains is the bench's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.drivers.search import Driver, Hints, find_driver
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.metric_trend import judged_samples
from hybridbench.metrics import AT_REST, COLLECTIBLE, DEVICE_MEMORY, MEMORY, Unit
from hybridbench.rates import full_rate_text
from hybridbench.records.codec import to_json
from hybridbench.records.codes import FindingCode
from hybridbench.records.finding import Faster
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import (
    Finding,
    MetricResult,
    Rate,
    VerdictKind,
    memory_result,
    untyped,
)
from hybridbench.units import format_bytes

_EXPLAINS = 0.05

HELD_BY_PROBES = "observer_held_bytes"
# Of the worker's growth: from this share on, the run says more about the bench than the engine.
_PROBES_EXPLAIN = 0.5
_MIN_PROBES = 8

# What the manifest's word for the source of a memory limit means to a reader.
_LIMIT_SOURCES: Mapping[str, str] = {
    "cgroup": "the control group's memory limit",
    "MemAvailable": "what the machine had available at the start",
}
# Memory that the worker's own limit ends; a limit of the machine ends all of them.
_PROCESS_MEMORY = ("rss_anon_swap_bytes", "gc_collectible_bytes")


def growth_findings(
    facts: Facts, results: Sequence[MetricResult], boundary: Boundary
) -> list[Finding]:
    """A finding for each metric that leaks, and for each that could not be decided.

    A leak stands without its driver where the search for one fails.
    """
    findings: list[Finding] = []
    for result in results:
        part = f"the growth of {result.metric}"
        if result.outcome == "LEAK":
            drives = f"what drives {result.metric}"
            driver = boundary.value(drives, None, _driver, facts, result)
            leak = boundary.value(part, None, _leak, facts.record, result, results, driver)
            findings += [] if leak is None else [leak]
        elif result.outcome == "INCONCLUSIVE":
            findings.append(_undecided(result))
    return findings


def explained_share(results: Sequence[MetricResult]) -> tuple[float, Rate] | None:
    """The share of memory growth that is collectible, and how fast that grows; None unless both
    grow.
    """
    by_name = {result.metric: result.rate_per_hour for result in results}
    memory, collectible = by_name.get(MEMORY), by_name.get(COLLECTIBLE)
    if memory is None or collectible is None or min(memory.lower, collectible.value) <= 0:
        return None
    share = collectible.value / memory.value
    return (share, collectible) if share >= _EXPLAINS else None


def _collectible(results: Sequence[MetricResult]) -> dict[str, JsonValue]:
    """For a finding's ``data``: the garbage in the growth of memory."""
    explained = explained_share(results)
    if explained is None:
        return {}
    share, rate = explained
    return {"collectible": {"share": share, **_ends(rate)}}


def _ends(rate: Rate) -> dict[str, JsonValue]:
    return {"value": rate.value, "lower": rate.lower, "upper": rate.upper}


def _driver(facts: Facts, result: MetricResult) -> Driver | None:
    """The event with which the metric rises in the judged window; None if time does as well."""
    window, rate = facts.window, result.rate_per_hour
    if window is None or rate is None:
        return None
    t, value = judged_samples(window, facts.record.series[result.metric])
    sign = 1.0 if rate.value >= 0 else -1.0
    emptied = result.metric == COLLECTIBLE
    load = () if result.metric == AT_REST else facts.load
    hints = Hints(load=load, emptied=emptied)
    return find_driver(t, sign * value, facts.counters, hints)


def _leak(
    record: RunRecord,
    result: MetricResult,
    results: Sequence[MetricResult],
    driver: Driver | None,
) -> Finding:
    rate, per_request = result.rate_per_hour, result.rate_per_request
    assert rate is not None, "nothing is called a leak without a rate"
    rates: tuple[Rate, ...] = (rate,)
    if driver is not None:
        rates = (*rates, driver.rate(rate.unit))
    if per_request is not None and (driver is None or driver.counter != "finishes"):
        rates = (*rates, per_request)
    left = _exhaustion(record, result)
    return untyped(
        kind=FindingCode.GROWTH,
        verdict=VerdictKind.LEAK,
        subject=result.metric,
        driver=None if driver is None else driver.counter,
        rates=rates,
        since_s=result.window_s[0],
        data={
            "model": result.model,
            "why": None if result.why is None else to_json(result.why),
            "judged_s": result.window_s[1] - result.window_s[0],
            "q_value": result.q_value,
            "metrics_tested": sum(one.q_value is not None for one in results),
            **(_collectible(results) if result.metric == MEMORY else {}),
            **({} if left is None else {"exhaustion": left.as_data()}),
        },
        driven=None if driver is None else driver.how,
    )


def _exhaustion(record: RunRecord, result: MetricResult) -> Exhaustion | None:
    limit, rate = limit_of(record, result.metric), result.rate_per_hour
    if limit is None or rate is None or not result.fit_value:
        return None
    return time_to_exhaustion(limit, result.fit_value[-1], rate)


def _undecided(result: MetricResult) -> Finding:
    return untyped(
        kind=FindingCode.UNDECIDED,
        verdict=VerdictKind.INCONCLUSIVE,
        subject=result.metric,
        rates=() if result.rate_per_hour is None else (result.rate_per_hour,),
        since_s=result.window_s[0],
        data={
            "why": None if result.why is None else to_json(result.why),
            "needed_s": result.needed_s,
            "judged_s": result.window_s[1] - result.window_s[0],
        },
    )


def exceeds(part: Rate, whole: Rate) -> bool:
    """Whether ``part`` is beyond doubt more than the interval of ``whole`` allows."""
    in_bytes = part.unit == Unit.BYTES.value and part.per == "h"
    return in_bytes and part.lower > max(whole.upper, 0.0)


def with_whole(findings: Sequence[Finding], results: Sequence[MetricResult]) -> list[Finding]:
    """``findings``, each explained where its bytes an hour exceed the bound of private memory."""
    memory = memory_result(results)
    whole = None if memory is None else memory.rate_per_hour
    if whole is None:
        return list(findings)
    return [_explained(finding, whole) for finding in findings]


def _explained(finding: Finding, whole: Rate) -> Finding:
    # Device memory is no part of the process's.
    if finding.subject in (MEMORY, DEVICE_MEMORY):
        return finding
    if finding.kind in (FindingCode.UNDECIDED, FindingCode.THRESHOLD):
        return finding
    part = next((rate for rate in finding.rates if exceeds(rate, whole)), None)
    if part is None:
        return finding
    most = max(whole.upper, 0.0)
    return replace(finding, faster_than_memory=faster_than(part, most))


def faster_than(part: Rate, most: float) -> Faster:
    """Why objects can grow by more than the process does, which grows by ``most`` bytes an hour."""
    text = (
        f"these objects accumulate {full_rate_text(part, signed=False)} between collections, more "
        f"than private memory grows by (at most {format_bytes(most)}/h, 95%): they reuse memory "
        "that was freed before, so this is not growth of the process"
    )
    return Faster(
        value=part.value, lower=part.lower, upper=part.upper, memory_upper=most, text=text
    )


def probe_growth_findings(record: RunRecord, results: Sequence[MetricResult]) -> list[Finding]:
    """At most one: the worker grows, and answering probes explains half of that or more."""
    memory = memory_result(results)
    held = record.series.get(HELD_BY_PROBES)
    grown = None if memory is None else memory.rate_per_hour
    if memory is None or memory.outcome != "LEAK" or grown is None or held is None:
        return []
    seen = held.between(*memory.window_s)
    if len(seen) < _MIN_PROBES:
        return []
    left = np.diff(seen.value)
    # What every probe leaves, and not what another thread happened to allocate during one of them.
    per_probe = float(np.median(left))
    error = 1.25 * float(np.std(left, ddof=1)) / float(np.sqrt(left.size))
    hours = float(seen.t_s[-1] - seen.t_s[0]) / 3600.0
    probes_per_hour = left.size / hours
    rate = Rate(
        per_probe * probes_per_hour,
        (per_probe - 2 * error) * probes_per_hour,
        (per_probe + 2 * error) * probes_per_hour,
        Unit.BYTES.value,
        "h",
    )
    share = rate.lower / grown.value
    if share < _PROBES_EXPLAIN:
        return []
    return [
        untyped(
            kind=FindingCode.OBSERVER_GROWS,
            verdict=VerdictKind.INVALID,
            subject="the bench itself",
            rates=(rate, Rate(per_probe, per_probe - error, per_probe + error, "B", "probe")),
            since_s=float(seen.t_s[0]),
            data={"memory": _ends(grown), "share": share, "probes": len(seen)},
        )
    ]


@dataclass(frozen=True)
class Limit:
    """The most that a metric can reach, in its unit, and in words what says so."""

    size: float
    said: str


@dataclass(frozen=True)
class Exhaustion:
    """Seconds from now until ``limit`` at the estimated rate, and at the ends of its interval."""

    limit: Limit
    expected_s: float
    soonest_s: float
    latest_s: float | None  # None where the interval's lower end does not grow

    def as_data(self) -> dict[str, JsonValue]:
        """For a finding's ``data``: what the rule for stopping early reads."""
        return {
            "expected_s": self.expected_s,
            "soonest_s": self.soonest_s,
            "latest_s": self.latest_s,
            "limit": self.limit.size,
            "limit_is": self.limit.said,
        }


def limit_of(record: RunRecord, metric: str) -> Limit | None:
    """The limit that the run's manifest knows for ``metric``; None if it knows none."""
    limits = record.manifest.limits
    if metric in _PROCESS_MEMORY:
        source = limits.memory_source or ""
        return _known_limit(limits.memory_bytes or 0.0, _LIMIT_SOURCES.get(source, "the limit"))
    if metric == "open_fds":
        return _known_limit(limits.open_files or 0.0, "the process's limit of open files")
    family, _, rest = metric.partition(".")
    pool = rest.partition(".")[0]
    if family == "pool" and pool:
        size = record.manifest.pools.get(pool, 0.0)
        return _known_limit(size, f"the size of the {pool} pool")
    return None


def _known_limit(size: float, said: str) -> Limit | None:
    return Limit(size, said) if size > 0 else None


def time_to_exhaustion(limit: Limit, now: float, rate_per_hour: Rate) -> Exhaustion | None:
    """When ``now`` reaches ``limit`` at ``rate_per_hour``; None if it does not grow.

    Already past the limit is zero seconds away.
    """
    if rate_per_hour.value <= 0:
        return None
    room = max(0.0, limit.size - now) * 3600.0
    latest = room / rate_per_hour.lower if rate_per_hour.lower > 0 else None
    return Exhaustion(limit, room / rate_per_hour.value, room / rate_per_hour.upper, latest)
