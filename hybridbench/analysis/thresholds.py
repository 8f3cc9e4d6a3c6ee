"""Thresholds against a run: each is met, missed, or undecided by its interval, never by a point.

A threshold asks for more than the analysis does by itself; it takes no finding away.  Neighbouring
samples say much the same, so the interval of a mean or a quantile counts only as many samples as
independent ones would be worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np

from hybridbench.analysis.distributions import autocorrelation, t_quantile
from hybridbench.analysis.drivers.rates import mean_rate
from hybridbench.analysis.facts.counters import EventCounters, singular
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.findings.thresholds import ThresholdNotMet
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.analysis.trend.decay import half_width
from hybridbench.analysis.trend.metric_trend import (
    LEAK_AFTER_STEADY_S,
    LEAK_WITHOUT_STEADY_S,
    Effort,
    judge_trend,
)
from hybridbench.analysis.trend.work_cost import DERIVED_METRICS, work_blocks
from hybridbench.metrics import Kind, Unit, declared
from hybridbench.records.codes import UnmeasuredCode
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import (
    DecayResult,
    Finding,
    LevelResult,
    MetricResult,
    Rate,
    ThresholdOutcome,
    ThresholdResult,
    VerdictKind,
    Why,
)
from hybridbench.thresholds import (
    GROWTH,
    HOUR,
    SHARES,
    Stat,
    Threshold,
    parse_threshold,
)

# Requests pile up for other reasons than that something is held.
_LOAD = ("running_requests", "waiting_requests", "max_running_requests")
_HELD = (Unit.BYTES, Unit.COUNT, Unit.SLOTS)
_LONGEST_ADVICE = 50.0  # times the window
_LEAST_LONGER = 1.3
_FEWEST_BLOCKS = 8

FEWEST_SAMPLES = 8
CONFIDENCE = 0.95

_Z = 1.959964
_MAX_PHI = 0.95
_QUANTILES = {Stat.P50: 0.5, Stat.P95: 0.95, Stat.P99: 0.99}
# Told with every verdict, so that runs can be compared without their samples.
_TOLD: tuple[tuple[str, Stat], ...] = (
    ("throughput_tokens_per_s", Stat.MEAN),
    ("requests_per_s", Stat.MEAN),
    ("ttft_ms_p50", Stat.P50),
    ("ttft_ms_p99", Stat.P50),
    ("itl_ms_p50", Stat.P50),
    ("itl_ms_p99", Stat.P50),
    ("rss_anon_swap_bytes", Stat.MAX),
    ("rest_anon_swap_bytes", Stat.LAST),
)


@dataclass(frozen=True)
class CheckedThresholds:
    """What a run's thresholds came to."""

    results: tuple[ThresholdResult, ...]
    findings: tuple[Finding, ...]


def check_thresholds(
    facts: Facts, metrics: Sequence[MetricResult], decay: Sequence[DecayResult]
) -> CheckedThresholds:
    """The thresholds in the manifest against the samples of one segment.

    Slopes of gated metrics and changes of what work costs are those of the run's verdict.
    """
    results: list[ThresholdResult] = []
    findings: list[Finding] = []
    for text in facts.record.manifest.thresholds:
        try:
            threshold = parse_threshold(text)
        except ValueError as error:
            # A later version may know it: what cannot be checked must not pass.
            unknown = ThresholdNotMet(threshold=text, error=str(error))
            findings.append(Finding(unknown, VerdictKind.INCONCLUSIVE, text))
            continue
        result = _judged(_Run(facts, metrics, decay), threshold)
        results.append(result)
        findings += _finding(threshold, result, facts.window)
    return CheckedThresholds(tuple(results), tuple(findings))


def gate(threshold: Threshold, measured: Measured, judged_s: float = 0.0) -> ThresholdResult:
    """``threshold`` against a value with its interval.

    Args:
        measured: in the units of the limit.
        judged_s: how long was judged; what would decide is told in multiples of it.
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
    return replace(
        _result(threshold, outcome),
        value=finite(measured.value),
        lower=finite(measured.lower),
        upper=finite(measured.upper),
        needed_s=needed_s,
    )


def _result(threshold: Threshold, outcome: ThresholdOutcome) -> ThresholdResult:
    """What is known without a measurement."""
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
    facts: Facts
    metrics: Sequence[MetricResult]
    decay: Sequence[DecayResult]


class _NotMeasuredError(Exception):
    """There is nothing to hold a threshold against."""

    def __init__(self, code: UnmeasuredCode, **values: JsonValue) -> None:
        super().__init__(code)
        self.why = Why(code, values)


def _judged(run: _Run, threshold: Threshold) -> ThresholdResult:
    try:
        judged_s = 0.0 if run.facts.window is None else run.facts.window.duration_s
        return gate(threshold, _measure(run, threshold), judged_s)
    except _NotMeasuredError as error:
        erratic = threshold.spec.erratic
        outcome = ThresholdOutcome.NOT_GATED if erratic else ThresholdOutcome.UNDECIDED
        return replace(_result(threshold, outcome), unmeasured=error.why)


def _measure(run: _Run, threshold: Threshold) -> Measured:
    record, window = run.facts.record, run.facts.window
    if threshold.stat is Stat.RATIO:
        raise _NotMeasuredError(UnmeasuredCode.NEEDS_TWO_VERSIONS)
    if window is None:
        raise _NotMeasuredError(UnmeasuredCode.NO_WINDOW)
    if threshold.spec.kind is Kind.QUOTIENT:
        return _quotient(run, window, threshold)
    if threshold.metric not in record.series:
        raise _NotMeasuredError(
            UnmeasuredCode.NEVER_SAMPLED,
            metric=threshold.metric,
            # Only the members of a family can be misspelt; a declared name is simply not measured.
            near=get_close_matches(threshold.metric, list(record.series), n=1)
            if "*" in threshold.spec.name
            else [],
        )
    if threshold.stat in GROWTH:
        found = _growth(run, window, threshold)
        if threshold.stat is Stat.SLOPE:
            return found
        end = found.lower if threshold.stat is Stat.SLOPE_LOWER else found.upper
        return Measured(end, end, end)
    measured = level(judged_values(record, window, threshold.metric), threshold.stat)
    if measured is None:
        raise _NotMeasuredError(UnmeasuredCode.TOO_FEW_SAMPLES)
    return measured


def _growth(run: _Run, window: Window, threshold: Threshold) -> Measured:
    """Growth over the window, an hour or an event."""
    if threshold.spec.kind is Kind.COUNTER:
        return _counted(run.facts, window, threshold)
    known = [r for r in run.metrics if r.metric == threshold.metric]
    # Of a family, the member.
    spec = replace(threshold.spec, name=threshold.metric)
    result = known[0] if known else judge_trend(run.facts, spec, Effort())
    rate = result.rate_per_hour
    if rate is None:
        raise _NotMeasuredError(UnmeasuredCode.TOO_FEW_SAMPLES)
    low, high = rate.lower, rate.upper
    # A trend is told as worsening; a threshold is about the value itself.
    value = rate.value if spec.higher_is_worse else -rate.value
    if not spec.higher_is_worse:
        low, high = -high, -low
    scale = 1.0
    if threshold.per != HOUR:
        hours = (result.window_s[1] - result.window_s[0]) / 3600.0
        scale = hours / _events(run.facts.counters, window, threshold.per)
    return Measured(value * scale, low * scale, high * scale, 1.5)


def _counted(facts: Facts, window: Window, threshold: Threshold) -> Measured:
    """How fast a counter rises: all it gained over all that passed."""
    t, value = window.samples(facts.record.series[threshold.metric])
    if t.size < 2:
        raise _NotMeasuredError(UnmeasuredCode.TOO_FEW_SAMPLES)
    if threshold.per == HOUR:
        passed = np.diff(t) / 3600.0
    else:
        _events(facts.counters, window, threshold.per)
        passed = np.diff(facts.counters.at(threshold.per, t))
    found = mean_rate(np.diff(value), passed)
    if found is None or found.ends is None:
        raise _NotMeasuredError(UnmeasuredCode.TOO_FEW_SAMPLES)
    return Measured(found.value, *found.ends, 0.5)


def _events(counters: EventCounters, window: Window, counter: str) -> float:
    if counter not in counters.series:
        near = get_close_matches(counter, counters.names, n=1)
        raise _NotMeasuredError(UnmeasuredCode.NOT_COUNTED, counter=counter, near=list(near))
    first, last = counters.at(counter, np.array([window.start_s, window.end_s]))
    if last <= first:
        raise _NotMeasuredError(UnmeasuredCode.NO_EVENT, counter=counter)
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
            # As for every trend: an allocator that settles looks like this.
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
    """Whether missing it means that ever more is held."""
    spec = threshold.spec
    held = spec.kind is Kind.LEVEL and spec.unit in _HELD and spec.name not in _LOAD
    return held and threshold.stat in GROWTH and threshold.wants_less is spec.higher_is_worse


def _needed_s(threshold: Threshold, measured: Measured, judged_s: float) -> float | None:
    """How long a window would decide, if the value stays where it is."""
    room = abs(measured.value - threshold.limit)
    half = max(measured.upper - measured.value, measured.value - measured.lower)
    if measured.narrows <= 0 or judged_s <= 0 or not math.isfinite(half):
        return None
    times = math.pow(half / max(room, 1e-12), 1.0 / measured.narrows)
    return judged_s * min(max(times, _LEAST_LONGER), _LONGEST_ADVICE)


@dataclass(frozen=True)
class Measured:
    """A value with its 95% interval.

    ``narrows`` says how the interval shrinks with the time judged: half its width goes with the
    time to minus this power; 0 for what more time does not sharpen.
    """

    value: float
    lower: float
    upper: float
    narrows: float = 0.0


def run_levels(record: RunRecord, window: Window | None) -> tuple[LevelResult, ...]:
    """The levels that every verdict tells, as far as they were sampled."""
    if window is None:
        return ()
    told = []
    for name, stat in _TOLD:
        found = level(judged_values(record, window, name), stat)
        if found is not None:
            unit = declared(name).unit.value
            ends = (finite(found.lower), finite(found.upper))
            told.append(LevelResult(name, stat.value, unit, found.value, *ends))
    return tuple(told)


def judged_values(record: RunRecord, window: Window, name: str) -> FloatArray:
    """The samples of ``name`` in the window; what is sampled in pauses alone is taken from them."""
    series = record.series.get(name)
    if series is None:
        return np.zeros(0)
    value = window.samples(series)[1]
    if not value.size:
        at_rest = series.between(window.start_s, window.end_s).value
        value = at_rest[np.isfinite(at_rest)]
    return value


def level(value: FloatArray, stat: Stat) -> Measured | None:
    """``stat`` of the samples; None for too few of them."""
    if stat in (Stat.MIN, Stat.MAX, Stat.LAST):
        if not value.size:
            return None
        seen = {Stat.MIN: value.min(), Stat.MAX: value.max(), Stat.LAST: value[-1]}[stat]
        return Measured(float(seen), float(seen), float(seen))
    if value.size < FEWEST_SAMPLES:
        return None
    if stat in _QUANTILES:
        return _quantile(value, _QUANTILES[stat])
    if stat is Stat.LAST_FIRST_RATIO:
        return _last_over_first(value)
    mean, half = _mean(value)
    return Measured(mean, mean - half, mean + half, 0.5)


def finite(value: float) -> float | None:
    """``value``, or None for one without bound."""
    return value if math.isfinite(value) else None


def _quantile(value: FloatArray, share: float) -> Measured:
    """By ranks: right for any distribution.  Where the samples do not reach, there is no bound."""
    ranked = np.sort(value)
    worth = _worth(value)
    spread = _Z * math.sqrt(share * (1.0 - share) / worth)
    low, high = share - spread, share + spread
    last = ranked.size - 1
    lower = float(ranked[math.floor(low * last)]) if low >= 0 else -math.inf
    upper = float(ranked[math.ceil(high * last)]) if high <= 1 else math.inf
    return Measured(float(np.quantile(ranked, share)), lower, upper, 0.5)


def _last_over_first(value: FloatArray) -> Measured | None:
    third = value.size // 3
    if third < FEWEST_SAMPLES:
        return None
    (first, first_half), (last, last_half) = _mean(value[:third]), _mean(value[-third:])
    if min(first - first_half, last - last_half) <= 0:
        return None
    ratio = last / first
    half = math.hypot(first_half / first, last_half / last)
    return Measured(ratio, ratio * math.exp(-half), ratio * math.exp(half), 0.5)


def _mean(value: FloatArray) -> tuple[float, float]:
    """The mean, and half its interval."""
    worth = _worth(value)
    error = float(np.std(value, ddof=1)) / math.sqrt(worth)
    return float(value.mean()), t_quantile(0.5 + CONFIDENCE / 2, max(worth - 1.0, 1.0)) * error


def _worth(value: FloatArray) -> float:
    """How many independent samples tell as much, if the noise is AR(1)."""
    off = value - value.mean()
    if not np.any(off):
        return float(value.size)
    phi = autocorrelation(off, 1, _MAX_PHI)
    return max(value.size * (1.0 - phi) / (1.0 + phi), 2.0)
