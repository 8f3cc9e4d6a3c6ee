"""One verdict from several segments."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from hybridbench.analysis.judge import judge, judge_so_far
from hybridbench.analysis.record import Series
from hybridbench.analysis.segment_pooling import pool_metric
from hybridbench.analysis.trend.reasons import Bounded, bound_of
from hybridbench.records.events import BenchFailed, Crash, Gap
from hybridbench.records.finding import Rate, VerdictKind
from hybridbench.records.verdict import MetricResult, Why
from tests.unit.analysis.records import (
    GIB,
    Run,
    checkpoint,
    healthy_record,
    hourly,
    sample_times,
    with_checkpoints,
    with_events,
)
from tests.unit.analysis.resumed import cut_at, resumed

RUN = Run(duration_s=600.0, steady_s=120.0)
LEAKING = replace(RUN, leak_bytes_per_h=8 * GIB, seed=2)


def result(
    value: float,
    half: float,
    outcome: str = "INCONCLUSIVE",
    code: str = "too-short",
    unit: str = "B",
) -> MetricResult:
    return MetricResult(
        metric="rss_anon_swap_bytes",
        outcome=outcome,
        why=Why(code),
        window_s=(0.0, 600.0),
        rate_per_hour=Rate(value, value - half, value + half, unit, "h"),
        rate_per_request=None,
        floor_per_hour=1.0,
        limit_per_hour=10.0,
        model="flat",
        fit_t_s=(0.0, 600.0),
        fit_value=(1.0, 2.0),
    )


def test_two_equal_measurements_halve_the_variance() -> None:
    rate = hourly(pool_metric([result(4.0, 2.0), result(4.0, 2.0)]))

    assert rate.value == pytest.approx(4.0)
    assert rate.upper - rate.value == pytest.approx(2.0 / math.sqrt(2.0))


def test_what_a_segment_lacks_is_not_made_up_for_by_other_segments() -> None:
    """Workers replaced every minute are judged for long together, but for a minute each."""
    first, second = (
        msgspec.structs.replace(result(4.0, 9.0), window_s=window_s, needed_s=240.0)
        for window_s in ((100.0, 160.0), (170.0, 230.0))
    )

    pooled = pool_metric([first, second])

    assert pooled.needed_s == 130.0 + 180.0


def test_the_precise_measurement_weighs_more() -> None:
    rate = hourly(pool_metric([result(0.0, 1.0), result(3.0, 3.0)]))

    assert rate.value == pytest.approx(0.3)


def test_what_no_segment_rules_out_on_one_side_is_not_ruled_out_by_the_other_side() -> None:
    lopsided = msgspec.structs.replace(
        result(0.0, 1.0), rate_per_hour=Rate(0.0, -1.0, 15.0, "B", "h")
    )

    pooled = pool_metric([lopsided, lopsided])

    assert hourly(pooled).lower == pytest.approx(-1.0 / math.sqrt(2.0))
    assert hourly(pooled).upper == pytest.approx(15.0 / math.sqrt(2.0))
    assert pooled.outcome == "INCONCLUSIVE"  # with a limit of 10


def test_measurements_that_contradict_each_other_widen_the_interval() -> None:
    agreeing = hourly(pool_metric([result(5.0, 0.5), result(5.2, 0.5)]))
    contrary = hourly(pool_metric([result(1.0, 0.5), result(9.0, 0.5)]))

    assert contrary.upper - contrary.lower > 10 * (agreeing.upper - agreeing.lower)


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        # Growth that both see but neither is sure of, in a metric that does not settle.
        ([result(5.0, 3.0, unit="slots")] * 2, "LEAK"),
        ([result(5.0, 3.0)] * 2, "CLEAN"),
        # Only one of them sees it.
        ([result(5.0, 3.0), result(0.5, 3.0)], "CLEAN"),
        # A fill seen twice is a fill.
        ([result(5.0, 3.0, code="still-filling")] * 2, "CLEAN"),
        (
            [result(5.0, 9.0, "LEAK", "every-model-grows"), result(0.0, 1.0, "CLEAN")],
            "LEAK",
        ),
        # Only the pooled bound is below the limit.
        ([result(4.0, 8.0), result(0.0, 8.0)], "CLEAN"),
        ([result(4.0, 20.0), result(0.0, 20.0)], "INCONCLUSIVE"),
    ],
)
def test_the_outcome_of_pooled_segments(parts: list[MetricResult], outcome: str) -> None:
    assert pool_metric(parts).outcome == outcome


def test_fitted_lines_have_a_hole_at_the_border() -> None:
    joined = pool_metric([result(0.0, 1.0), result(0.0, 1.0)])

    assert joined.fit_t_s == (0.0, 600.0, 600.0, 0.0, 600.0)
    assert math.isnan(joined.fit_value[2])


def test_a_healthy_run_that_was_cut_stays_clean_though_its_memory_starts_anew() -> None:
    verdict = judge(resumed(healthy_record(RUN), healthy_record(replace(RUN, seed=1))))

    assert verdict.kind is VerdictKind.CLEAN, verdict.headline
    (memory,) = [m for m in verdict.metrics if m.metric == "rss_anon_swap_bytes"]
    alone = hourly(judge(healthy_record(RUN)).metrics[-1])
    assert hourly(memory).upper < 2 * GIB
    assert hourly(memory).upper - hourly(memory).lower < alone.upper - alone.lower
    # 2 x 474 s, not the 1100 s between the first moment and the last.
    judged = verdict.bounds.memory
    assert judged is not None
    assert judged.window_s == (0.0, 948.0)


def test_files_and_threads_that_no_segment_saw_change_stay_clean_in_a_run_that_was_cut() -> None:
    t = sample_times(RUN)
    handles = {
        name: Series(name, t, np.full(t.size, count))
        for name, count in (("open_fds", 17.0), ("threads", 5.0))
    }
    first, second = (healthy_record(replace(RUN, extra=handles, seed=seed)) for seed in (0, 1))

    verdict = judge(resumed(first, second))

    assert verdict.kind is VerdictKind.CLEAN, verdict.headline
    assert {m.outcome for m in verdict.metrics} == {"CLEAN"}


def test_clean_segments_that_differ_are_clean_together_and_few_handles_are_too() -> None:
    apart = [result(0.0, 0.1, "CLEAN"), result(0.8, 0.1, "CLEAN")]
    unlimited = [msgspec.structs.replace(one, limit_per_hour=None) for one in apart]
    files = [
        msgspec.structs.replace(one, metric="open_fds", limit_per_hour=None)
        for one in (result(0.0, 0.0, "CLEAN"), result(0.0, 6.0))
    ]

    assert pool_metric(unlimited).outcome == "CLEAN"
    assert pool_metric(files).outcome == "CLEAN"


def test_a_leak_in_either_segment_is_a_leak_of_the_run() -> None:
    for parts in ((RUN, LEAKING), (LEAKING, RUN)):
        verdict = judge(resumed(*(healthy_record(part) for part in parts)))
        assert verdict.kind is VerdictKind.LEAK, verdict.headline
        grown = [finding for finding in verdict.findings if finding.kind == "growth"]
        assert [finding.subject for finding in grown] == ["rss_anon_swap_bytes"]
        (memory,) = (one for one in verdict.metrics if one.metric == "rss_anon_swap_bytes")
        assert grown[0].rates == (memory.rate_per_hour, memory.rate_per_request)


def test_a_segment_cut_off_while_it_warmed_up_changes_nothing() -> None:
    alone = judge(healthy_record(RUN))
    verdict = judge(resumed(cut_at(healthy_record(LEAKING), 90.0), healthy_record(RUN)))

    assert verdict.kind is alone.kind is VerdictKind.CLEAN
    assert [m.rate_per_hour for m in verdict.metrics] == [m.rate_per_hour for m in alone.metrics]


def test_an_exact_finding_of_the_first_worker_outlives_it() -> None:
    lost = with_checkpoints(
        healthy_record(RUN),
        [checkpoint(200.0, mamba={"residual": 3}), checkpoint(580.0, mamba={"residual": 3})],
    )
    verdict = judge(resumed(lost, healthy_record(RUN)))

    assert verdict.kind is VerdictKind.LEAK
    (residual,) = [finding for finding in verdict.findings if finding.kind == "residual"]
    assert residual.data["segments"] == [1.0]


def test_what_both_workers_show_is_told_once() -> None:
    lost = with_checkpoints(healthy_record(RUN), [checkpoint(580.0, mamba={"residual": 3})])
    verdict = judge(resumed(lost, lost))

    (residual,) = [finding for finding in verdict.findings if finding.kind == "residual"]
    assert residual.data["segments"] == [1.0, 2.0]


def test_gaps_in_one_segment_do_not_void_the_other() -> None:
    broken = with_events(healthy_record(RUN), Gap(seconds=200.0, t_s=300.0))

    assert judge(broken).kind is VerdictKind.INVALID
    assert judge(resumed(broken, healthy_record(RUN))).kind is VerdictKind.CLEAN
    assert judge(resumed(broken, broken)).kind is VerdictKind.INVALID


def test_a_worker_that_crashed_is_told_though_another_went_on() -> None:
    crashed = with_events(
        cut_at(healthy_record(RUN), 400.0),
        Crash(reason="signal", detail="killed by SIGSEGV", t_s=400.0),
    )

    assert judge(resumed(crashed, healthy_record(RUN))).kind is VerdictKind.CRASHED


def test_what_no_segment_could_judge_is_told_once() -> None:
    short = cut_at(healthy_record(RUN), 1.0)
    failed = with_events(short, BenchFailed(part="sampler", error="E", file="errors", t_s=0.5))

    verdict = judge(resumed(short, failed))

    undecided = [f for f in verdict.findings if f.verdict is VerdictKind.INCONCLUSIVE]
    assert [(f.kind, f.subject) for f in undecided] == [
        ("bench-failed", "sampler"),
        ("undecided", "run"),
    ]


def test_a_leak_without_a_steady_event_has_its_rate_beside_a_steady_segment() -> None:
    unsteady = Run(duration_s=3600.0, steady_s=None, seed=2, leak_bytes_per_h=2 * GIB, limit=None)
    steady = replace(RUN, limit=None)

    verdict = judge(resumed(healthy_record(unsteady), healthy_record(steady)))

    (leak,) = [f for f in verdict.findings if f.kind == "growth"]
    (memory,) = [m for m in verdict.metrics if m.metric == "rss_anon_swap_bytes"]
    assert (verdict.kind, memory.outcome) == (VerdictKind.LEAK, "LEAK")
    assert leak.rates[0] == hourly(memory)


def test_a_look_at_a_resumed_run_takes_both_segments_into_account() -> None:
    record = healthy_record(RUN)
    memory = hourly(judge_so_far(resumed(record, record)).metrics[-1])
    alone = hourly(judge_so_far(record).metrics[-1])

    assert memory.value == pytest.approx(alone.value)
    assert memory.upper - memory.lower < alone.upper - alone.lower


def test_growth_that_segments_show_together_is_not_clean_under_any_limit() -> None:
    growing = msgspec.structs.replace(result(300e6, 20e6, code="growing"), limit_per_hour=1e12)
    filling = msgspec.structs.replace(growing, why=Why("still-filling"))
    still = msgspec.structs.replace(result(1e6, 5e6, "CLEAN"), limit_per_hour=1e12)

    assert pool_metric([growing, filling]).outcome == "INCONCLUSIVE"
    assert pool_metric([still, still]).outcome == "CLEAN"


def test_a_count_that_never_changes_is_clean_over_segments_as_in_each() -> None:
    reason = Bounded(upper=0.0, bound=3.0, source="margin", unit="count").why()
    flat = msgspec.structs.replace(result(0.0, 0.0, "CLEAN"), limit_per_hour=None, why=reason)

    pooled = pool_metric([flat, flat])

    assert pooled.outcome == "CLEAN"
    assert bound_of(pooled) == 3.0


def test_segments_that_are_too_short_to_blame_but_grow_are_a_leak_together() -> None:
    growing = result(4e9, 2e8, code="growing")

    assert pool_metric([growing, growing]).outcome == "LEAK"


@pytest.mark.parametrize("code", ["growing", "too-short"])
def test_what_each_new_worker_gains_in_its_first_minutes_is_no_leak(code: str) -> None:
    minutes = 4.5
    settling = result(6 * 2.0**20 * 60 / minutes, 2.0**20, code=code)
    settling = msgspec.structs.replace(settling, window_s=(0.0, 60.0 * minutes))
    fast = msgspec.structs.replace(result(4e9, 2e8, code=code), window_s=(0.0, 60.0))
    files = msgspec.structs.replace(result(20.0, 1.0, code=code), metric="open_fds")

    for one in (settling, fast, files):
        assert pool_metric([one, one]).outcome == "INCONCLUSIVE"
