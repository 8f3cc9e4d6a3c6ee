"""Trends, steps, and series that are neither."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.worsening import worsening

INDEX = np.arange(48, dtype=np.float64)
NO_LOADS = np.zeros((48, 0))
LEAST = float(np.log1p(0.5))


def noise(seed: int, spread: float = 0.1) -> FloatArray:
    return np.random.default_rng(seed).normal(0, spread, INDEX.size)


def test_a_trend_to_twice_the_cost_is_measured_with_its_interval() -> None:
    found = worsening(noise(1) + np.log(2) * INDEX / 47, INDEX, NO_LOADS, LEAST)

    assert found.worse
    assert found.shape == "trend"
    assert found.lower < np.log(2) < found.upper
    assert found.sure > 0


def test_a_step_is_placed_where_it_is() -> None:
    found = worsening(noise(2) + 0.8 * (INDEX >= 30), INDEX, NO_LOADS, LEAST)

    assert found.worse
    assert found.shape == "step"
    assert found.step_at == 30
    assert found.change == pytest.approx(0.8, abs=0.12)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_no_worsening(seed: int) -> None:
    assert not worsening(noise(seed, 0.3), INDEX, NO_LOADS, LEAST).worse


def test_what_got_better_is_no_worsening() -> None:
    assert not worsening(noise(3) - 1.0 * (INDEX >= 20), INDEX, NO_LOADS, LEAST).worse


def test_a_sure_but_small_rise_does_not_count() -> None:
    found = worsening(noise(4, 0.01) + 0.2 * INDEX / 47, INDEX, NO_LOADS, LEAST)

    assert found.shape == "trend"
    assert not found.worse


def test_a_slow_stretch_that_ends_is_no_step() -> None:
    slow = ((INDEX >= 10) & (INDEX < 25)) * 0.8

    assert not worsening(noise(5) + slow, INDEX, NO_LOADS, LEAST).worse


def test_a_rise_in_the_last_blocks_alone_is_too_young_to_be_a_step() -> None:
    assert not worsening(noise(6) + 2.0 * (INDEX >= 44), INDEX, NO_LOADS, LEAST).worse


def test_what_a_natural_cause_explains_is_taken_out() -> None:
    load = np.log(1.0 + INDEX / 20.0)
    load = load + np.random.default_rng(7).normal(0, 0.1, INDEX.size)
    z = noise(8, 0.05) + load

    assert worsening(z, INDEX, NO_LOADS, LEAST).worse
    assert not worsening(z, INDEX, (load - load.mean())[:, None], LEAST).worse


def test_a_scale_changes_nothing() -> None:
    z = noise(9) + np.log(2) * INDEX / 47

    one, other = (worsening(z + shift, INDEX, NO_LOADS, LEAST) for shift in (0.0, 9.0))

    assert (one.worse, one.shape) == (other.worse, other.shape)
    assert one.change == pytest.approx(other.change)


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="15 blocks are too few"):
        worsening(np.zeros(15), INDEX[:15], NO_LOADS[:15], LEAST)
