"""Losses at random times: a line under a random walk versus a fill, and the line's interval."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.estimate import Options, Samples, estimate
from hybridbench.analysis.trend.gls import Problem, choose_phi, fit_model, rank_models
from hybridbench.analysis.trend.random_walk import RandomWalkFit, fit_random_walk
from hybridbench.analysis.trend.shapes import build_shapes

N = 80
X = (np.arange(N) + 0.5) / N
ALPHA = 0.001


def walk_of(y: FloatArray) -> RandomWalkFit:
    problem = Problem(y, np.ones(N - 1), build_shapes(X))
    phi = choose_phi(problem, 3)
    best = fit_model(problem, rank_models(problem, phi, 3)[0], phi)
    found = fit_random_walk(problem, best, phi)
    assert found is not None
    return found


def losses(seed: int, count: int) -> FloatArray:
    """Losses at random times, 100 in total on average over seeds, with measurement noise."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.random(rng.poisson(count)))
    lost = 100.0 / count * np.searchsorted(at, X)
    seen: FloatArray = lost + rng.normal(size=N)
    return seen


def test_the_interval_holds_the_rate_of_losses_by_chance_as_often_as_it_says() -> None:
    found = [walk_of(losses(seed, 60)) for seed in range(40)]
    held = [low <= 100.0 <= high for low, high in (one.interval for one in found)]

    assert float(np.mean(held)) > 0.85
    # The rival is the best of hundreds of shapes with steps, so it often fits chance well.
    assert float(np.mean([one.plausible for one in found])) > 0.5
    assert float(np.mean([one.surely_grows(5.0, ALPHA) for one in found])) > 0.6


def test_a_walk_that_goes_nowhere_is_no_growth() -> None:
    rng = np.random.default_rng(5)
    walks = [np.cumsum(rng.normal(size=N)) + 0.3 * rng.normal(size=N) for _ in range(100)]

    assert sum(walk_of(y).surely_grows(0.0, ALPHA) for y in walks) <= 1


@pytest.mark.parametrize("tau", [0.2, 0.5, 0.8])
def test_a_fill_that_slows_down_is_not_called(tau: float) -> None:
    rng = np.random.default_rng(7)
    for noise in (0.2, 1.0, 5.0):
        fill = 100.0 * (1.0 - np.exp(-X / tau)) + noise * rng.normal(size=N)

        assert not (walk_of(fill).plausible and walk_of(fill).surely_grows(0.0, ALPHA))


@pytest.mark.parametrize("end", [0.8, 0.9])
def test_growth_that_ends_before_the_window_does_is_not_called(end: float) -> None:
    fill = 100.0 * np.minimum(X / end, 1.0) + np.random.default_rng(3).normal(size=N)

    assert not walk_of(fill).goes_on


def test_the_comparison_with_noise_that_returns_is_that_of_whole_likelihoods() -> None:
    y = losses(11, 60)
    gaps = np.ones(N - 1)
    gaps[30] = 4.0
    problem = Problem(y, gaps, build_shapes(X))
    phi = 0.4
    best = fit_model(problem, rank_models(problem, phi, 3)[0], phi)
    at = np.concatenate([[1.0], 1.0 + np.cumsum(gaps)])

    def bic(covariance: FloatArray, left: FloatArray, parameters: int) -> float:
        rss = float(left @ np.linalg.solve(covariance, left))
        return float(
            N * np.log(rss / N) + np.linalg.slogdet(covariance)[1] + parameters * np.log(N)
        )

    def line(share: float) -> float:
        covariance = np.eye(N) + share * np.minimum.outer(at, at)
        design = np.column_stack([np.ones(N), X])
        bread = design.T @ np.linalg.solve(covariance, np.column_stack([design, y]))
        beta = np.linalg.solve(bread[:, :2], bread[:, 2])
        return bic(covariance, y - design @ beta, 3)

    returning = phi ** np.abs(np.subtract.outer(at, at)) / (1.0 - phi * phi)
    expected = min(line(share) for share in [0.0, *10.0 ** np.arange(-2.5, 3.1, 0.5)]) - bic(
        returning, best.residuals, best.model.parameters + 1
    )

    found = fit_random_walk(problem, best, phi)

    assert found is not None
    assert found.worse_by == pytest.approx(expected, abs=1e-6)


def test_too_few_blocks_have_no_walk() -> None:
    x = X[:12]
    problem = Problem(10.0 * x, np.ones(11), build_shapes(x))
    best = fit_model(problem, rank_models(problem, 0.3, 0)[0], 0.3)

    assert fit_random_walk(problem, best, 0.3) is None


def test_a_leak_whose_luck_looks_like_bends_is_called_by_its_walk() -> None:
    t = np.arange(0.0, 6 * 3600.0, 5.0)
    called = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        at = np.sort(rng.random(90)) * t[-1]
        value = 4e9 + 3e6 * np.searchsorted(at, t) + 2e6 * rng.normal(size=t.size)
        found = estimate(Samples(t, value), Options(floor=20e6))
        called.append(found.leak)
        if found.model == "trend in time, random losses":
            assert found.lower < found.growth < found.upper
            assert found.p_value < ALPHA
            assert found.band.min() > 0

    assert float(np.mean(called)) > 0.9
