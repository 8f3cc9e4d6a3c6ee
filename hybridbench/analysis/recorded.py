"""Judge series that another program recorded, with the same analysis as a run's own.

There is no engine to query: no steady event unless the caller gives its time, no checkpoints, and
only the counters in the file.  So verdicts are based on trends alone, and state their limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.facts.readings import LARGEST, are_readings, beyond_reading, only_readings
from hybridbench.analysis.facts.restarts import Falls, longest_stretch
from hybridbench.analysis.findings import words
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import Drivers, FloatArray, Gate, RunRecord, Series
from hybridbench.analysis.trend.reasons import (
    AnalysisFailed,
    ContainsCache,
    FewDigits,
    FewProcesses,
    FewSteps,
    Gaps,
    MayCount,
    NoUnit,
    Unreadable,
)
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import Check, Kind, MetricSpec, Unit, spec_of
from hybridbench.foundation.units import format_duration, format_percent
from hybridbench.records.events import Event, Steady
from hybridbench.records.finding import Rate, VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Failure, MetricResult, Reason

_MIB = float(2**20)
_GAP_TIMES, _GAP_LEAST_S = 10.0, 10.0
_GAP_SHARE_NOTED = 0.02
_GAP_SHARE_MAX = 0.5
# A fitted trend has up to three steps, which may be steps of the last digit.
_FEW_STEPS = 3.5
_SHARE, _SHARE_WITHOUT_UNIT = 0.0002, 0.002  # per hour
_MOST_WORKS = 2


@dataclass(frozen=True)
class ExternalSeries(Series):
    """One column: samples in seconds from the file's start, NaN where nothing was read.

    Args:
        unit: unit of the values; a count of unknown things if it is not ``unit_known``.
        decays: whether growth means decay (slower, less) rather than held memory or slots.
        collected: whether a garbage collector empties the level.
        without_cache: what to record instead, if the column includes the page cache.
        may_count: whether the column may count events, or data on a disk.
        step: the value of the last digit that was written, in ``unit``; 0 if unknown.
        needs_unit: whether it is memory of an unknown unit.
    """

    unit: Unit
    unit_known: bool = True
    higher_is_worse: bool = True
    decays: bool = False
    collected: bool = False
    without_cache: str = ""
    may_count: bool = False
    step: float = 0.0
    needs_unit: bool = False


@dataclass(frozen=True)
class TrendContext:
    """The caller's knowledge and thresholds for the columns of a file.

    Args:
        works: cumulative counters of work done, by name.
        steady_s: when steady state began, in the file's seconds; None if unknown.
        thresholds: largest tolerated worsening in units per hour, by column.
        loads: columns of requests in flight.
    """

    works: Sequence[Series] = ()
    steady_s: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    loads: Sequence[Series] = ()


@dataclass(frozen=True)
class JudgedSeries:
    """The verdict on one column.

    Rates are positive for worsening, which is a fall for a level that must not fall.
    """

    name: str
    verdict: VerdictKind
    result: MetricResult
    falls_are_bad: bool
    unit_known: bool
    per_work: tuple[Rate, ...] = ()
    notes: tuple[str, ...] = ()
    failure: Failure | None = None


def judge_series(
    series: ExternalSeries, falls: Falls, question: TrendContext, *, guarded: bool = True
) -> JudgedSeries | None:
    """Judge one column; return None if it has fewer than two readings.

    If the analysis fails, the column is undecided for that reason; unless ``guarded``, it raises.
    """
    boundary = Boundary(guarded=guarded)
    judged = boundary.value(f"column {series.name}", None, _judged, series, falls, question)
    if not boundary.failures:
        return judged
    (failure,) = boundary.failures
    return replace(undecided(series, AnalysisFailed(error=failure.said)), failure=failure)


def undecided(series: ExternalSeries, reason: Reason) -> JudgedSeries:
    """Return a row for a column that was not analysed, for ``reason``."""
    result = MetricResult(
        metric=series.name,
        outcome="INCONCLUSIVE",
        window_s=(float(series.t_s[0]), float(series.t_s[-1])) if series.t_s.size else (0.0, 0.0),
        rate_per_hour=None,
        rate_per_request=None,
        floor_per_hour=0.0,
        limit_per_hour=None,
        model="none",
        why=reason.why(),
    )
    return _row(series, result)


def _judged(series: ExternalSeries, falls: Falls, question: TrendContext) -> JudgedSeries | None:
    read = are_readings(series.value)
    t, value = series.t_s[read], series.value[read]
    if t.size < 2:
        return None
    stretch = longest_stretch(t, falls.certain_s)
    threshold = question.thresholds.get(series.name)
    gate = Gate(_spec(series, threshold, value), threshold, series.collected)
    record = _record(series, question, stretch, gate)
    verdict = judge(record, guarded=False)
    if verdict.window_s is None:
        return None
    (result,) = verdict.metrics
    gap_share, gap_note = _gaps(record.series[series.name].between(*verdict.window_s).t_s)
    beyond = beyond_reading(series.value)
    missing = int((~read).sum()) - beyond
    notes = (
        _restart_note(t, falls, stretch),
        gap_note,
        f"{words.times(missing, 'empty reading')} left out" if missing else "",
    )
    row = _row(series, _doubted(series, result, falls, gap_share, beyond))
    return replace(row, per_work=_per_work(result, record), notes=tuple(filter(None, notes)))


def _row(series: ExternalSeries, result: MetricResult) -> JudgedSeries:
    verdict = VerdictKind(result.outcome)
    if verdict is VerdictKind.LEAK and series.decays:
        verdict = VerdictKind.DEGRADED
    falls_are_bad = not series.higher_is_worse
    return JudgedSeries(series.name, verdict, result, falls_are_bad, series.unit_known)


def _record(
    series: ExternalSeries, question: TrendContext, stretch: tuple[float, float], gate: Gate
) -> RunRecord:
    """Build a record of the column, the counters and load to compare with, and the steady time."""

    def read(beside: Sequence[Series]) -> dict[str, Series]:
        found = {one.name: _readings(one, stretch) for one in beside if one.name != series.name}
        return {name: one for name, one in found.items() if len(one) >= 2}

    works = read(question.works[:_MOST_WORKS])
    # A column of load is not itself explained by the load.
    of_load = any(load.name == series.name for load in question.loads)
    loads = {} if of_load else read(question.loads)
    first = question.works[0].name if question.works else ""
    drivers = Drivers(tuple(works), first if first in works else "", tuple(loads))
    events: list[Event] = []
    steady_s = question.steady_s
    # A restarted process warms up again: the stated steady time holds only for its own stretch.
    if steady_s is not None and stretch[0] <= max(steady_s, series.t_s[0]) < stretch[1]:
        events.append(Steady(t_s=max(steady_s, stretch[0])))
    every = {series.name: _readings(series, stretch), **works, **loads}
    return RunRecord(Manifest(), every, tuple(events), drivers=drivers, gates={series.name: gate})


def _spec(series: ExternalSeries, threshold: float | None, value: FloatArray) -> MetricSpec:
    """Return the spec of a column, with the floors of a run's own metrics or the threshold.

    The floor of a column without a unit is a share of its size, so that its unit does not matter.
    """
    if threshold is not None:
        floor, share = threshold, 0.0
    elif series.unit is Unit.BYTES:
        floor, share = 0.5 * _MIB, _SHARE
    elif series.unit in (Unit.COUNT, Unit.SLOTS) and series.unit_known:
        floor, share = 1.0, _SHARE
    else:
        # Use 1 if all values are 0, so that the limit is above them.
        size = float(np.median(np.abs(value))) or float(np.mean(np.abs(value))) or 1.0
        floor, share = _SHARE_WITHOUT_UNIT * size, 0.0
    spec = MetricSpec(
        series.name,
        "",
        series.unit,
        Kind.LEVEL,
        check=Check.TREND,
        higher_is_worse=series.higher_is_worse,
        floor_per_hour=floor,
        floor_share_per_hour=share,
    )
    ours = spec_of(series.name)
    if ours is None:
        return spec
    return replace(spec, margin_per_hour=ours.margin_per_hour, handles=ours.handles)


def _doubted(
    series: ExternalSeries, result: MetricResult, falls: Falls, gap_share: float, beyond: int
) -> MetricResult:
    """Withdraw a verdict that the data cannot support; otherwise return ``result``.

    Growth is doubtful if it may be page cache or a count.  A bound is doubtful if the series has
    gaps or few digits, may be of several processes, or is memory that grows without a unit.  With a
    threshold, growth is never doubtful.
    """
    grows, bounded = result.outcome == "LEAK", result.outcome == "CLEAN"
    grows = grows and result.limit_per_hour is None
    has_cache = bool(series.without_cache)
    doubts = (
        (grows and has_cache, ContainsCache(column=series.name, instead=series.without_cache)),
        (grows and series.may_count, MayCount(column=series.name)),
        (bounded and beyond > 0, Unreadable(samples=beyond, beyond=LARGEST)),
        (bounded and len(falls.possible_s) > 0, FewProcesses(falls=len(falls.possible_s))),
        (bounded and _grows_in_no_unit(series, result), NoUnit(column=series.name)),
        (bounded and gap_share > _GAP_SHARE_MAX, Gaps(share=gap_share)),
        (_rises_coarsely(series, result), FewDigits(step=series.step)),
    )
    for holds, reason in doubts:
        if holds:
            return msgspec.structs.replace(
                result, outcome="INCONCLUSIVE", why=reason.why(), needed_s=None
            )
    return result


def _grows_in_no_unit(series: ExternalSeries, result: MetricResult) -> bool:
    """Return whether memory of an unknown unit grows, by a share that would be a leak with it."""
    rate, limited = result.rate_per_hour, result.limit_per_hour is not None
    size = float(np.median(np.abs(only_readings(series).value)))
    return series.needs_unit and not limited and rate is not None and rate.lower > _SHARE * size


def _rises_coarsely(series: ExternalSeries, result: MetricResult) -> bool:
    """Return whether the series rose so little that its last digit decides the outcome.

    It rose by only a few steps of that digit, or stayed within its bound for CLEAN, which a single
    step would exceed.
    """
    value = only_readings(series.between(*result.window_s)).value
    tenth = 1 + value.size // 10
    rose = float(np.median(value[-tenth:]) - np.median(value[:tenth]))
    if result.why is not None and result.why.code == FewSteps.code:
        return 0.0 < rose < _FEW_STEPS * series.step
    bound = None if result.why is None else result.why.data.get("bound")
    hours = (result.window_s[1] - result.window_s[0]) / 3600.0
    within = series.step <= (bound * hours if isinstance(bound, int | float) else 0.0)
    return result.outcome == "CLEAN" and not within and rose >= 0.5 * series.step


def _per_work(result: MetricResult, record: RunRecord) -> tuple[Rate, ...]:
    """Return the rate per unit of work done in the judged time."""
    hour = result.rate_per_hour
    rates: list[Rate] = []
    for name in record.drivers.works if hour is not None else ():
        start, end = result.window_s
        read = record.series[name]
        done = float(np.diff(np.interp([start, end], read.t_s, read.value))[0])
        if hour is not None and done > 0:
            share = (end - start) / 3600.0 / done
            low, mid, high = (rate * share for rate in (hour.lower, hour.value, hour.upper))
            rates.append(Rate(mid, low, high, hour.unit, _work_unit(name)))
    return tuple(rates)


def _readings(series: Series, stretch: tuple[float, float]) -> Series:
    """Return the readings of ``series`` in a stretch of time."""
    return only_readings(series.between(*stretch))


def _work_unit(name: str) -> str:
    """Name one unit of a work counter: ``request success`` for ``vllm:request_success_total``."""
    head = unlabelled(name).rpartition(":")[2]
    for ending in ("_total", "_count", "_sum"):
        head = head.removesuffix(ending)
    return singular(head.removeprefix("num_").removeprefix("total_").strip()) or name


def _restart_note(t: FloatArray, falls: Falls, stretch: tuple[float, float]) -> str:
    inside = [format_duration(s - float(t[0])) for s in falls.certain_s if t[0] < s <= t[-1]]
    if not inside:
        return ""
    more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
    return (
        f"restarted after {', '.join(inside[:3])}{more}: only the longest stretch, "
        f"{format_duration(stretch[1] - stretch[0])} from "
        f"{format_duration(stretch[0] - float(t[0]))} on, is judged"
    )


def _gaps(t: FloatArray) -> tuple[float, str]:
    """Return the share of the judged time in gaps, and a sentence about them."""
    if t.size < 3:
        return 0.0, ""
    steps = np.diff(t)
    limit = max(_GAP_LEAST_S, _GAP_TIMES * float(np.median(steps)))
    gaps = steps[steps > limit]
    share = float(gaps.sum() / (t[-1] - t[0]))
    if share < _GAP_SHARE_NOTED:
        return share, ""
    return share, (
        f"{words.times(gaps.size, 'gap')} without samples, the longest "
        f"{format_duration(float(gaps.max()))}: {format_percent(share)} of the judged time"
    )
