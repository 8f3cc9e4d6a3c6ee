"""Line fits for many counters, with autocorrelated errors."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.drivers.line_fits import (
    Levels,
    fit_line,
    screen,
    slope_interval,
    told_apart,
)
from hybridbench.analysis.record import FloatArray
from tests.unit.analysis.traces import ar1

T = np.arange(400.0)


def levels(value: FloatArray, *candidates: FloatArray, cut_at: int | None = None) -> Levels:
    first = np.zeros(T.size, dtype=np.bool_)
    first[0] = True
    if cut_at is not None:
        first[cut_at] = True
    return Levels(value, np.column_stack(candidates), np.empty((T.size, 0)), first)


def poisson(seed: int, mean: float) -> FloatArray:
    return np.cumsum(np.random.default_rng(seed).poisson(mean, T.size)).astype(np.float64)


def test_the_slope_is_in_the_units_of_value_and_counter() -> None:
    counter = poisson(1, 3.0)
    found = screen(levels(7e8 + 250.0 * counter, counter, 1000.0 * counter))

    assert found.slope == pytest.approx([250.0, 0.25])


@pytest.mark.parametrize("noise", ["white", "slow", "walk"])
def test_nominal_intervals_hold_the_truth_whatever_the_errors_remember(noise: str) -> None:
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(1000 + seed)
        counter = poisson(seed, 2.0)
        error = {
            "white": rng.normal(0, 5.0, T.size),
            "slow": ar1(rng, T, 5.0, 20.0),
            "walk": np.cumsum(rng.normal(0, 1.0, T.size)),
        }[noise]
        data = levels(3.0 * counter + error, counter)
        low, high = slope_interval(data, screen(data), 0)
        held += low <= 3.0 <= high

    assert held >= 53


def test_they_also_hold_it_where_events_add_unequal_amounts_to_a_fluctuating_level() -> None:
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(2000 + seed)
        counter = poisson(seed, 0.24)
        added = [rng.exponential(3.0, int(n)).sum() for n in np.diff(counter, prepend=0.0)]
        data = levels(np.cumsum(added) + ar1(rng, T, 3.0, 10.0), counter)
        low, high = slope_interval(data, screen(data), 0)
        held += low <= 3.0 <= high

    assert held >= 52


def test_stretches_have_levels_of_their_own() -> None:
    counter = poisson(2, 1.0)
    value = 2.0 * counter + np.where(T >= 200, 5000.0, 0.0)

    whole, cut = levels(value, counter), levels(value, counter, cut_at=200)

    assert fit_line(cut, screen(cut), 0).slope == pytest.approx(2.0)
    assert fit_line(whole, screen(whole), 0).slope != pytest.approx(2.0, rel=0.01)


def test_what_moves_the_level_besides_is_taken_out() -> None:
    counter, load = poisson(3, 0.3), poisson(4, 5.0) % 17
    data = Levels(counter + 4 * load, counter[:, None], load[:, None], T == 0)

    assert slope_interval(data, screen(data), 0) == pytest.approx((1.0, 1.0))


def test_a_difference_from_a_few_rows_does_not_separate_candidates() -> None:
    counter = poisson(5, 2.0)
    rng = np.random.default_rng(6)
    value = counter + np.cumsum(rng.normal(0, 1.0, T.size))
    # The other candidate differs at one place only, where the value happens to jump.
    value[200:] += 40.0
    other = counter + np.where(T >= 200, 40.0, 0.0)
    data = levels(value, counter, other)
    found = screen(data)
    first, second = fit_line(data, found, 0), fit_line(data, found, 1)

    assert second.log_likelihood - first.log_likelihood > 20
    assert not told_apart(second, first, 2.33)
