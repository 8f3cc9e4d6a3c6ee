"""Findings from the trends: what grows, with what, how much of it the collector would give back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hybridbench.analysis.exhaustion import time_to_exhaustion
from hybridbench.analysis.findings import Finding, MetricResult, Rate, VerdictKind
from hybridbench.analysis.reading import mapping, number
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.shapes import Trend
from hybridbench.analysis.trend import COLLECTIBLE
from hybridbench.analysis.validity import MEMORY
from hybridbench.metrics import Unit, label_of
from hybridbench.units import format_byte_rate, format_bytes, format_count, format_duration

_EXPLAINS = 0.05


def growth_findings(record: RunRecord, results: Sequence[MetricResult]) -> list[Finding]:
    """A finding for each metric that leaks, and for each that could not be decided."""
    findings: list[Finding] = []
    for result in results:
        if result.outcome == "LEAK":
            findings.append(_leak(record, result, results))
        elif result.outcome == "INCONCLUSIVE":
            findings.append(_undecided(result))
    return findings


def with_split(findings: Sequence[Finding], results: Sequence[MetricResult]) -> list[Finding]:
    """Findings of objects that wait for the collector, with the growth that they explain."""
    said = _split_text(results)
    return [
        replace(finding, evidence=(*finding.evidence, said))
        if said and finding.kind == "instances-wait-for-collector"
        else finding
        for finding in findings
    ]


def rate_text(rate: Rate) -> str:
    """``+3.45 GiB/h [3.40 GiB/h, 3.50 GiB/h]``, or the same in counts."""

    def one(value: float) -> str:
        if rate.unit != Unit.BYTES.value:
            return f"{format_count(value)} {rate.unit}/{rate.per}"
        if rate.per == "h":
            return format_byte_rate(value)
        return f"{format_bytes(value)}/{rate.per}"

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
    return f"collectible {rate_text(collectible)} explains {share:.0%} of the memory growth"


def _leak(record: RunRecord, result: MetricResult, results: Sequence[MetricResult]) -> Finding:
    rates: tuple[Rate, ...] = (result.rate_per_hour,)
    if result.rate_per_request is not None:
        rates = (result.rate_per_hour, result.rate_per_request)
    with_work = Trend.WORK.value in result.model
    return Finding(
        kind="growth",
        verdict=VerdictKind.LEAK,
        subject=result.metric,
        title=f"{label_of(result.metric)} grows by {rate_text(result.rate_per_hour)}",
        driver="finishes" if with_work and result.rate_per_request is not None else None,
        rates=rates,
        cause=_cause(result, results),
        evidence=tuple(_evidence(record, result, results)),
        since_s=result.window_s[0],
        data={"model": result.model},
    )


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
    if result.metric != MEMORY:
        return
    said = _split_text(results)
    if said:
        yield said
    limit = number(mapping(record.manifest, "limits"), "memory_bytes")
    left = time_to_exhaustion(limit, result.fit_value[-1], result.rate_per_hour)
    if left is not None:
        yield f"at this rate the limit of {format_bytes(limit)} is reached in {left}"


def _undecided(result: MetricResult) -> Finding:
    longer = ""
    if result.needed_s is not None:
        longer = f"; a judged window of about {format_duration(result.needed_s)} would decide"
    return Finding(
        kind="undecided",
        verdict=VerdictKind.INCONCLUSIVE,
        subject=result.metric,
        title=f"{label_of(result.metric)}: {result.reason}{longer}",
        rates=(result.rate_per_hour,),
        since_s=result.window_s[0],
        data={"needed_s": result.needed_s},
    )
