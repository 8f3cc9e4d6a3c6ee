"""Levels of a series: intervals have their coverage even if samples are autocorrelated."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.window import judged_window
from hybridbench.analysis.levels import Measured, level, run_levels
from hybridbench.foundation.thresholds import Stat
from tests.unit.analysis.records import Run, healthy_record
from tests.unit.analysis.traces import ar1


def measured(value: object) -> Measured:
    assert isinstance(value, Measured)
    return value


@pytest.mark.parametrize("stat", [Stat.MEAN, Stat.P50, Stat.P95])
@pytest.mark.parametrize("memory_s", [0.1, 20.0])
def test_an_interval_covers_the_true_level_about_as_often_as_it_says(
    stat: Stat, memory_s: float
) -> None:
    t = np.arange(0.0, 600.0, 2.0)
    truth = 100.0 + (5.0 * 1.644854 if stat is Stat.P95 else 0.0)

    found = [
        measured(level(100.0 + ar1(np.random.default_rng(seed), t, 5.0, memory_s), stat))
        for seed in range(300)
    ]

    # 95%, less the error of 300 draws and a shortfall where a series has only a few swings.
    assert np.mean([one.lower <= truth <= one.upper for one in found]) > 0.88
    bounded = np.mean([np.isfinite(one.upper - one.lower) for one in found])
    # Ten independent samples do not bound a 95th percentile.
    assert bounded < 0.1 if (stat, memory_s) == (Stat.P95, 20.0) else bounded > 0.9


@pytest.mark.parametrize("stat", [Stat.MEAN, Stat.LAST_FIRST_RATIO])
def test_an_interval_also_covers_where_a_swing_lasts_a_hundred_samples(stat: Stat) -> None:
    t = np.arange(0.0, 600.0)
    truth = 1.0 if stat is Stat.LAST_FIRST_RATIO else 100.0

    found = [
        measured(level(100.0 + ar1(np.random.default_rng(seed), t, 5.0, 100.0), stat))
        for seed in range(60)
    ]

    assert np.mean([one.lower <= truth <= one.upper for one in found]) > 0.8


def test_samples_that_resemble_their_neighbours_leave_a_wider_interval() -> None:
    t = np.arange(0.0, 600.0, 2.0)
    rng = np.random.default_rng(3)

    fresh, slow = (measured(level(ar1(rng, t, 5.0, s), Stat.MEAN)) for s in (0.1, 30.0))

    assert slow.upper - slow.lower > 3 * (fresh.upper - fresh.lower)


def test_a_rare_quantile_of_few_samples_has_no_upper_bound() -> None:
    value = np.arange(20.0)

    found = measured(level(value, Stat.P99))

    assert found.upper == np.inf


def test_the_last_third_over_the_first_says_how_much_was_lost() -> None:
    value = np.concatenate([np.full(100, 50.0), np.full(100, 45.0), np.full(100, 40.0)])
    value += np.random.default_rng(1).normal(0, 1.0, 300)

    found = measured(level(value, Stat.LAST_FIRST_RATIO))

    assert found.lower < 0.8 < found.upper
    assert found.upper - found.lower < 0.03


def test_too_few_samples_have_no_level_but_an_extreme() -> None:
    value = np.array([3.0, 9.0, 4.0])

    assert level(value, Stat.MEAN) is None
    assert measured(level(value, Stat.MAX)).value == 9.0
    assert measured(level(value, Stat.LAST)).value == 4.0
    assert level(np.zeros(0), Stat.LAST) is None


def test_a_verdict_tells_the_peak_of_memory_in_the_judged_window() -> None:
    record = healthy_record(Run(600.0, 120.0))
    window = judged_window(record)
    assert window is not None

    told = {row.metric: row for row in run_levels(record, window)}

    memory = window.samples(record.series["rss_anon_swap_bytes"])[1]
    assert told["rss_anon_swap_bytes"].value == memory.max()
    assert "throughput_tokens_per_s" not in told
    assert run_levels(record, None) == ()
