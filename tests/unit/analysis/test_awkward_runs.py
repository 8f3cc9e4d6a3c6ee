"""Runs, columns and comparisons made of awkward series: each gets an answer without NaN.

The boundary is off here, because these tests look for the exceptions that it would catch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from hybridbench.analysis.comparison.compare import compare
from hybridbench.analysis.comparison.records import Block, ComparisonTerms
from hybridbench.analysis.drivers.search import Hints, find_driver
from hybridbench.analysis.drivers.steps import find_rise_driver
from hybridbench.analysis.facts.counters import EventCounters, event_counters
from hybridbench.analysis.facts.readings import are_readings, only_readings
from hybridbench.analysis.facts.restarts import counter_resets, level_falls
from hybridbench.analysis.judge import judge, judge_so_far
from hybridbench.analysis.levels import level
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.analysis.recorded import ExternalSeries, TrendContext, judge_series
from hybridbench.analysis.trend.sawtooth import find_sawtooth
from hybridbench.analysis.trend.work_cost import DERIVED_METRICS
from hybridbench.analysis.trend.worsening import LEAST_BLOCKS, worsening
from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.thresholds import Stat
from hybridbench.records.events import Event, Interrupted, Phase, Segment, Steady
from hybridbench.records.finding import Rate
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Manifest, manifest_from_json
from hybridbench.records.stored_verdict import verdict_text
from hybridbench.records.verdict import MetricResult, Verdict
from hybridbench.report.build import build_document
from tests.unit.analysis.awkward import FAMILIES, Awkward, draw
from tests.unit.analysis.comparisons import pair
from tests.unit.analysis.records import Run, checkpoint, manifest

FEW, MANY = 1, 40
OF_WORK = tuple(
    dict.fromkeys(n for derived in DERIVED_METRICS for n in (*derived.over, *derived.under))
)


def run_of(family: str, seed: int) -> RunRecord:
    """A run whose series all belong to ``family``: memory, handles, counters, load, times."""
    rng = np.random.default_rng((seed, 77))
    first = draw(family, seed)
    start, end = float(first.t_s[0]), float(first.t_s[-1])
    columns = _columns(first)
    others = [draw(family, 1000 * (seed + 1) + place) for place in range(3)]
    span = max(end - start, 1e-6)
    for place, other in enumerate(others):
        t = start + span * (other.t_s - other.t_s[0]) / max(float(np.ptp(other.t_s)), 1e-9)
        t = np.unique(t)
        columns[f"pool.kv.{('residual', 'waiting_held', 'used')[place]}"] = (
            t,
            other.value[: t.size],
        )
    for place, name in enumerate(name for name in OF_WORK if name not in columns):
        steps = np.abs(np.resize(others[place % 3].value, first.t_s.size))
        with np.errstate(over="ignore"):
            columns[name] = (first.t_s, np.cumsum(steps))
    series = {name: Series(name, t, value) for name, (t, value) in columns.items() if t.size}
    return RunRecord(manifest_from_json(_manifest(span)), series, _events(rng, start, span))


def _columns(first: Awkward) -> dict[str, tuple[FloatArray, FloatArray]]:
    t, value = first.t_s, first.value
    columns = {
        "rss_anon_swap_bytes": (t, value),
        "gc_collectible_bytes": (t, value - np.where(np.isfinite(value), value, 0.0).min()),
        "open_fds": (t, value),
        "threads": (t, np.round(np.clip(value, -1e9, 1e9))),
        "throughput_tokens_per_s": (t, np.abs(value)),
        "instances.TreeNode.stray": (t, value),
        "container.scheduler.waiting": (t, value),
        "gc_gen2_collections": (t, np.floor(t / 47.0)),
        "observer_held_bytes": (t, value),
    }
    names = ("finishes", "output_tokens", "nodes_evicted")
    for name, work in zip(names, (*first.works, *first.works), strict=False):
        columns[f"events.{name}"] = (t, work)
    if first.load is not None:
        columns["running_requests"] = (t, first.load)
    return columns


def _manifest(span: float) -> dict[str, JsonValue]:
    made = manifest(Run(duration_s=span))
    held: list[JsonValue] = [
        "rss.slope<200MiB/h",
        "throughput.p50>900/s",
        "throughput.last_first_ratio>0.9",
    ]
    return {**made, "thresholds": held}


def _events(rng: np.random.Generator, start: float, span: float) -> list[Event]:
    """Warm-up, pauses and checkpoints; sometimes a second segment or an early end."""

    def at(share: float) -> float:
        return start + share * span

    events = [
        Phase(name="warmup", t_s=start),
        Phase(name="idle", t_s=at(0.4)),
        checkpoint(at(0.42), kv={"residual": 2}),
        Phase(name="resume", t_s=at(0.45)),
        checkpoint(at(0.97), kv={"residual": 5}),
    ]
    if rng.random() < 0.7:
        events.append(Steady(t_s=at(float(rng.choice([0.0, 0.1, 0.9])))))
    if rng.random() < 0.3:
        events.append(Segment(t_s=at(0.5)))
    if rng.random() < 0.2:
        events.append(Interrupted(signal="SIGINT", t_s=at(0.8)))
    return sorted(events, key=lambda event: event.t_s)


def numbers(verdict: Verdict) -> Iterable[float]:
    for rate in (rate for finding in verdict.findings for rate in finding.rates):
        yield from ends(rate)
    for result in verdict.metrics:
        yield from of_metric(result)
    for change in verdict.decay:
        told = (change.value, change.change, change.change_lower, change.change_upper)
        yield from (one for one in told if one is not None)
    for level_result in verdict.levels:
        measured = (level_result.value, level_result.lower, level_result.upper)
        yield from (n for n in measured if n is not None)
    for held in verdict.thresholds:
        yield from (n for n in (held.value, held.lower, held.upper) if n is not None)


def of_metric(result: MetricResult) -> Iterable[float]:
    if result.rate_per_hour is not None:
        yield from ends(result.rate_per_hour)
    yield result.floor_per_hour
    if result.rate_per_request is not None:
        yield from ends(result.rate_per_request)


def ends(rate: Rate) -> tuple[float, float, float]:
    return rate.value, rate.lower, rate.upper


def check(family: str, seed: int) -> None:
    record = run_of(family, seed)

    for verdict in (judge(record), judge_so_far(record)):
        assert not verdict.failures
        assert not any(math.isnan(number) for number in numbers(verdict))
        said = verdict
        verdict_text(said, "awkward")
        build_document(record, said)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_of_awkward_series_is_judged_and_reported(family: str) -> None:
    for seed in range(FEW):
        check(family, seed)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_runs_of_awkward_series_are_judged_by_the_dozen(family: str) -> None:
    for seed in range(FEW, MANY):
        check(family, seed)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("name", "unit"),
    [("rss_bytes", Unit.BYTES), ("queue_depth", Unit.COUNT), ("throughput", Unit.PER_SECOND)],
)
def test_a_column_of_awkward_numbers_is_judged(family: str, name: str, unit: Unit) -> None:
    for seed in range(2):
        drawn = draw(family, 500 + seed)
        t = drawn.t_s - drawn.t_s[0]
        speed = unit is Unit.PER_SECOND
        series = ExternalSeries(
            name,
            t,
            drawn.value,
            unit,
            unit_known=name != "queue_depth",
            higher_is_worse=not speed,
            decays=speed,
        )
        works = [Series(f"w{i}", t, w) for i, w in enumerate(drawn.works)]
        resets = [s for work in works for s in counter_resets(t, work.value)] if seed % 2 else []
        falls = level_falls(t, drawn.value, resets, counted=bool(seed % 2))
        asked = TrendContext(works, None if seed % 2 else 0.1 * float(t[-1]))

        row = judge_series(series, falls, asked, guarded=False)

        if row is not None:
            assert not any(math.isnan(n) for n in of_metric(row.result))
            assert not any(math.isnan(n) for rate in row.per_work for n in ends(rate))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_drives_awkward_series_is_asked_for(family: str) -> None:
    for seed in range(3):
        drawn = draw(family, 900 + seed)
        value = only_readings(Series("value", drawn.t_s, drawn.value))
        counters = counters_of(drawn)
        load = [] if drawn.load is None else [Series("load", drawn.t_s, drawn.load)]
        load = [only_readings(one) for one in load]
        for emptied in (False, True):
            hints = Hints(load=load, emptied=emptied)
            found = find_driver(value.t_s, value.value, counters, hints)
            if found is not None:
                assert np.isfinite([found.per_event, found.lower, found.upper]).all()
        if len(value) > 1:
            find_rise_driver(value.t_s, value.value, counters)


def counters_of(drawn: Awkward) -> EventCounters:
    series = {
        f"events.w{i}": only_readings(Series(f"events.w{i}", drawn.t_s, work))
        for i, work in enumerate(drawn.works)
    }
    return event_counters(RunRecord(Manifest(), series, ()))


@pytest.mark.parametrize("family", FAMILIES)
def test_levels_teeth_and_worsening_of_awkward_series_have_finite_numbers(family: str) -> None:
    for seed in range(3):
        drawn = draw(family, 1300 + seed)
        series = only_readings(Series("value", drawn.t_s, drawn.value))
        for stat in (Stat.MEAN, Stat.P50, Stat.P99, Stat.MAX, Stat.LAST, Stat.LAST_FIRST_RATIO):
            found = level(series.value, stat)
            assert found is None or not math.isnan(found.value + found.upper)
        find_sawtooth(series.t_s, series.value)
        if len(series) >= LEAST_BLOCKS:
            loads = np.column_stack([w[are_readings(drawn.value)] for w in drawn.works])
            loads = np.where(are_readings(loads), loads, 0.0)
            logs = np.log(np.maximum(np.abs(series.value), 1e-30))
            found_worse = worsening(
                logs, np.arange(float(len(series))), np.log1p(np.abs(loads)), 0.1
            )
            assert np.isfinite([found_worse.change, found_worse.lower, found_worse.upper]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_two_versions_with_awkward_blocks_are_compared(family: str) -> None:
    record = run_of(family, 7)
    verdict = judge_so_far(record)
    for seed in range(2):
        drawn = draw(family, 1700 + seed)
        names = ("throughput_tokens_per_s", "cpu_ms_per_token", "rest_anon_swap_bytes")
        blocks = [
            Block(i % 2, i // 2, (i % 2) ^ (i // 2 % 2), float(i), dict.fromkeys(names, value))
            for i, value in enumerate(drawn.value[: 4 * (seed + 2)].tolist())
        ]
        made = pair(blocks)
        first, second = made.versions
        sides = [type(first)(v.name, v.kind, v.manifest, record, verdict) for v in (first, second)]
        for versions in (made.versions, tuple(sides)):
            whole = type(made)(versions, made.blocks, True, made.looks)
            answer = compare(whole, ComparisonTerms())
            assert not answer.failures
            told = [n for side in answer.sides for m in side.metrics for n in (m.ratio, m.lower)]
            assert not any(math.isnan(n) for n in told)


@pytest.mark.parametrize("samples", range(5))
@pytest.mark.parametrize("value", [0.0, 7e8, 1e300, 1e-310])
def test_a_run_of_no_or_few_samples_is_judged(samples: int, value: float) -> None:
    t = np.arange(float(samples))
    names = ("rss_anon_swap_bytes", "events.finishes", "running_requests", "open_fds")
    series = {name: Series(name, t, value * (1.0 + t)) for name in names}
    record = RunRecord(manifest_from_json(manifest(Run())), series, [Steady(t_s=0.0)])

    for verdict in (judge(record), judge_so_far(record)):
        assert not verdict.failures
        assert not any(math.isnan(number) for number in numbers(verdict))
        verdict_text(verdict, "few")
