"""Memory that follows the load, with a lag or by its peak so far, is not a leak."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.analysis.trend.estimate import Estimate, Options, Samples, estimate
from tests.unit.analysis.records import Run, healthy_record, with_series

T = np.arange(0.0, 300.0)
MB = 1e6
OPTIONS = Options(floor=8 * MB)


def judged(
    load: FloatArray,
    *,
    kept_mb: float,
    leak_mb_per_s: float,
    seed: int,
    besides: FloatArray | float = 0.0,
) -> Estimate:
    """Estimate for a process that keeps ``kept_mb`` times the peak number of requests in flight.

    ``besides`` [MB, samples] is added to its memory.
    """
    rng = np.random.default_rng(seed)
    noise = np.cumsum(rng.normal(0.0, 0.05, T.size)) * 0.5
    value = 300.0 + kept_mb * np.maximum.accumulate(load) + leak_mb_per_s * T + noise + besides
    return estimate(Samples(T, value * MB, [], load), OPTIONS)


def ramp(seed: int) -> FloatArray:
    """Requests in flight: a rising number, and none whenever a checkpoint drains the engine."""
    load = np.round(6 + 22 * T / T[-1] + np.random.default_rng(seed).normal(0, 1.5, T.size))
    return np.where(T % 30 < 2, 0.0, np.maximum(load, 1.0))


def steady(seed: int) -> FloatArray:
    return np.round(24 + np.random.default_rng(seed).normal(0, 2.0, T.size))


@pytest.mark.parametrize("seed", range(3))
def test_memory_that_follows_the_peaks_of_a_rising_load_is_no_leak(seed: int) -> None:
    assert not judged(ramp(seed), kept_mb=1.2, leak_mb_per_s=0.0, seed=seed).leak


@pytest.mark.parametrize("seed", range(3))
def test_a_leak_under_a_steady_load_is_found(seed: int) -> None:
    assert judged(steady(seed), kept_mb=1.2, leak_mb_per_s=0.2, seed=seed).leak


def test_a_leak_far_above_what_the_peaks_explain_is_one_though_the_load_still_rises() -> None:
    # The load is constant for a while; memory keeps growing.
    load = np.where((T > 100) & (T < 220), 14.0, ramp(1))

    assert judged(load, kept_mb=1.2, leak_mb_per_s=1.5, seed=1).leak


@pytest.mark.parametrize("seed", range(3))
def test_growth_as_even_as_the_rising_load_is_undecided(seed: int) -> None:
    climbing = judged(ramp(seed), kept_mb=0.0, leak_mb_per_s=0.12, seed=seed)
    even = judged(steady(seed), kept_mb=0.0, leak_mb_per_s=0.12, seed=seed)

    assert even.leak
    assert (climbing.leak, climbing.reason) == (False, "load-climbs")


@pytest.mark.parametrize("seed", range(3))
def test_growth_by_a_larger_share_than_the_loads_is_a_leak(seed: int) -> None:
    load = np.round(20 + 8 * T / T[-1] + np.random.default_rng(seed).normal(0, 1.0, T.size))

    assert judged(load, kept_mb=0.0, leak_mb_per_s=1.5, seed=seed).leak


def follows(load: FloatArray, lag_s: float) -> FloatArray:
    """Number of connections under ``load`` if each stays open for ``lag_s`` on average."""
    held = np.empty(load.size)
    held[0] = load[0]
    for i in range(1, load.size):
        held[i] = held[i - 1] + (load[i] - held[i - 1]) / lag_s
    return held


@pytest.mark.parametrize("lag_s", [5.0, 15.0, 40.0])
@pytest.mark.parametrize("rises_at", [0.35, 0.6, 0.8])
def test_memory_that_follows_a_step_of_the_load_late_is_no_leak(
    rises_at: float, lag_s: float
) -> None:
    for seed in range(2):
        load = steady(seed) + 16.0 * (rises_at * T[-1] < T)
        late = 3.0 * follows(load, lag_s)

        assert not judged(load, kept_mb=0.0, leak_mb_per_s=0.0, seed=seed, besides=late).leak


@pytest.mark.parametrize("seed", range(4))
def test_a_leak_beside_what_follows_a_swing_of_the_load_late_is_found(seed: int) -> None:
    load = steady(seed) + 12.0 * np.sin(2 * np.pi * 2.2 * T / T[-1])
    late = 3.0 * follows(load, 15.0)
    found = judged(load, kept_mb=0.0, leak_mb_per_s=0.5, seed=seed, besides=late)

    assert found.leak
    assert found.growth / MB == pytest.approx(0.5 * T[-1], rel=0.15)


def private_memory(record: RunRecord) -> str:
    outcome = {m.metric: m.outcome for m in judge(record).metrics}
    return outcome["rss_anon_swap_bytes"]


def test_what_waits_is_in_flight_as_what_runs_is() -> None:
    running_only: list[str] = []
    with_waiting: list[str] = []
    for seed in range(4):
        record = healthy_record(Run(420.0, 60.0, limit=None, seed=seed))
        t = record.series["running_requests"].t_s
        load = 10 + 70 * t / t[-1] + np.random.default_rng(seed).normal(0, 3.0, t.size)
        running = np.minimum(load, 16.0)
        memory = record.series["rss_anon_swap_bytes"].value + 3 * MB * np.maximum.accumulate(load)
        record = with_series(record, Series("rss_anon_swap_bytes", t, memory))
        record = with_series(record, Series("running_requests", t, running))
        running_only.append(private_memory(record))
        waiting = Series("waiting_requests", t, load - running)
        with_waiting.append(private_memory(with_series(record, waiting)))

    # Without the waiting requests, a growing queue is taken for a leak.
    assert running_only.count("LEAK") >= 2
    assert "LEAK" not in with_waiting
