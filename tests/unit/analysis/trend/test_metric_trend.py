"""Thresholds of the gated metrics, for handles and for memory."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.analysis.trend.metric_trend import Effort, judge_trend
from hybridbench.foundation.metrics import MEMORY, declared
from hybridbench.records.events import Steady
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import MetricResult
from tests.unit.analysis.records import (
    GIB,
    Run,
    healthy_record,
    hourly,
    with_manifest,
    with_series,
)

T = np.arange(1.0, 7200.0, 5.0)


def judged(name: str, count: FloatArray, t: FloatArray = T) -> MetricResult:
    record = RunRecord(Manifest(), {name: Series(name, t, count)}, [])
    return judge_trend(Facts.of(record), declared(name), Effort())


@pytest.mark.parametrize("name", ["open_fds", "threads"])
def test_a_handle_lost_every_few_minutes_is_a_leak(name: str) -> None:
    result = judged(name, 20.0 + np.floor(T / 240.0))

    assert result.outcome == "LEAK"
    assert hourly(result).value == pytest.approx(15.0, rel=0.1)


@pytest.mark.parametrize("name", ["open_fds", "threads"])
def test_handles_that_come_and_go_are_bounded(name: str) -> None:
    coming = np.random.default_rng(1).integers(0, 4, T.size).astype(np.float64)

    assert judged(name, 20.0 + coming).outcome == "CLEAN"
    assert judged(name, np.zeros(T.size) + 20.0).outcome == "CLEAN"


def test_one_handle_more_in_three_minutes_is_no_doubt() -> None:
    t = np.arange(1.0, 180.0)

    assert judged("open_fds", np.where(t > 100.0, 6.0, 5.0), t).outcome == "CLEAN"


@pytest.mark.parametrize("name", ["shm_files_bytes", "shared_bytes", "children", "zombies"])
def test_what_is_seen_only_at_the_end_was_zero_before(name: str) -> None:
    run = Run(7200.0, 120.0, limit=GIB)
    record = healthy_record(run)
    late = record.series["swap_bytes"].t_s[-9:]
    record = with_series(record, Series(name, late, np.ones(9)))

    result = judge_trend(Facts.of(record), declared(name), Effort())

    assert result.outcome == "CLEAN"


def test_a_limit_in_bytes_says_nothing_of_handles() -> None:
    run = Run(7200.0, 120.0, limit=GIB)
    record = healthy_record(run)
    t = record.series["swap_bytes"].t_s
    leaking = with_series(record, Series("open_fds", t, 20.0 + np.floor(t / 240.0)))

    verdict = judge(leaking)

    assert [f.subject for f in verdict.findings if f.kind == "growth"] == ["open_fds"]


def test_memory_that_surely_grows_after_hours_is_not_clean_however_slowly() -> None:
    noise = 2e3 * np.random.default_rng(1).normal(size=T.size)

    slow = judged("rss_anon_swap_bytes", 1e9 + 4e5 * T / 3600.0 + noise)
    still = judged("rss_anon_swap_bytes", 1e9 + noise)

    assert (slow.outcome, still.outcome) == ("INCONCLUSIVE", "CLEAN")
    assert slow.why is not None
    assert slow.why.code == "below-floor"
    assert slow.needed_s is None


def test_what_settles_may_be_clean_within_the_hour_but_not_a_line_that_surely_grows() -> None:
    t = np.arange(1.0, 3900.0, 5.0)
    noise = 2e4 * np.random.default_rng(1).normal(size=t.size)
    settling = 4e7 * t / (t + 150.0)

    leak = judged("rss_anon_swap_bytes", 8e8 + 2e6 * t / 3600.0 + noise, t)
    line = judged("rss_anon_swap_bytes", 8e8 + 8e5 * t / 3600.0 + noise, t)
    settled = judged("rss_anon_swap_bytes", 8e8 + settling + noise, t)

    assert (leak.outcome, line.outcome, settled.outcome) == ("LEAK", "INCONCLUSIVE", "CLEAN")
    assert line.why is not None
    assert line.why.code == "growing"


def test_steps_that_may_go_on_are_not_clean() -> None:
    """A program that kept a few more MiB every hundred seconds was once CLEAN after three steps."""
    t = np.arange(0.0, 270.0)
    noise = 2e3 * np.random.default_rng(1).normal(size=t.size)

    def outcome(step_bytes: float, *at_s: float) -> tuple[str, str]:
        steps = sum(np.where(t < at, 0.0, step_bytes) for at in at_s)
        result = judged("rss_anon_swap_bytes", 3e6 + steps + noise, t)
        assert result.why is not None
        return result.outcome, result.why.code

    assert outcome(4e6, 50.0, 130.0, 230.0) == ("INCONCLUSIVE", "few-steps")
    assert outcome(4e6, 20.0, 50.0, 80.0)[0] == "CLEAN"  # start-up
    assert outcome(8e6, 230.0)[0] == "CLEAN"  # a single step
    assert outcome(4e5, 50.0, 130.0, 230.0)[0] == "CLEAN"  # within what may still settle


def test_steps_that_may_go_on_ask_for_a_second_half_without_one() -> None:
    """They once asked for half a day, because the process also grew by less than the floor."""
    t = np.arange(0.0, 270.0)
    noise = 2e3 * np.random.default_rng(1).normal(size=t.size)
    steps = sum(np.where(t < at, 0.0, 4e6) for at in (50.0, 130.0, 180.0))

    result = judged("rss_anon_swap_bytes", 3e6 + steps + 4e5 * t / 3600.0 + noise, t)

    assert result.needed_s == pytest.approx(540.0, rel=0.15)


def test_growth_above_the_bound_asks_for_the_time_after_which_it_would_be_a_leak() -> None:
    t = np.arange(0.0, 270.0)
    noise = 2e3 * np.random.default_rng(1).normal(size=t.size)

    def needed_s(per_hour: float) -> float | None:
        result = judged("rss_anon_swap_bytes", 3e6 + per_hour * t / 3600.0 + noise, t)
        assert result.outcome == "INCONCLUSIVE"
        return result.needed_s

    # Without a steady event, a leak needs 45 minutes and growth of 4 MiB.
    assert needed_s(2.0**20 * 12) == pytest.approx(2700.0)
    assert needed_s(2.0**20 * 5) == pytest.approx(0.8 * 3600.0, rel=0.05)


DAY = np.arange(0.0, 24 * 3600.0, 60.0)


@pytest.mark.parametrize(
    ("base", "hourly_bytes", "hours", "outcome"),
    [
        (60e6, 300e3, 24, "LEAK"),  # 12% a day
        (60e6, 60e3, 24, "LEAK"),  # 2.4%
        (60e6, 300e3, 8, "INCONCLUSIVE"),  # a LEAK after half a day
        (60e6, 40e3, 24, "INCONCLUSIVE"),  # 1.6%: never a LEAK, however long the run
        (2e9, 300e3, 24, "INCONCLUSIVE"),
        (60e6, 0.0, 24, "CLEAN"),
    ],
)
def test_in_half_a_day_growth_counts_by_the_size_of_the_process(
    base: float, hourly_bytes: float, hours: int, outcome: str
) -> None:
    t = DAY[: hours * 60]
    noise = 1e-4 * base * np.random.default_rng(2).normal(size=t.size)

    result = judged("rss_anon_swap_bytes", base + hourly_bytes * t / 3600.0 + noise, t)

    assert result.outcome == outcome


def test_a_small_leak_asks_for_half_a_day_and_what_no_time_decides_for_nothing() -> None:
    t = DAY[: 8 * 60]
    noise = 5e3 * np.random.default_rng(2).normal(size=t.size)

    small = judged("rss_anon_swap_bytes", 60e6 + 3e5 * t / 3600.0 + noise, t)
    large = judged("rss_anon_swap_bytes", 2e9 + 3e5 * t / 3600.0 + noise, t)

    assert small.needed_s == pytest.approx(12 * 3600.0)
    assert large.needed_s is None
    assert large.why is not None
    assert "a longer run would not decide" in large.why.text


def test_every_leak_says_how_sure_it_is_over_all_metrics() -> None:
    verdict = judge(healthy_record(Run(leak_bytes_per_h=GIB)))
    memory = next(m for m in verdict.metrics if m.metric == "rss_anon_swap_bytes")

    assert memory.p_value is not None
    assert memory.q_value is not None
    assert memory.p_value <= memory.q_value < 0.02
    growth = verdict.findings[0].data
    assert growth["q_value"] == memory.q_value
    assert growth["metrics_tested"] == sum(m.q_value is not None for m in verdict.metrics)


def test_a_leak_of_memory_says_which_limit_it_runs_into_and_when() -> None:
    verdict = judge(healthy_record(Run(leak_bytes_per_h=GIB)))
    end = verdict.findings[0].data["exhaustion"]

    assert isinstance(end, dict)
    assert end["limit"] == 16 * GIB
    assert 14 * 3600 < end["expected_s"] < 18 * 3600
    assert end["soonest_s"] < end["expected_s"] < end["latest_s"]


def test_only_growth_that_slows_down_is_said_to_fill_up() -> None:
    """Five minutes of noisy growth whose second half is faster or slower, depending on the seed."""
    t = np.arange(0.0, 300.0, 1.25)
    said = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        noise = np.cumsum(rng.normal(0.0, 0.1, t.size))
        late = np.clip(t - 150.0, 0.0, None) * rng.uniform(-0.05, 0.05)
        why = judged("rss_anon_swap_bytes", (400.0 + 0.05 * t + late + noise) * 2**20, t).why
        if why is not None and why.code == "still-filling":
            early_rate, late_rate = why.data["early"], why.data["late"]
            assert isinstance(early_rate, float)
            assert isinstance(late_rate, float)
            said.append(late_rate - early_rate)

    assert len(said) > 5
    assert max(said) < 0.0


def on_a_gpu(record: RunRecord, metric: str, bytes_per_request: float) -> RunRecord:
    """The run on a device where every finished request leaves a tensor."""
    finishes = record.series["events.finishes"]
    tensors = Series(metric, finishes.t_s, 2 * GIB + bytes_per_request * finishes.value)
    return with_series(with_manifest(record, model={"name": "m", "device": "cuda"}), tensors)


@pytest.mark.parametrize(
    "metric", ["device_allocated_bytes", "device_graph_bytes", "pinned_allocated_bytes"]
)
def test_tensors_left_on_the_device_are_a_leak_of_its_own_memory(metric: str) -> None:
    record = healthy_record()

    verdict = judge(on_a_gpu(record, metric, 65_536.0))

    (finding,) = verdict.findings
    assert (finding.kind, finding.subject) == ("growth", metric)
    assert finding.driver == "finishes"
    per_request = next(rate for rate in finding.rates if rate.per != "h")
    assert per_request.lower <= 65_536 <= per_request.upper
    # These are not part of private memory, which does not grow.
    assert "faster_than_memory" not in finding.data
    assert judge(on_a_gpu(record, metric, 0.0)).kind is VerdictKind.CLEAN


def test_a_run_without_a_device_misses_no_device_memory() -> None:
    record = healthy_record()
    gpu = with_manifest(record, model={"name": "m", "device": "cuda"})

    assert not any("device_allocated_bytes" in text for text in judge(record).not_seen)
    assert any(text.startswith("device_allocated_bytes: ") for text in judge(gpu).not_seen)


def test_one_sample_in_the_window_needs_as_long_as_those_before_it_say() -> None:
    """After 1 s of steady state, with one heap scan: 29 more, 4 s apart, are needed."""
    verdict = judge(healthy_record(Run(seed=1)).until(121.5))

    few = {one.metric: one for one in verdict.metrics}
    assert few["gc_collectible_bytes"].needed_s == pytest.approx(1.0 + 29 * 4.0)
    assert few["rss_anon_swap_bytes"].needed_s == pytest.approx(12.0)


@pytest.mark.parametrize("seed", [10, 13, 124])
def test_memory_that_falls_is_not_said_to_fill(seed: int) -> None:
    """Like a worker that releases its memory in steps."""
    draw = np.random.default_rng(seed)
    t = np.arange(1.0, 330.0)
    value = np.full(t.size, 4.6e8)
    for sign, most in ((-1.0, 8), (1.0, 4)):
        for _ in range(draw.integers(2 if sign < 0 else 0, most)):
            value += sign * draw.uniform(0.05e6, 1.5e6) * (t > draw.uniform(20.0, 320.0))

    result = judged("rss_anon_swap_bytes", value + draw.normal(0.0, 5e4, t.size), t)

    assert result.outcome == "INCONCLUSIVE"
    assert result.reason.startswith("growth up to ")


def test_growth_of_the_later_half_alone_is_compared_with_the_whole_floor() -> None:
    """No model fits the first half; the second must reach the whole floor in half the time."""
    t = np.arange(60.0, 7195.0)
    first = t < 3600.0
    rng = np.random.default_rng(3)
    swing = 400e6 * np.sin(6.0 * np.pi * t / 3600.0 + 3.0) * np.exp(-t / 3600.0)
    walk = np.where(first, swing + np.cumsum(rng.normal(0.0, 7e6, t.size)), 0.0)
    walk[~first] = walk[first][-1]
    value = 700e6 + walk + 1.5 * GIB / 3600.0 * t + rng.normal(0.0, 1e6, t.size)
    record = RunRecord(Manifest(), {MEMORY: Series(MEMORY, t, value)}, [Steady(t_s=60.0)])

    result = judge_trend(Facts.of(record), declared(MEMORY), Effort())

    assert (result.outcome, result.window_s[0] > 3600.0) == ("LEAK", True)
    assert result.why is not None
    assert result.why.data["faster_than"] == pytest.approx(result.floor_per_hour, rel=0.01)


@pytest.mark.parametrize(
    ("reason", "called"), [(None, "LEAK"), (Steady.CACHE_FULL, "INCONCLUSIVE")]
)
def test_a_warm_up_after_the_cache_is_full_goes_on_for_its_usual_time(
    reason: str | None, called: str
) -> None:
    """vLLM's worker filled for minutes more, ever more slowly; a server knows when it is warm."""
    t = np.arange(200.0, 700.0)
    rng = np.random.default_rng(5)
    slow = 30e6 * np.log1p((t - 200.0) / 20.0) + 0.2e6 * (t - 200.0)
    value = 700e6 + slow + rng.normal(0.0, 1e5, t.size)
    steady = Steady(reason, t_s=200.0)
    record = RunRecord(Manifest(), {MEMORY: Series(MEMORY, t, value)}, [steady])

    result = judge_trend(Facts.of(record), declared(MEMORY), Effort())

    assert result.outcome == called
    if called != "LEAK":
        assert result.why is not None
        assert result.why.code == "no-steady-state"
