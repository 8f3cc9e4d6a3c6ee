"""Check a run's thresholds (met, missed or undecided) against confidence intervals, not points.

A threshold adds to the requirements of the analysis; it never removes a finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np

from hybridbench.analysis.drivers.rates import mean_rate
from hybridbench.analysis.facts.counters import EventCounters, singular
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.window import LEAK_WITHOUT_STEADY_S, Window
from hybridbench.analysis.findings.thresholds import ThresholdNotMet, threshold_text
from hybridbench.analysis.levels import CONFIDENCE, Measured, finite, judged_values, level
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.decay import half_width
from hybridbench.analysis.trend.metric_trend import LONGEST_ADVICE, Effort, judge_trend
from hybridbench.analysis.trend.terms import LEAK_AFTER_STEADY_S
from hybridbench.analysis.trend.work_cost import DERIVED_METRICS, work_blocks
from hybridbench.foundation.metrics import Kind, Unit
from hybridbench.foundation.thresholds import (
    EXTREMES,
    GROWTH,
    HOUR,
    SHARES,
    Stat,
    Threshold,
    parse_threshold,
)
from hybridbench.records.finding import Finding, Rate, VerdictKind
from hybridbench.records.threshold_result import (
    Missing,
    ThresholdOutcome,
    ThresholdResult,
    Unmeasured,
    UnmeasuredCode,
)
from hybridbench.records.verdict import DecayResult, MetricResult

# Requests can pile up without a leak.
_LOAD = ("running_requests", "waiting_requests", "max_running_requests")
_HELD = (Unit.BYTES, Unit.COUNT, Unit.SLOTS)
_LEAST_LONGER = 1.3
_FEWEST_BLOCKS = 8


@dataclass(frozen=True)
class CheckedThresholds:
    """Results and findings of a run's thresholds."""

    results: tuple[ThresholdResult, ...]
    findings: tuple[Finding, ...]


def check_thresholds(
    facts: Facts, metrics: Sequence[MetricResult], decay: Sequence[DecayResult]
) -> CheckedThresholds:
    """Check the thresholds in the manifest against the run's samples.

    Slopes of gated metrics and changes of cost are taken from the run's verdict, minima and maxima
    from all segments, and everything else from the segment that was judged longest.
    """
    longest = facts.longest
    results: list[ThresholdResult] = []
    findings: list[Finding] = []
    for text in facts.record.manifest.thresholds:
        try:
            threshold = parse_threshold(text)
        except ValueError as error:
            # A later version may have written it; an uncheckable threshold must not pass.
            unknown = ThresholdNotMet(threshold=text, error=str(error))
            findings.append(Finding(unknown, VerdictKind.INCONCLUSIVE, text))
            continue
        result = _judged(_Run(longest, facts.segments, metrics, decay), threshold)
        results.append(result)
        findings += _finding(threshold, result, longest.window)
    return CheckedThresholds(tuple(results), tuple(findings))


def gate(threshold: Threshold, measured: Measured, judged_s: float = 0.0) -> ThresholdResult:
    """Check ``threshold`` against a value with its confidence interval.

    Args:
        measured: the value, in the limit's units.
        judged_s: duration of the judged window; ``needed_s`` is a multiple of it.
    """
    ends = (measured.lower, measured.upper)
    if threshold.spec.erratic:
        outcome = ThresholdOutcome.NOT_GATED
    elif all(threshold.holds(end) for end in ends):
        outcome = ThresholdOutcome.MET
    elif any(threshold.holds(end) for end in ends):
        outcome = ThresholdOutcome.UNDECIDED
    else:
        outcome = ThresholdOutcome.MISSED
    needed_s = None
    if outcome is ThresholdOutcome.UNDECIDED:
        needed_s = _needed_s(threshold, measured, judged_s)
    result = replace(
        _result(threshold, outcome),
        value=finite(measured.value),
        lower=finite(measured.lower),
        upper=finite(measured.upper),
        needed_s=needed_s,
    )
    return replace(result, said=threshold_text(result))


def _result(threshold: Threshold, outcome: ThresholdOutcome) -> ThresholdResult:
    """Return a result with only the fields that need no measurement."""
    in_shares = threshold.stat in SHARES
    return ThresholdResult(
        text=threshold.text,
        metric=threshold.metric,
        stat=threshold.stat.value,
        outcome=outcome,
        limit=threshold.limit,
        unit=Unit.RATIO.value if in_shares else threshold.spec.unit.value,
        per=threshold.per,
    )


@dataclass(frozen=True)
class _Run:
    """A run: ``facts`` are those of the segment that was judged longest."""

    facts: Facts
    segments: Sequence[Facts]
    metrics: Sequence[MetricResult]
    decay: Sequence[DecayResult]


class _NotMeasuredError(Exception):
    """There is no measurement to check a threshold against."""

    def __init__(self, code: UnmeasuredCode, missing: Missing | None = None) -> None:
        super().__init__(code)
        self.why = Unmeasured(code, missing or Missing())


def _judged(run: _Run, threshold: Threshold) -> ThresholdResult:
    try:
        judged_s = 0.0 if run.facts.window is None else run.facts.window.duration_s
        return gate(threshold, _measure(run, threshold), judged_s)
    except _NotMeasuredError as error:
        erratic = threshold.spec.erratic
        outcome = ThresholdOutcome.NOT_GATED if erratic else ThresholdOutcome.UNDECIDED
        result = replace(_result(threshold, outcome), unmeasured=error.why)
        return replace(result, said=threshold_text(result))


def _measure(run: _Run, threshold: Threshold) -> Measured:
    record, window = run.facts.record, run.facts.window
    if threshold.stat is Stat.RATIO:
        raise _NotMeasuredError(UnmeasuredCode.NEEDS_TWO_VERSIONS)
    if window is None:
        raise _NotMeasuredError(UnmeasuredCode.NO_WINDOW)
    if threshold.spec.kind is Kind.QUOTIENT:
        return _quotient(run, window, threshold)
    if threshold.metric not in record.series:
        # Only members of a family can be misspelt here; declared names are merely not measured.
        sampled = list(record.series) if "*" in threshold.spec.name else []
        near = get_close_matches(threshold.metric, sampled, n=1)
        missing = Missing(metric=threshold.metric, near=tuple(near))
        raise _NotMeasuredError(UnmeasuredCode.NEVER_SAMPLED, missing)
    if threshold.stat in GROWTH:
        found = _growth(run, window, threshold)
        if threshold.stat is Stat.SLOPE:
            return found
        end = found.lower if threshold.stat is Stat.SLOPE_LOWER else found.upper
        return Measured(end, end, end)
    measured = level(_values(run, window, threshold), threshold.stat)
    if measured is None:
        raise _NotMeasuredError(UnmeasuredCode.TOO_FEW_SAMPLES)
    return measured


def _values(run: _Run, window: Window, threshold: Threshold) -> FloatArray:
    """Return the judged samples; for an extreme those of every segment, without warm-ups."""
    parts = [(run.facts.record, window)]
    if threshold.stat in EXTREMES:
        known = [(part.record, part.window) for part in run.segments if part.window is not None]
        parts = [(r, w) for r, w in known if w.steady or not window.steady]
    return np.concatenate([judged_values(r, w, threshold.metric) for r, w in parts])


def _growth(run: _Run, window: Window, threshold: Threshold) -> Measured:
    """Growth in the window, per hour or per event."""
    if threshold.spec.kind is Kind.COUNTER:
        return _counted(run.facts, window, threshold)
    known = [r for r in run.metrics if r.metric == threshold.metric]
    # For a member of a family, use the family's declaration under the member's name.
    spec = replace(threshold.spec, name=threshold.metric)
    result = known[0] if known else judge_trend(run.facts, spec, Effort())
    rate = result.rate_per_hour
    if rate is None:
        raise _NotMeasuredError(UnmeasuredCode.TOO_FEW_SAMPLES)
    low, high = rate.lower, rate.upper
    # A trend's rate is positive if the metric worsens; a threshold applies to the value itself.
    value = rate.value if spec.higher_is_worse else -rate.value
    if not spec.higher_is_worse:
        low, high = -high, -low
    scale = 1.0
    if threshold.per != HOUR:
        # The trend may span less than the window, from a metric's first sample, or other segments.
        span_s = max(window.start_s, result.window_s[0]), min(window.end_s, result.window_s[1])
        hours = (span_s[1] - span_s[0]) / 3600.0
        scale = hours / _events(run.facts.counters, span_s, threshold.per)
    return Measured(value * scale, low * scale, high * scale, 1.5)


def _counted(facts: Facts, window: Window, threshold: Threshold) -> Measured:
    """Mean rate of a counter: its total increase over the hours or events that passed."""
    t, value = window.samples(facts.record.series[threshold.metric])
    if t.size < 2:
        raise _NotMeasuredError(UnmeasuredCode.TOO_FEW_SAMPLES)
    if threshold.per == HOUR:
        passed = np.diff(t) / 3600.0
    else:
        _events(facts.counters, (window.start_s, window.end_s), threshold.per)
        passed = np.diff(facts.counters.at(threshold.per, t))
    found = mean_rate(np.diff(value), passed)
    if found is None or found.ends is None:
        raise _NotMeasuredError(UnmeasuredCode.TOO_FEW_SAMPLES)
    return Measured(found.value, *found.ends, 0.5)


def _events(counters: EventCounters, span_s: tuple[float, float], counter: str) -> float:
    if counter not in counters.series:
        near = get_close_matches(counter, counters.names, n=1)
        missing = Missing(counter=counter, near=tuple(near))
        raise _NotMeasuredError(UnmeasuredCode.NOT_COUNTED, missing)
    first, last = counters.at(counter, np.array(span_s))
    if last <= first:
        raise _NotMeasuredError(UnmeasuredCode.NO_EVENT, Missing(counter=counter))
    return float(last - first)


def _quotient(run: _Run, window: Window, threshold: Threshold) -> Measured:
    derived = next(d for d in DERIVED_METRICS if d.name == threshold.metric)
    if threshold.stat is Stat.LAST_FIRST_RATIO:
        return _changed(run.decay, threshold)
    blocks = work_blocks(run.facts.record, derived, window.start_s, window.end_s)
    if blocks is None or len(blocks) < _FEWEST_BLOCKS:
        raise _NotMeasuredError(UnmeasuredCode.TOO_LITTLE_WORK)
    half = half_width(blocks, CONFIDENCE)
    return Measured(blocks.total, blocks.total - half, blocks.total + half, 0.5)


def _changed(decay: Sequence[DecayResult], threshold: Threshold) -> Measured:
    found = next((r for r in decay if r.name == threshold.metric), None)
    if found is None or found.change is None:
        raise _NotMeasuredError(UnmeasuredCode.TOO_LITTLE_WORK)
    change, low, high = found.change, found.change_lower, found.change_upper
    assert low is not None
    assert high is not None
    if threshold.spec.higher_is_worse:
        return Measured(1.0 + change, 1.0 + low, 1.0 + high, 1.5)
    return Measured(1.0 / (1.0 + change), 1.0 / (1.0 + high), 1.0 / (1.0 + low), 1.5)


def _finding(
    threshold: Threshold, result: ThresholdResult, window: Window | None
) -> Iterable[Finding]:
    if result.outcome in (ThresholdOutcome.MET, ThresholdOutcome.NOT_GATED):
        return
    missed = result.outcome is ThresholdOutcome.MISSED
    kind = VerdictKind.DEGRADED if missed else VerdictKind.INCONCLUSIVE
    needed_s = result.needed_s
    settling_s = None
    if missed and _is_growth_of_memory(threshold) and window is not None:
        shortest = LEAK_AFTER_STEADY_S if window.steady else LEAK_WITHOUT_STEADY_S
        if window.duration_s < shortest:
            # As for every trend: a settling allocator also looks like this.
            kind, needed_s = VerdictKind.INCONCLUSIVE, shortest
            settling_s = shortest
        elif threshold.stat is Stat.SLOPE:
            kind = VerdictKind.LEAK
    rates: tuple[Rate, ...] = ()
    if threshold.stat is Stat.SLOPE and result.value is not None:
        per = HOUR if threshold.per == HOUR else singular(threshold.per)
        lower = -math.inf if result.lower is None else result.lower
        upper = math.inf if result.upper is None else result.upper
        rates = (Rate(result.value, lower, upper, result.unit, per),)
    yield Finding(
        ThresholdNotMet(
            threshold=threshold.text, measured=result, needed_s=needed_s, settling_s=settling_s
        ),
        kind,
        threshold.metric,
        driver=threshold.per if threshold.per not in ("", HOUR) else None,
        rates=rates,
        since_s=None if window is None else window.start_s,
    )


def _is_growth_of_memory(threshold: Threshold) -> bool:
    """Whether missing the threshold means that held memory or objects keep growing."""
    spec = threshold.spec
    held = spec.kind is Kind.LEVEL and spec.unit in _HELD and spec.name not in _LOAD
    return held and threshold.stat in GROWTH and threshold.wants_less is spec.higher_is_worse


def _needed_s(threshold: Threshold, measured: Measured, judged_s: float) -> float | None:
    """Length of a window that would decide, if the value stays the same; None if unknown."""
    room = abs(measured.value - threshold.limit)
    half = max(measured.upper - measured.value, measured.value - measured.lower)
    if measured.narrows <= 0 or judged_s <= 0 or not math.isfinite(half):
        return None
    times = math.pow(half / max(room, 1e-12), 1.0 / measured.narrows)
    return judged_s * min(max(times, _LEAST_LONGER), LONGEST_ADVICE)
