"""One answer from several segments: exact findings of any, rates of all weighed by precision.

Two workers are two measurements of one engine.  Each is judged alone; then rates of growth are
pooled by inverse variance, with the interval widened where they disagree by more than their own
errors allow (Birge's ratio).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.findings import (
    Finding,
    MetricResult,
    Rate,
    Verdict,
    VerdictKind,
    leak_kind,
)
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.analysis.trend.metric_trend import settles_by
from hybridbench.metrics import Unit
from hybridbench.units import format_duration

_Z95 = 1.959964
# One-sided, as for a trend in one segment.
_LEAK_LEVEL = 0.999
_MANY = 1e6


@dataclass(frozen=True)
class PooledSegments:
    """What the segments say together.

    Args:
        window: from the start of the first judged to the end of the last.
        judged_s: how much of it was judged.
        results: one per metric.
        untold: those of them that no finding tells yet.
        longest: position of the segment with the longest judged window.
        findings: those of the segments that are the run's.
        notes: what a reader must know of each segment.
    """

    window: Window | None
    judged_s: float
    results: tuple[MetricResult, ...]
    untold: tuple[MetricResult, ...]
    longest: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def pool_segments(parts: Sequence[RunRecord], verdicts: Sequence[Verdict]) -> PooledSegments:
    """Put the verdicts of all segments together, in order.

    A segment that proves nothing (cut off before its window, gaps) gives its exact findings and
    its notes; only if none proves anything does that hold for the run.  What is known of a metric
    only from all segments together is left for the caller to tell (``untold``).
    """
    proving = _proving(parts, verdicts)
    results = tuple(_pooled_metrics(proving))
    kept = [
        finding
        for index, verdict in enumerate(verdicts)
        for finding in _kept(verdict, index, any_proves=bool(proving))
    ]
    findings = tuple(_with_pooled_rate(list(_once(kept)), results))
    told = {finding.subject for finding in findings}
    return PooledSegments(
        window=_window(parts, verdicts, proving),
        judged_s=sum(_length(verdict) for verdict in proving),
        results=results,
        untold=tuple(result for result in results if result.metric not in told),
        longest=max(range(len(verdicts)), key=lambda index: _length(verdicts[index])),
        findings=findings,
        notes=tuple(_notes(verdicts)),
    )


def pool_metric(results: Sequence[MetricResult]) -> MetricResult:
    """One metric over all segments that measured it.

    LEAK if a segment says so, or if none saw enough alone and the pooled rate clears the floor;
    CLEAN if the pooled bound holds; otherwise undecided.
    """
    if len(results) == 1:
        return results[0]
    rates = [result.rate_per_hour for result in results if result.rate_per_hour is not None]
    if len(rates) < len(results):
        # Too few samples for a model bound nothing: they would only blur those that have one.
        known = [result for result in results if result.rate_per_hour is not None]
        return pool_metric(known or results[-1:])
    rate, one_sided = _pooled_rate(rates)
    last = results[-1]
    outcome, reason = _outcome(results, rates, rate, one_sided)
    needed = [result.needed_s for result in results if result.needed_s is not None]
    return MetricResult(
        metric=last.metric,
        outcome=outcome,
        reason=reason,
        window_s=(results[0].window_s[0], last.window_s[1]),
        rate_per_hour=rate,
        rate_per_request=_per_request(results),
        floor_per_hour=max(result.floor_per_hour for result in results),
        promise_per_hour=last.promise_per_hour,
        model=" | ".join(dict.fromkeys(result.model for result in results)),
        fit_t_s=_broken([result.fit_t_s for result in results], at_end=True),
        fit_value=_broken([result.fit_value for result in results]),
        band_lower=_broken([result.band_lower for result in results]),
        band_upper=_broken([result.band_upper for result in results]),
        needed_s=min(needed) if needed and outcome == "INCONCLUSIVE" else None,
    )


def _proving(parts: Sequence[RunRecord], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The segments whose rates count; one that was cut off while it filled would only blur them."""
    valid = [
        (part.last_event("steady") is not None, verdict)
        for part, verdict in zip(parts, verdicts, strict=True)
        if verdict.window_s is not None and not _is_invalid(verdict)
    ]
    steady = [verdict for is_steady, verdict in valid if is_steady]
    return steady or [verdict for _, verdict in valid]


def _is_invalid(verdict: Verdict) -> bool:
    return any(finding.verdict is VerdictKind.INVALID for finding in verdict.findings)


def _pooled_metrics(verdicts: Sequence[Verdict]) -> Iterable[MetricResult]:
    names = dict.fromkeys(result.metric for verdict in verdicts for result in verdict.metrics)
    for name in names:
        found = [r for verdict in verdicts for r in verdict.metrics if r.metric == name]
        yield pool_metric(found)


def _pooled_rate(rates: Sequence[Rate]) -> tuple[Rate, float]:
    """The pooled rate with its 95 % interval, and its one-sided bound at the level of a leak."""
    value = np.array([rate.value for rate in rates])
    half = np.array([(rate.upper - rate.lower) / 2.0 for rate in rates])
    error = np.maximum(half / _Z95, 1e-12 * (1.0 + np.abs(value)))
    weight = error**-2.0
    mean = float(np.sum(weight * value) / np.sum(weight))
    spread = _birge(value, error, mean)
    pooled_error = spread * float(np.sum(weight)) ** -0.5
    lower, upper = mean - _Z95 * pooled_error, mean + _Z95 * pooled_error
    one_sided = mean - t_quantile(_LEAK_LEVEL, _MANY) * pooled_error
    first = rates[0]
    return Rate(mean, lower, upper, first.unit, first.per), one_sided


def _birge(value: FloatArray, error: FloatArray, mean: float) -> float:
    chi2 = float(np.sum(((value - mean) / error) ** 2))
    return max(1.0, float(np.sqrt(chi2 / (value.size - 1))))


def _outcome(
    results: Sequence[MetricResult], rates: Sequence[Rate], rate: Rate, one_sided: float
) -> tuple[str, str]:
    count = len(results)
    leaking = [result for result in results if result.outcome == "LEAK"]
    if leaking:
        return "LEAK", f"in {len(leaking)} of {count} segments: {leaking[-1].reason}"
    floor = max(result.floor_per_hour for result in results)
    # A rate that fades, or a fill without its steady event, stays one however often it is seen.
    merely_short = all(result.reason.startswith(("too-short", "growing")) for result in results)
    agree = all(one.value > floor for one in rates)
    if merely_short and agree and one_sided > floor:
        return "LEAK", f"no segment is long enough alone; all {count} grow, and together surely"
    others = [r for r in results if r.outcome not in ("CLEAN", "INCONCLUSIVE")]
    if others:
        return others[-1].outcome, others[-1].reason
    bound = _bound(results, rates)
    if rate.lower > _settling_rate(results):
        return (
            "INCONCLUSIVE",
            f"over {count} segments: they grow together, and none is a leak alone",
        )
    if bound is not None and rate.upper < bound:
        return "CLEAN", f"{count} segments together bound the growth"
    return "INCONCLUSIVE", f"over {count} segments: {results[-1].reason}"


def _settling_rate(results: Sequence[MetricResult]) -> float:
    """The rate per hour by which healthy workers may settle, each of them anew after its start."""
    hours = sum(end - start for start, end in (r.window_s for r in results)) / 3600.0
    floor = max(result.floor_per_hour for result in results)
    if results[0].unit != Unit.BYTES.value:
        return floor
    settles = sum(
        settles_by(r.fit_value[0] if r.fit_value else 0.0, r.window_s[1] - r.window_s[0])
        for r in results
    )
    return max(floor, settles / max(hours, 1e-9))


def _bound(results: Sequence[MetricResult], rates: Sequence[Rate]) -> float | None:
    """What CLEAN demands: the promise, or what was enough for a segment that is clean alone."""
    promise = results[-1].promise_per_hour
    if promise is not None:
        return promise
    pairs = zip(results, rates, strict=True)
    clean = [rate.upper for result, rate in pairs if result.outcome == "CLEAN"]
    return max(clean) if clean else None


def _per_request(results: Sequence[MetricResult]) -> Rate | None:
    rates = [r.rate_per_request for r in results if r.rate_per_request is not None]
    return _pooled_rate(rates)[0] if len(rates) > 1 else next(iter(rates), None)


def _broken(lines: Sequence[tuple[float, ...]], *, at_end: bool = False) -> tuple[float, ...]:
    """The lines one after the other with a hole between them: a NaN, at the time of the border."""
    joined: list[float] = []
    for line in (line for line in lines if line):
        if joined:
            joined.append(joined[-1] if at_end else float("nan"))
        joined.extend(line)
    return tuple(joined)


def _kept(verdict: Verdict, index: int, *, any_proves: bool) -> Iterable[Finding]:
    """The findings of a segment that are the run's, whatever other segments say."""
    for finding in verdict.findings:
        void = finding.verdict in (VerdictKind.INVALID, VerdictKind.INCONCLUSIVE)
        if void and any_proves:
            continue
        where = f"in segment {index + 1}"
        yield replace(finding, evidence=(*finding.evidence, where))


def _once(findings: Sequence[Finding]) -> Iterable[Finding]:
    """The same finding in several segments is one; the last has seen it longest or latest."""
    by_key: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        by_key.setdefault((finding.verdict, leak_kind(finding.kind), finding.subject), []).append(
            finding
        )
    for same in by_key.values():
        strongest = max(same, key=lambda finding: (len(finding.rates), finding.since_s or 0.0))
        others = [f"{f.evidence[-1]} as well: {f.title}" for f in same if f is not strongest]
        yield replace(strongest, evidence=(*strongest.evidence, *others))


def _with_pooled_rate(
    findings: Iterable[Finding], results: Sequence[MetricResult]
) -> Iterable[Finding]:
    """Growth that several segments measured is told with the rate of all of them."""
    rates = {result.metric: result.rate_per_hour for result in results}
    for finding in findings:
        rate = rates.get(finding.subject)
        if finding.kind == "growth" and rate is not None and finding.rates[:1] != (rate,):
            yield replace(finding, rates=(rate, *finding.rates[1:]))
        else:
            yield finding


def _window(
    parts: Sequence[RunRecord], verdicts: Sequence[Verdict], proving: Sequence[Verdict]
) -> Window | None:
    windows = [v.window_s for v in proving if v.window_s is not None]
    if not windows:
        return None
    steady = all(
        part.last_event("steady") is not None
        for part, verdict in zip(parts, verdicts, strict=True)
        if verdict in proving
    )
    return Window(windows[0][0], windows[-1][1], steady)


def _length(verdict: Verdict) -> float:
    return 0.0 if verdict.window_s is None else verdict.window_s[1] - verdict.window_s[0]


def _notes(verdicts: Sequence[Verdict]) -> Iterable[str]:
    judged = []
    for index, verdict in enumerate(verdicts):
        if verdict.window_s is not None:
            start, end = (format_duration(t) for t in verdict.window_s)
            judged.append(f"segment {index + 1} from {start} to {end}")
    if judged:
        yield "judged: " + ", ".join(judged)
    else:
        yield "no segment was long enough to be judged"
    for index, verdict in enumerate(verdicts):
        for finding in verdict.findings:
            if finding.verdict is VerdictKind.INVALID:
                yield f"segment {index + 1} proves nothing by itself: {finding.title}"
        yield from (f"segment {index + 1}: {note}" for note in verdict.notes)
