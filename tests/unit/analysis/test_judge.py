"""Whole runs and their verdicts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from hybridbench.analysis.judge import judge, judge_so_far
from hybridbench.analysis.reading import mapping, number
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import EngineViolation, Interrupted, ProbeLeftOut, Reclaim
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import precedence
from tests.unit.analysis.records import (
    GIB,
    MB,
    Run,
    healthy_record,
    hourly,
    notes_with,
    reference_cycles,
    with_events,
    with_manifest,
    with_series,
)


@pytest.mark.parametrize("seed", range(6))
def test_ten_healthy_minutes_are_clean_and_a_gibibyte_an_hour_is_a_leak(seed: int) -> None:
    clean = judge(healthy_record(Run(seed=seed)))
    leak = judge(healthy_record(Run(seed=seed, leak_bytes_per_h=GIB)))

    assert clean.kind is VerdictKind.CLEAN
    assert leak.kind is VerdictKind.LEAK
    rate = hourly(leak.metrics[-1])
    assert rate.value == pytest.approx(GIB, rel=0.1)
    assert leak.findings[0].subject == "rss_anon_swap_bytes"
    assert mapping(leak.findings[0].data, "exhaustion")["limit"] == 16 * GIB


@pytest.mark.parametrize("seed", range(4))
def test_the_reported_leak_is_found_within_ten_minutes_of_steady_state(seed: int) -> None:
    big = Run(duration_s=726.0, seed=seed, base_bytes=8e9, noise_bytes=20 * MB, teeth_bytes=40 * MB)

    assert judge(healthy_record(replace(big, leak_bytes_per_h=3.7e9))).kind is VerdictKind.LEAK
    assert judge(healthy_record(big)).kind is not VerdictKind.LEAK


@pytest.mark.parametrize("seed", range(6))
def test_three_healthy_minutes_are_bounded_by_their_limit(seed: int) -> None:
    verdict = judge(healthy_record(Run(180.0, 60.0, seed, probe_s=2.0)))

    assert verdict.kind is VerdictKind.CLEAN
    assert verdict.bounds.memory == verdict.metrics[-1]
    assert verdict.bounds.smallest_leak is not None


@pytest.mark.parametrize("seed", range(6))
def test_one_minute_after_steady_may_stay_open_but_is_no_leak(seed: int) -> None:
    verdict = judge(healthy_record(Run(180.0, 110.0, seed, probe_s=2.0)))

    assert verdict.kind in (VerdictKind.CLEAN, VerdictKind.INCONCLUSIVE)


def test_a_short_window_bounds_growth_but_never_blames_it() -> None:
    verdict = judge(healthy_record(Run(180.0, 60.0, leak_bytes_per_h=20 * GIB, probe_s=2.0)))

    assert verdict.kind is VerdictKind.INCONCLUSIVE


def test_without_steady_no_trend_is_a_leak_before_45_minutes() -> None:
    young = judge(healthy_record(Run(steady_s=None, leak_bytes_per_h=4 * GIB)))
    old = judge(healthy_record(Run(5400.0, None, leak_bytes_per_h=GIB, probe_s=20.0)))

    assert young.kind is VerdictKind.INCONCLUSIVE
    assert notes_with(young, "growth over less than 45m is not called a leak")
    assert old.kind is VerdictKind.LEAK


def test_too_few_collectible_probes_leave_that_metric_open() -> None:
    record = healthy_record(Run(probe_s=30.0))
    collections = record.series["gc_gen2_collections"]
    # Without a full collection, nothing shows the level to which garbage falls.
    none = replace(collections, value=np.zeros_like(collections.value))
    verdict = judge(with_series(record, none))

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert verdict.findings[0].subject == "gc_collectible_bytes"
    why = mapping(verdict.findings[0].data, "why")
    assert why["code"] == "too-few-samples"
    assert mapping(why, "data")["samples"] == 16


def test_growth_that_the_collector_would_give_back_is_split() -> None:
    verdict = judge(reference_cycles(healthy_record(Run(limit=1.0)), "ballast"))

    growth = next(f for f in verdict.findings if f.subject == "rss_anon_swap_bytes")
    assert growth.verdict is VerdictKind.LEAK
    assert 0.9 <= number(mapping(growth.data, "collectible"), "share") < 1.1


def test_every_gated_trend_carries_a_line_and_its_band() -> None:
    for result in judge(healthy_record(Run(seed=3))).metrics:
        assert 0 < len(result.fit_t_s) <= 200
        assert len(result.fit_t_s) == len(result.fit_value) == len(result.band_lower)
        low, line, high = (
            np.array(part) for part in (result.band_lower, result.fit_value, result.band_upper)
        )
        assert np.all(low <= line)
        assert np.all(line <= high)


def test_the_worst_finding_is_the_verdict_and_all_are_kept() -> None:
    record = reference_cycles(healthy_record(Run(240.0, 60.0)), "bare")
    record = with_events(record, EngineViolation(kind="alias", t_s=100.0))
    record = with_manifest(record, profile={"assert_coverage": {"refusals": 5}})

    verdict = judge(record)

    seen = [finding.verdict for finding in verdict.findings]
    assert verdict.kind is VerdictKind.LEAK
    assert {VerdictKind.INVALID, VerdictKind.LEAK, VerdictKind.INVARIANT} <= set(seen)
    places = [precedence(found.verdict, exact=found.exact) for found in verdict.findings]
    assert places == sorted(places)


def test_an_interrupted_run_is_judged_on_what_there_is() -> None:
    record = healthy_record(Run(seed=2))
    stop = Interrupted(signal="SIGINT", t_s=400.0)

    verdict = judge(with_events(record, stop))

    assert verdict.kind is VerdictKind.CLEAN
    assert verdict.window_s == (120.0, 400.0)
    assert "interrupted after 6m40s; partial results" in verdict.notes


def test_an_empty_run_does_not_fail() -> None:
    empty = RunRecord(Manifest(), {}, [])

    assert judge(empty).kind is VerdictKind.INVALID
    assert judge_so_far(empty).kind is VerdictKind.INCONCLUSIVE


def test_what_the_target_could_not_show_is_listed() -> None:
    record = healthy_record(Run())
    memory = {name: s for name, s in record.series.items() if not name.startswith("instances")}

    verdict = judge(replace(record, series=memory))

    assert {text.partition(": ")[0] for text in verdict.not_seen} == {
        "instances.*.stray",
        "instances.*.collectible",
        "instances.*.retained",
        "open_fds",
        "threads",
    }


@pytest.mark.parametrize("name", ["lru-reference-cycle", "anything-else"])
def test_the_name_of_a_defect_changes_nothing(name: str) -> None:
    record = healthy_record(Run(240.0, 60.0))

    assert judge(with_manifest(record, defects=[name])) == judge(record)


def test_the_order_of_metrics_changes_nothing() -> None:
    record = reference_cycles(healthy_record(Run(240.0, 60.0)), "bare")
    turned = replace(record, series=dict(reversed(list(record.series.items()))))

    assert judge(turned) == judge(record)


def test_the_live_view_sees_exact_findings_at_once_and_trends_only_later() -> None:
    leaking = Run(1200.0, leak_bytes_per_h=2 * GIB, limit=1.0)
    record = healthy_record(leaking)

    def until(t_s: float, whole: RunRecord) -> RunRecord:
        series = {name: s.between(0.0, t_s) for name, s in whole.series.items()}
        return RunRecord(whole.manifest, series, [e for e in whole.events if e.t_s <= t_s])

    assert judge_so_far(until(500.0, record)).kind is VerdictKind.INCONCLUSIVE
    assert judge_so_far(until(900.0, record)).kind is VerdictKind.LEAK
    cycles = reference_cycles(record, "bare")
    assert judge_so_far(until(130.0, cycles)).kind is VerdictKind.LEAK


@pytest.mark.slow
def test_a_night_of_samples_is_judged() -> None:
    night = Run(43_200.0, 600.0, leak_bytes_per_h=20 * MB, probe_s=60.0, limit=64.0 * MB)
    record = healthy_record(night)
    t = record.series["rss_anon_swap_bytes"].t_s
    many = [Series(f"events.kind_{i}", t, np.floor(t / (5.0 + i))) for i in range(30)]

    verdict = judge(with_series(record, *many))

    assert verdict.kind is VerdictKind.LEAK
    assert verdict.findings[0].rates[0].value == pytest.approx(20 * MB, rel=0.1)


def test_what_looking_cost_the_engine_is_told_without_its_waits() -> None:
    stopped = Series("probe_stop_s", np.array([10.0, 110.0]), np.array([0.5, 1.4]))
    waited = Series("probe_wait_s", np.array([10.0, 110.0]), np.array([0.1, 0.3]))
    scans = Series("gc_collectible_objects", np.arange(12.0), np.zeros(12))
    record = healthy_record(Run(duration_s=240.0, steady_s=60.0))

    verdict = judge(with_series(record, stopped, waited, scans))

    assert notes_with(verdict, "overhead") == [
        "measurement overhead: 0.70% of engine-loop time in the whole run (12 heap scans)"
    ]


def test_what_the_worker_gave_back_at_the_end_is_told_step_by_step() -> None:
    given = Reclaim(300 * 2**20, 298 * 2**20, 297 * 2**20, 247 * 2**20, t_s=239.0)
    record = healthy_record(Run(duration_s=240.0, steady_s=60.0))

    verdict = judge(with_events(record, given))

    assert notes_with(verdict, "while idle") == [
        "of 300 MiB held while idle, malloc_trim released 2.00 MiB, flushing the cache 1.00 MiB, a "
        "full collection 50.0 MiB"
    ]


def test_memory_that_rose_before_it_was_judged_and_no_longer_does_is_said_to_level_off() -> None:
    small = Run(base_bytes=500e6)
    filled, large = judge(healthy_record(small)), judge(healthy_record(Run(base_bytes=8e9)))
    leaking = judge(healthy_record(replace(small, leak_bytes_per_h=4e9)))

    (note,) = notes_with(filled, "levelled off")
    assert filled.kind is VerdictKind.CLEAN
    rise = re.fullmatch(
        r"private memory rose by ([\d.]+) MiB in the first 1m59s, before the judged window, and "
        "then levelled off",
        note,
    )
    assert rise is not None
    assert 110e6 < float(rise[1]) * 2**20 < 190e6
    for other in (large, leaking):
        assert notes_with(other, "levelled off") == []


def test_a_probe_that_was_given_up_gates_nothing_and_is_told_as_not_seen() -> None:
    record = healthy_record()
    given_up = ProbeLeftOut(metrics=("gc_collectible_bytes",), t_s=200.0)

    verdict = judge(replace(record, events=(*record.events, given_up)))

    assert all(result.metric != "gc_collectible_bytes" for result in verdict.metrics)
    assert any(text.startswith("gc_collectible_bytes: ") for text in verdict.not_seen)
    assert any(r.metric == "gc_collectible_bytes" for r in judge(record).metrics)
