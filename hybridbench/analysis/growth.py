"""Findings from the trends: what grows, with what, how much of it the collector would give back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hybridbench.analysis.at_rest import AT_REST, judged_samples
from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.counters import EventCounters
from hybridbench.analysis.drivers import Driver, Hints, find_driver
from hybridbench.analysis.exhaustion import Exhaustion, Limit, limit_of, time_to_exhaustion
from hybridbench.analysis.findings import WAITING, Finding, MetricResult, Rate, VerdictKind
from hybridbench.analysis.pools import in_flight
from hybridbench.analysis.record import JsonValue, RunRecord
from hybridbench.analysis.trend import COLLECTIBLE
from hybridbench.analysis.validity import MEMORY
from hybridbench.analysis.window import judged_window
from hybridbench.metrics import Unit, label_of
from hybridbench.units import digits_apart, format_bytes, format_count, format_duration

_EXPLAINS = 0.05


def growth_findings(
    record: RunRecord,
    results: Sequence[MetricResult],
    counters: EventCounters,
    boundary: Boundary,
) -> list[Finding]:
    """A finding for each metric that leaks, and for each that could not be decided.

    A leak stands without its driver where the search for one fails.
    """
    findings: list[Finding] = []
    for result in results:
        part = f"the growth of {result.metric}"
        if result.outcome == "LEAK":
            drives = f"what drives {result.metric}"
            driver = boundary.value(drives, None, _driver, record, result, counters)
            leak = boundary.value(part, None, _leak, record, result, results, driver)
            findings += [] if leak is None else [leak]
        elif result.outcome == "INCONCLUSIVE":
            findings.append(_undecided(result))
    return findings


def with_split(findings: Sequence[Finding], results: Sequence[MetricResult]) -> list[Finding]:
    """Findings of objects that wait for the collector, with the growth that they explain."""
    said = _split_text(results)
    return [
        replace(finding, evidence=(*finding.evidence, said))
        if said and finding.kind == WAITING
        else finding
        for finding in findings
    ]


def rate_text(rate: Rate) -> str:
    """``+3.45 GiB/h [3.40 GiB/h, 3.50 GiB/h]``, or the same in counts."""
    form = format_bytes if rate.unit == Unit.BYTES.value else format_count
    unit = "" if rate.unit == Unit.BYTES.value else f" {rate.unit}"
    digits = digits_apart(form, (rate.value, rate.lower, rate.upper))

    def one(value: float) -> str:
        return f"{form(value, digits)}{unit}/{rate.per}"

    return f"{'+' * (rate.value >= 0)}{one(rate.value)} [{one(rate.lower)}, {one(rate.upper)}]"


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


def _split_text(results: Sequence[MetricResult]) -> str:
    explained = explained_share(results)
    if explained is None:
        return ""
    share, collectible = explained
    if share > 1.0:
        return (
            f"collectible memory grows by {rate_text(collectible)}, faster than private memory: "
            "it accounts for all of the growth and reuses memory that was freed before"
        )
    return f"collectible {rate_text(collectible)} explains {share:.0%} of the memory growth"


def _driver(record: RunRecord, result: MetricResult, counters: EventCounters) -> Driver | None:
    """The event with which the metric rises in the judged window; None if time does as well."""
    window, rate = judged_window(record), result.rate_per_hour
    if window is None or rate is None:
        return None
    t, value = judged_samples(window, record.series[result.metric])
    sign = 1.0 if rate.value >= 0 else -1.0
    emptied = result.metric == COLLECTIBLE
    load = () if result.metric == AT_REST else in_flight(record)
    hints = Hints(load=load, emptied=emptied)
    return find_driver(t, sign * value, counters, hints)


def _leak(
    record: RunRecord,
    result: MetricResult,
    results: Sequence[MetricResult],
    driver: Driver | None,
) -> Finding:
    rate = result.rate_per_hour
    assert rate is not None, "nothing is called a leak without a rate"
    rates: tuple[Rate, ...] = (rate,)
    if driver is not None:
        rates = (*rates, driver.rate(rate.unit))
    if result.rate_per_request is not None and (driver is None or driver.counter != "finishes"):
        rates = (*rates, result.rate_per_request)
    per_event = "" if driver is None else f"; {rate_text(rates[1])}"
    return Finding(
        kind="growth",
        verdict=VerdictKind.LEAK,
        subject=result.metric,
        title=f"{label_of(result.metric)} grows by {rate_text(rate)}{per_event}",
        driver=None if driver is None else driver.counter,
        rates=rates,
        cause=_cause(result, results),
        evidence=(
            *_evidence(record, result, results),
            *(driver.evidence() if driver is not None else ()),
        ),
        since_s=result.window_s[0],
        data=_data(record, result),
    )


def _data(record: RunRecord, result: MetricResult) -> dict[str, JsonValue]:
    ends = _runs_out(record, result)
    known: dict[str, JsonValue] = {"model": result.model, "q_value": result.q_value}
    return known if ends is None else {**known, "exhaustion": ends[0].as_data(ends[1])}


def _cause(result: MetricResult, results: Sequence[MetricResult]) -> str:
    explained = explained_share(results) if result.metric == MEMORY else None
    if explained is not None and explained[0] > 0.5:
        return "garbage that waits for a full collection"
    return ""


def _evidence(
    record: RunRecord, result: MetricResult, results: Sequence[MetricResult]
) -> Iterable[str]:
    start, end = result.window_s
    yield f"{format_duration(end - start)} judged; best model: {result.model}; {result.reason}"
    if result.rate_per_request is not None:
        yield f"{rate_text(result.rate_per_request)}"
    said = _split_text(results) if result.metric == MEMORY else ""
    if said:
        yield said
    if result.q_value is not None:
        yield f"counting all {_tested(results)} gated metrics, chance does this {_odds(result)}"
    ends = _runs_out(record, result)
    if ends is not None:
        yield _exhaustion_text(result, ends)


def _tested(results: Sequence[MetricResult]) -> int:
    return sum(result.q_value is not None for result in results)


def _odds(result: MetricResult) -> str:
    q = max(result.q_value or 0.0, 1e-12)
    return "less than once in a million runs" if q < 1e-6 else f"once in {1.0 / q:,.0f} runs"


def _runs_out(record: RunRecord, result: MetricResult) -> tuple[Exhaustion, Limit] | None:
    limit = limit_of(record, result.metric)
    rate = result.rate_per_hour
    if limit is None or rate is None or not result.fit_value:
        return None
    left = time_to_exhaustion(limit.size, result.fit_value[-1], rate)
    return None if left is None else (left, limit)


def _exhaustion_text(result: MetricResult, ends: tuple[Exhaustion, Limit]) -> str:
    left, limit = ends
    in_bytes = result.unit == Unit.BYTES.value
    size = format_bytes(limit.size) if in_bytes else format_count(limit.size)
    return f"at this rate the limit of {size} is reached in {left} ({limit.said})"


def _undecided(result: MetricResult) -> Finding:
    longer = ""
    if result.needed_s is not None:
        more_s = max(result.needed_s - (result.window_s[1] - result.window_s[0]), 1.0)
        longer = f"; about {format_duration(more_s)} more would decide"
    return Finding(
        kind="undecided",
        verdict=VerdictKind.INCONCLUSIVE,
        subject=result.metric,
        title=f"{label_of(result.metric)}: {result.reason}{longer}",
        rates=() if result.rate_per_hour is None else (result.rate_per_hour,),
        since_s=result.window_s[0],
        data={"needed_s": result.needed_s},
    )
