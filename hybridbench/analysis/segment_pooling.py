"""Combine a run's segments: the exact findings of all, and growth rates weighted by precision.

Two workers are two measurements of one engine.  Each is judged alone; then their growth rates are
pooled by inverse variance, and the interval is widened if they disagree by more than their own
errors allow (Birge's ratio).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.findings.growth import Growth
from hybridbench.analysis.trend.reasons import (
    BoundedTogether,
    Growing,
    GrowingSegments,
    LeakingSegments,
    LeakTogether,
    LimitNotMeasured,
    OpenSegments,
    TooFewSamples,
    TooShort,
    YoungRun,
    bound_of,
)
from hybridbench.analysis.trend.terms import (
    FEW_HANDLES,
    LEAK_AFTER_STEADY_S,
    handles_bound,
    settles_by,
)
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import Unit, spec_of
from hybridbench.foundation.units import format_duration
from hybridbench.records.finding import Finding, Rate, VerdictKind
from hybridbench.records.verdict import DecayResult, MetricResult, Why, leak_kind

_Z95 = 1.959964
# One-sided confidence for a leak, as for a trend in one segment.
_LEAK_LEVEL = 0.999
_MANY = 1e6
# Reasons that only call for a longer segment.
_MERELY_SHORT = (
    TooShort.code,
    TooFewSamples.code,
    YoungRun.code,
    LimitNotMeasured.code,
    Growing.code,
)


@dataclass(frozen=True)
class SegmentResult:
    """Results of one segment of a run, or of all segments together.

    ``notes`` has what a reader must know besides the findings; ``warm`` has the labels, as text, of
    the processes whose warm-up is known to have ended, and is None if none was judged by itself.
    """

    window: Window | None
    metrics: tuple[MetricResult, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    decay: tuple[DecayResult, ...] = ()
    pooled_s: float | None = None  # for several segments: the judged part of the window
    warm: frozenset[str] | None = None

    @property
    def judged_s(self) -> float:
        """The judged time, without gaps between segments and later warm-ups."""
        if self.pooled_s is not None:
            return self.pooled_s
        return 0.0 if self.window is None else self.window.duration_s

    @property
    def is_invalid(self) -> bool:
        return any(finding.verdict is VerdictKind.INVALID for finding in self.findings)

    def is_steady(self, metric: str) -> bool:
        """Whether warm-up had ended where ``metric`` was judged: in its process, or in the run."""
        labels = metric[len(unlabelled(metric)) :]
        if labels and self.warm is not None:
            return labels in self.warm
        return self.window is not None and self.window.steady


def pool_segments(parts: Sequence[SegmentResult]) -> SegmentResult:
    """Combine the results of all segments, in order.

    An inconclusive segment (cut off before its window, or with gaps) contributes only its exact
    findings and its notes; the run is inconclusive only if all segments are.
    """
    proving = _proving(parts)
    rows = [result for part in proving for result in part.metrics]
    names = dict.fromkeys(row.metric for row in rows)
    metrics = tuple(pool_metric([row for row in rows if row.metric == name]) for name in names)
    kept = [
        finding
        for index, part in enumerate(parts)
        for finding in _kept(part, index, any_proves=bool(proving))
    ]
    return SegmentResult(
        window=_window(proving),
        metrics=metrics,
        findings=tuple(_with_pooled_rate(_once(kept), metrics)),
        notes=tuple(_notes(parts)),
        pooled_s=sum(part.judged_s for part in proving),
    )


def pool_metric(results: Sequence[MetricResult]) -> MetricResult:
    """Combine one metric over all segments that measured it.

    It is a LEAK if any segment leaks, or if every segment is too short alone and the pooled rate
    exceeds the growth by which each worker may settle; CLEAN if the pooled bound meets the limit;
    otherwise undecided.
    """
    if len(results) == 1:
        return results[0]
    rates = [result.rate_per_hour for result in results if result.rate_per_hour is not None]
    if len(rates) < len(results):
        # Drop segments with too few samples for a model, which would only widen the interval.
        known = [result for result in results if result.rate_per_hour is not None]
        return pool_metric(known or results[-1:])
    rate, one_sided = _pooled_rate(rates)
    last = results[-1]
    outcome, why = _outcome(results, rates, rate, one_sided)
    # How much longer a single segment must be; the other segments do not count towards that.
    missing = [
        max(one.needed_s - (one.window_s[1] - one.window_s[0]), 0.0)
        for one in results
        if one.needed_s is not None
    ]
    span_s = last.window_s[1] - results[0].window_s[0]
    return MetricResult(
        metric=last.metric,
        outcome=outcome,
        window_s=(results[0].window_s[0], last.window_s[1]),
        rate_per_hour=rate,
        rate_per_request=_per_request(results),
        floor_per_hour=max(result.floor_per_hour for result in results),
        limit_per_hour=last.limit_per_hour,
        model=" | ".join(dict.fromkeys(result.model for result in results)),
        fit_t_s=_broken([result.fit_t_s for result in results], at_end=True),
        fit_value=_broken([result.fit_value for result in results]),
        band_lower=_broken([result.band_lower for result in results]),
        band_upper=_broken([result.band_upper for result in results]),
        needed_s=span_s + min(missing) if missing and outcome == "INCONCLUSIVE" else None,
        why=why,
    )


def _proving(parts: Sequence[SegmentResult]) -> list[SegmentResult]:
    """Return the segments whose rates count, without those cut off during their fill.

    A segment that leaks counts even without a steady event: it was long enough to show a leak.
    """
    valid = [part for part in parts if part.window is not None and not part.is_invalid]
    if not any(_is_steady(part) for part in valid):
        return valid
    return [part for part in valid if _is_steady(part) or _leaks(part)]


def _is_steady(part: SegmentResult) -> bool:
    return part.window is not None and part.window.steady


def _leaks(part: SegmentResult) -> bool:
    return any(result.outcome == VerdictKind.LEAK for result in part.metrics)


def _pooled_rate(rates: Sequence[Rate]) -> tuple[Rate, float]:
    """Return the pooled rate with its 95% interval, and its one-sided bound at the leak level.

    If models disagree, an interval may reach much farther to one side, so each side is pooled
    separately.
    """
    value = np.array([rate.value for rate in rates])
    below = value - np.array([rate.lower for rate in rates])
    above = np.array([rate.upper for rate in rates]) - value
    error = np.maximum((below + above) / (2.0 * _Z95), 1e-12 * (1.0 + np.abs(value)))
    weight = error**-2.0 / float(np.sum(error**-2.0))
    mean = float(np.sum(weight * value))
    # The Birge ratio widens the interval if the segments disagree by more than their errors.
    chi2 = float(np.sum(((value - mean) / error) ** 2))
    spread = max(1.0, float(np.sqrt(chi2 / (value.size - 1))))
    known = weight > 0.0  # without an infinite interval
    low, high = (
        spread * max(float(np.linalg.norm(weight[known] * side[known])), 1e-12)
        for side in (below, above)
    )
    one_sided = mean - t_quantile(_LEAK_LEVEL, _MANY) / _Z95 * low
    first = rates[0]
    return Rate(mean, mean - low, mean + high, first.unit, first.per), one_sided


def _outcome(
    results: Sequence[MetricResult], rates: Sequence[Rate], rate: Rate, one_sided: float
) -> tuple[str, Why | None]:
    count = len(results)
    leaking = [result for result in results if result.outcome == "LEAK"]
    if leaking:
        last = leaking[-1].why
        reason = LeakingSegments(leaking=len(leaking), segments=count, last=last)
        return "LEAK", reason.why()
    settling = _settling_rate(results)
    # A fading rate, or a fill without a steady event, is not a leak, however many segments show it;
    # nor is the growth of each worker in the first minutes after its start.
    merely_short = all(
        result.why is not None and result.why.code in _MERELY_SHORT for result in results
    )
    long_enough = all(end - start >= LEAK_AFTER_STEADY_S for start, end in _windows(results))
    agree = all(one.value > settling for one in rates)
    if merely_short and long_enough and agree and one_sided > settling:
        return "LEAK", LeakTogether(segments=count).why()
    others = [r for r in results if r.outcome not in ("CLEAN", "INCONCLUSIVE")]
    if others:
        return others[-1].outcome, others[-1].why
    if rate.lower > settling:
        return "INCONCLUSIVE", GrowingSegments(segments=count).why()
    bound = _bound(results)
    # Without a limit, segments that are all clean are clean together, even if their rates differ.
    is_clean = results[-1].limit_per_hour is None and all(r.outcome == "CLEAN" for r in results)
    if is_clean or (bound is not None and rate.upper < bound):
        return "CLEAN", BoundedTogether(segments=count, bound=bound).why()
    return "INCONCLUSIVE", OpenSegments(segments=count, last=results[-1].why).why()


def _settling_rate(results: Sequence[MetricResult]) -> float:
    """Return the rate per hour by which healthy workers may settle, each after its own start."""
    hours = sum(end - start for start, end in _windows(results)) / 3600.0
    floor = max(result.floor_per_hour for result in results)
    if results[0].unit == Unit.BYTES.value:
        settles = sum(
            settles_by(r.fit_value[0] if r.fit_value else 0.0, r.window_s[1] - r.window_s[0])
            for r in results
        )
    else:
        settles = FEW_HANDLES * len(results) if _is_handles(results[0]) else 0.0
    return max(floor, settles / max(hours, 1e-9))


def _windows(results: Sequence[MetricResult]) -> list[tuple[float, float]]:
    return [result.window_s for result in results]


def _is_handles(result: MetricResult) -> bool:
    spec = spec_of(unlabelled(result.metric))
    return spec is not None and spec.handles


def _bound(results: Sequence[MetricResult]) -> float | None:
    """Return the bound for CLEAN; None if there is none.

    It is the limit, the bound of handles, or the largest tolerance of a segment that is clean.
    """
    limit = results[-1].limit_per_hour
    if limit is not None:
        return limit
    if _is_handles(results[-1]):
        return handles_bound(sum(end - start for start, end in _windows(results)))
    clean = (bound_of(result) for result in results if result.outcome == "CLEAN")
    return max((bound for bound in clean if bound is not None), default=None)


def _per_request(results: Sequence[MetricResult]) -> Rate | None:
    rates = [r.rate_per_request for r in results if r.rate_per_request is not None]
    return _pooled_rate(rates)[0] if len(rates) > 1 else next(iter(rates), None)


def _broken(lines: Sequence[tuple[float, ...]], *, at_end: bool = False) -> tuple[float, ...]:
    """Join the lines of all segments, with a NaN at each border (for times, the border's time)."""
    joined: list[float] = []
    for line in (line for line in lines if line):
        if joined:
            joined.append(joined[-1] if at_end else float("nan"))
        joined.extend(line)
    return tuple(joined)


def _kept(part: SegmentResult, index: int, *, any_proves: bool) -> Iterable[Finding]:
    """Yield the findings of a segment that count for the run."""
    for finding in part.findings:
        void = finding.verdict in (VerdictKind.INVALID, VerdictKind.INCONCLUSIVE)
        doubtful = part.is_invalid and not finding.exact
        if any_proves and (void or doubtful):
            continue
        yield replace(finding, segments=(index + 1,))


def _once(findings: Sequence[Finding]) -> Iterable[Finding]:
    """Merge findings that recur in several segments; keep the one with most rates, or the last."""
    by_key: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        by_key.setdefault((finding.verdict, leak_kind(finding.kind), finding.subject), []).append(
            finding
        )
    for same in by_key.values():
        strongest = max(same, key=lambda finding: (len(finding.rates), finding.since_s or 0.0))
        yield replace(strongest, segments=tuple(n for finding in same for n in finding.segments))


def _with_pooled_rate(
    findings: Iterable[Finding], results: Sequence[MetricResult]
) -> Iterable[Finding]:
    """Replace the rates of growth measured in several segments by the pooled rates."""
    rates = {
        (result.metric, rate.per): rate
        for result in results
        for rate in (result.rate_per_hour, result.rate_per_request)
        if rate is not None
    }
    for finding in findings:
        pooled = (rates.get((finding.subject, rate.per), rate) for rate in finding.rates)
        yield replace(finding, rates=tuple(pooled)) if finding.kind == Growth.kind else finding


def _window(proving: Sequence[SegmentResult]) -> Window | None:
    windows = [part.window for part in proving if part.window is not None]
    if not windows:
        return None
    return Window(windows[0].start_s, windows[-1].end_s, all(window.steady for window in windows))


def _notes(parts: Sequence[SegmentResult]) -> Iterable[str]:
    judged = [
        f"segment {number} from {format_duration(part.window.start_s)} to "
        f"{format_duration(part.window.end_s)}"
        for number, part in enumerate(parts, start=1)
        if part.window is not None
    ]
    yield f"judged: {', '.join(judged)}" if judged else "no segment was long enough to be judged"
    for number, part in enumerate(parts, start=1):
        for finding in part.findings:
            if finding.verdict is VerdictKind.INVALID:
                yield f"segment {number}: not conclusive by itself: {finding.title}"
        yield from (f"segment {number}: {note}" for note in part.notes)
