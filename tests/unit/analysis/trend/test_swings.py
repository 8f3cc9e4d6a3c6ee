"""A swing of unknown period is found, noise is not a swing, and growth beside one is seen."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.estimate import Options, Samples, estimate
from hybridbench.analysis.trend.gls import Problem
from hybridbench.analysis.trend.nuisance import find_swing
from hybridbench.analysis.trend.shapes import build_shapes

X = np.linspace(0.0, 1.0, 80)
T = np.arange(0.0, 4 * 3600.0, 10.0)


def problem(y: FloatArray) -> Problem:
    return Problem(y, np.ones(X.size - 1), build_shapes(X))


def swinging(cycles: float, height: float, rate: float) -> FloatArray:
    noise = np.random.default_rng(4).normal(size=T.size)
    wave = height * np.sin(2 * np.pi * (cycles * T / T[-1] + 0.3))
    total: FloatArray = 1000.0 + wave + noise + rate * T / 3600.0
    return total


@pytest.mark.parametrize("cycles", [4.37, 5.0, 11.8])
def test_a_swing_of_any_period_is_found(cycles: float) -> None:
    noise = np.random.default_rng(2).normal(size=X.size)
    y = 10.0 * np.sin(2 * np.pi * cycles * X) + noise
    found = find_swing(problem(y))

    assert found is not None
    columns = np.column_stack([np.ones(X.size), *found.columns])
    left = y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    assert left.std() < 1.3 * noise.std()


def test_noise_and_lines_do_not_swing() -> None:
    noise = np.random.default_rng(3).normal(size=X.size)

    assert find_swing(problem(noise)) is None
    assert find_swing(problem(noise + 100.0 * X)) is None
    assert find_swing(problem(np.zeros(X.size))) is None


def test_a_swing_hides_neither_the_bound_nor_a_leak() -> None:
    still = estimate(Samples(T, swinging(4.4, 50.0, 0.0)), Options(floor=4.0))
    leak = estimate(Samples(T, swinging(4.4, 50.0, 20.0)), Options(floor=4.0))

    assert not still.leak
    assert still.upper < 4.0
    assert leak.leak
    assert leak.lower < 80.0 < leak.upper
