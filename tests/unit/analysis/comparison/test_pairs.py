"""Paired rounds: coverage, outliers, the order of turns, and drifting levels."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.comparison.pairs import (
    PairedMean,
    Pairs,
    hodges_lehmann,
    paired_mean,
    widening,
)
from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray


def _pairs(log_ratio: FloatArray, position: float = 0.0) -> Pairs:
    order = np.where(np.arange(log_ratio.size) % 2 == 0, 1.0, -1.0)
    return Pairs(log_ratio + position * order, order)


def _standard_error(values: FloatArray) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size))


def _found(pairs: Pairs) -> PairedMean:
    found = paired_mean(pairs)
    assert found is not None
    return found


def test_few_pairs_of_one_order_are_an_ordinary_mean() -> None:
    values = np.array([0.01, 0.03, -0.02, 0.02])

    found = _found(Pairs(values, np.ones(4)))

    assert found.mean == pytest.approx(float(values.mean()))
    assert found.se == pytest.approx(_standard_error(values))
    assert found.df == 3
    assert found.position is None


def test_one_pair_has_no_spread_and_gives_nothing() -> None:
    found = paired_mean(Pairs(np.array([0.1]), np.ones(1)))

    assert found is None


@pytest.mark.parametrize("count", [12, 24])
@pytest.mark.parametrize("disturbed", [0.0, 0.1])
def test_intervals_hold_the_truth_as_often_as_they_say(count: int, disturbed: float) -> None:
    rng = np.random.default_rng(11)
    repeats, held = 350, 0
    for _ in range(repeats):
        d = 0.02 * rng.normal(size=count)
        d -= (rng.random(count) < disturbed) * rng.normal(size=count) * 0.15
        found = _found(_pairs(d))
        held += abs(found.mean) < t_quantile(0.95, found.df) * found.se

    assert held / repeats == pytest.approx(0.90, abs=0.035)


def test_disturbed_rounds_hardly_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    calm = 0.02 * rng.normal(size=24)
    shaken = calm.copy()
    shaken[[3, 10]] -= 0.5

    quiet, loud = _found(_pairs(calm)), _found(_pairs(shaken))

    assert loud.se < 1.6 * quiet.se
    assert abs(loud.mean - quiet.mean) < quiet.se
    # An ordinary standard error would be six times as wide.
    assert _standard_error(shaken) > 5 * quiet.se


def test_what_the_second_turn_adds_is_found_and_taken_out() -> None:
    rng = np.random.default_rng(5)
    noise = 0.01 * rng.normal(size=24)

    found = _found(_pairs(noise + 0.02, position=0.10))

    assert found.mean == pytest.approx(0.02, abs=0.006)
    assert found.position == pytest.approx(0.10, abs=0.006)
    assert found.position_p is not None
    assert found.position_p < 1e-6


def test_an_odd_number_of_rounds_does_not_let_the_order_into_the_ratio() -> None:
    found = _found(_pairs(np.zeros(7), position=0.10))

    assert found.mean == pytest.approx(0.0, abs=1e-12)


def test_a_drifting_level_has_a_wider_interval_than_its_scatter_suggests() -> None:
    rng = np.random.default_rng(7)
    walk = 0.002 * np.cumsum(rng.normal(size=24))

    plain, creeping = paired_mean(_pairs(walk)), paired_mean(_pairs(walk), creeping=True)

    assert plain is not None
    assert creeping is not None
    assert creeping.se > 2.0 * plain.se


def test_identical_values_have_no_width_and_do_not_fail() -> None:
    found = _found(_pairs(np.full(24, 0.3)))

    assert found.mean == pytest.approx(0.3)
    assert found.se == pytest.approx(0.0, abs=1e-12)
    assert widening(np.zeros(10)) == 1.0


def test_the_robust_ratio_is_the_median_of_all_means_of_two() -> None:
    values = np.array([0.0, 1.0, 10.0])

    assert hodges_lehmann(values) == pytest.approx(3.0)
