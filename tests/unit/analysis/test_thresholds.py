"""Thresholds against runs: met, missed or undecided by the interval, and what that does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from hybridbench.analysis.judge import judge
from hybridbench.analysis.levels import Measured
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.analysis.thresholds import gate
from hybridbench.foundation.thresholds import parse_threshold
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.threshold_result import (
    ThresholdOutcome,
    ThresholdResult,
    Unmeasured,
    UnmeasuredCode,
)
from hybridbench.records.verdict import Verdict
from tests.unit.analysis.records import GIB, Run, healthy_record, with_series
from tests.unit.analysis.resumed import resumed

MIB = 2.0**20
LEAKING = Run(1800.0, 120.0, leak_bytes_per_h=3.7e9)


def held(record: RunRecord, *thresholds: str) -> Verdict:
    return judge(replace(record, manifest=structs.replace(record.manifest, thresholds=thresholds)))


def only(verdict: Verdict) -> ThresholdResult:
    (result,) = verdict.thresholds
    return result


@pytest.mark.parametrize(
    ("lower", "upper", "outcome"),
    [
        (10.0, 20.0, ThresholdOutcome.MET),
        (210.0, 220.0, ThresholdOutcome.MISSED),
        (190.0, 210.0, ThresholdOutcome.UNDECIDED),
        (-math.inf, math.inf, ThresholdOutcome.UNDECIDED),
    ],
)
def test_the_whole_interval_decides(lower: float, upper: float, outcome: ThresholdOutcome) -> None:
    threshold = parse_threshold("open_fds.slope<200/h")

    result = gate(threshold, Measured(0.5 * (lower + upper), lower, upper, 1.5), 600.0)

    assert result.outcome is outcome
    assert (result.needed_s is not None) is (lower == 190.0)


def test_a_point_without_an_interval_is_never_undecided() -> None:
    threshold = parse_threshold("open_fds.max<=3")

    at, above = (gate(threshold, Measured(x, x, x)) for x in (3.0, 4.0))

    assert (at.outcome, above.outcome) == (ThresholdOutcome.MET, ThresholdOutcome.MISSED)


def test_memory_that_surely_grows_faster_is_a_leak_with_its_rate() -> None:
    record = healthy_record(replace(LEAKING, limit=8 * GIB))

    verdict = held(record, "rss.slope<200MiB/h")

    assert only(verdict).outcome is ThresholdOutcome.MISSED
    found = next(f for f in verdict.findings if f.kind == "threshold")
    assert (verdict.kind, found.verdict) == (VerdictKind.LEAK, VerdictKind.LEAK)
    assert found.rates[0].value == pytest.approx(3.7e9, rel=0.1)
    assert found.data["threshold"] == "rss.slope<200MiB/h"


def test_growth_per_request_is_growth_over_the_requests_of_the_window() -> None:
    result = only(held(healthy_record(LEAKING), "rss.slope<1KiB/request"))

    assert result.outcome is ThresholdOutcome.MISSED
    assert result.value == pytest.approx(3.7e9 / 3600 / 12.0, rel=0.1)
    assert result.per == "finishes"


def test_the_extremes_of_a_resumed_run_are_those_of_all_its_segments() -> None:
    first, second = Run(240.0, 60.0), Run(300.0, 60.0, seed=1)
    low, high = Series("threads", np.arange(70.0, 80.0), np.full(10, 5.0)), np.full(10, 9.0)
    segments = (
        with_series(healthy_record(first), Series("threads", low.t_s, high)),
        with_series(healthy_record(second), low),
    )

    results = held(resumed(*segments), "threads.max<7", "threads.min<7").thresholds

    assert [(one.value, one.outcome) for one in results] == [
        (9.0, ThresholdOutcome.MISSED),
        (5.0, ThresholdOutcome.MET),
    ]


def test_growth_per_request_of_a_resumed_run_is_that_of_each_segment() -> None:
    parts = [healthy_record(replace(LEAKING, seed=seed)) for seed in (1, 2)]

    result = only(held(resumed(*parts), "rss.slope<1GiB/request"))

    assert result.value == pytest.approx(3.7e9 / 3600 / 12.0, rel=0.1)


def test_growth_per_request_counts_only_the_requests_of_the_time_that_was_judged() -> None:
    record = healthy_record(LEAKING)
    memory = record.series["rss_anon_swap_bytes"]
    late = memory.t_s >= 1200.0
    part = with_series(record, Series(memory.name, memory.t_s[late], memory.value[late]))

    result = only(held(part, "rss.slope<1KiB/request"))

    assert result.value == pytest.approx(3.7e9 / 3600 / 12.0, rel=0.1)


def test_a_threshold_that_is_met_changes_nothing() -> None:
    record = healthy_record(Run(1800.0, 120.0))

    with_it, without = held(record, "rss.slope<2GiB/h", "rss.max<10GiB"), judge(record)

    assert [r.outcome for r in with_it.thresholds] == [ThresholdOutcome.MET] * 2
    assert (with_it.kind, with_it.findings) == (without.kind, without.findings)
    assert without.kind is VerdictKind.CLEAN


def test_a_threshold_excuses_no_finding() -> None:
    verdict = held(healthy_record(LEAKING), "rss.slope<100GiB/h")

    assert only(verdict).outcome is ThresholdOutcome.MET
    assert verdict.kind is VerdictKind.LEAK


def test_an_undecided_threshold_leaves_the_run_inconclusive_and_says_how_much_longer() -> None:
    record = healthy_record(Run(1800.0, 120.0))

    verdict = held(record, "rss.slope<64B/h")

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert only(verdict).outcome is ThresholdOutcome.UNDECIDED
    assert only(verdict).needed_s is not None


def test_growth_in_the_first_minutes_is_not_blamed_on_the_engine() -> None:
    short = healthy_record(Run(300.0, 120.0, leak_bytes_per_h=8e9))

    verdict = held(short, "rss.slope<200MiB/h")

    assert only(verdict).outcome is ThresholdOutcome.MISSED
    found = next(f for f in verdict.findings if f.kind == "threshold")
    assert found.verdict is VerdictKind.INCONCLUSIVE
    assert found.data["settling_s"] == 240.0


def test_the_upper_end_asks_to_be_shown_and_the_lower_end_only_not_to_be_sure() -> None:
    record = healthy_record(Run(1800.0, 120.0))

    verdict = held(record, "rss.slope.upper<64B/h", "rss.slope.lower<64B/h")

    assert [r.outcome for r in verdict.thresholds] == [
        ThresholdOutcome.MISSED,
        ThresholdOutcome.MET,
    ]
    assert verdict.kind is VerdictKind.DEGRADED


def test_a_level_that_falls_short_degrades_the_run() -> None:
    record = healthy_record(Run(1800.0, 120.0))
    t = record.series["swap_bytes"].t_s
    speed = 900.0 + np.random.default_rng(5).normal(0, 20.0, t.size)
    record = with_series(record, Series("throughput_tokens_per_s", t, speed))

    verdict = held(record, "throughput.p50>1000/s", "throughput.mean>800/s")

    assert [r.outcome for r in verdict.thresholds] == [
        ThresholdOutcome.MISSED,
        ThresholdOutcome.MET,
    ]
    assert verdict.kind is VerdictKind.DEGRADED


def test_a_falling_level_has_a_falling_slope() -> None:
    record = healthy_record(Run(1800.0, 120.0))
    t = record.series["swap_bytes"].t_s
    free = 5000.0 - t + np.random.default_rng(5).normal(0, 5.0, t.size)
    record = with_series(record, Series("pool.kv.available", t, free))

    verdict = held(record, "pool.kv.free.slope>-100slots/h")

    assert only(verdict).value == pytest.approx(-3600.0, rel=0.05)
    assert only(verdict).outcome is ThresholdOutcome.MISSED
    missed = [f.verdict for f in verdict.findings if f.kind == "threshold"]
    assert missed == [VerdictKind.LEAK]


def test_events_are_counted_against_time_and_against_other_events() -> None:
    record = healthy_record(Run(1800.0, 120.0))

    per_h, per_request = held(
        record, "events.retracts.slope<1000/h", "events.retracts.slope<0.001/request"
    ).thresholds

    assert per_h.value == pytest.approx(180.0, rel=0.05)
    assert per_h.outcome is ThresholdOutcome.MET
    assert per_request.value == pytest.approx(1 / 240, rel=0.1)
    assert per_request.outcome is ThresholdOutcome.MISSED


def test_an_erratic_metric_is_shown_and_never_gates() -> None:
    record = healthy_record(Run(1800.0, 120.0))
    t = record.series["swap_bytes"].t_s
    record = with_series(record, Series("ttft_ms_p99", t, np.full(t.size, 900.0)))

    verdict = held(record, "ttft.p99<10ms")

    assert only(verdict).outcome is ThresholdOutcome.NOT_GATED
    assert (verdict.kind, only(verdict).value) == (VerdictKind.CLEAN, 900.0)


@pytest.mark.parametrize(
    ("text", "code", "near"),
    [
        ("throughput.p50>1/s", UnmeasuredCode.NEVER_SAMPLED, []),
        ("events.retract.slope<1/h", UnmeasuredCode.NEVER_SAMPLED, ["events.retracts"]),
        ("rss.slope<1B/session_closes", UnmeasuredCode.NOT_COUNTED, []),
        ("rss.slope<1B/refusals", UnmeasuredCode.NO_EVENT, []),
        ("throughput.ratio>0.97", UnmeasuredCode.NEEDS_TWO_VERSIONS, []),
        ("hit_rate.mean>0.5", UnmeasuredCode.TOO_LITTLE_WORK, []),
    ],
)
def test_what_cannot_be_checked_does_not_pass(
    text: str, code: UnmeasuredCode, near: list[str]
) -> None:
    verdict = held(healthy_record(Run(1800.0, 120.0)), text)

    assert only(verdict).outcome is ThresholdOutcome.UNDECIDED
    why = only(verdict).unmeasured
    assert why is not None
    assert why.code == code
    assert list(why.data.near or ()) == near
    assert verdict.kind is VerdictKind.INCONCLUSIVE


def test_a_stored_threshold_of_a_later_version_does_not_pass_either() -> None:
    verdict = held(healthy_record(Run(1800.0, 120.0)), "rss.wobble<3MiB")

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert verdict.findings[0].kind == "threshold"


def test_a_run_that_never_got_to_its_window_decides_no_threshold() -> None:
    verdict = held(RunRecord(Manifest(), {}, []), "rss.slope<200MiB/h")

    assert only(verdict).outcome is ThresholdOutcome.UNDECIDED
    assert only(verdict).unmeasured == Unmeasured(UnmeasuredCode.NO_WINDOW)
