"""Least squares with AR(1) errors against the textbook, and model search against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.gls import (
    Problem,
    choose_phi,
    fit_model,
    rank_models,
    whiten,
)
from hybridbench.analysis.trend.shapes import Trend, Warmup, build_shapes
from tests.unit.analysis.traces import ar1

N = 80
X = (np.arange(N) + 0.5) / N


def problem(y: FloatArray) -> Problem:
    return Problem(y, np.ones(N - 1), build_shapes(X))


def noise(seed: int, phi: float = 0.5) -> FloatArray:
    return ar1(np.random.default_rng(seed), np.arange(float(N)), 1.0, -1.0 / np.log(phi))


def test_a_fit_is_the_generalised_least_squares_of_the_textbook() -> None:
    phi, y = 0.6, noise(1) + 5 * X
    model = next(
        m
        for m in rank_models(problem(y), phi, 0)
        if m.candidate.trend is Trend.TIME and m.candidate.warmup is Warmup.NONE
    )

    fit = fit_model(problem(y), model, phi)

    lags = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    inverse = np.linalg.inv(phi**lags / (1 - phi**2))
    design = np.column_stack([np.ones(N), X])
    bread = np.linalg.inv(design.T @ inverse @ design)
    beta = bread @ design.T @ inverse @ y
    rest = y - design @ beta
    assert fit.beta == pytest.approx(beta)
    assert fit.cov == pytest.approx(bread * (rest @ inverse @ rest) / (N - 2))


def test_whitening_counts_the_blocks_that_are_missing() -> None:
    phi = 0.7
    at = np.array([0.0, 1, 2, 5, 6, 9])
    lags = np.abs(np.subtract.outer(at, at))

    root = whiten(np.eye(at.size), phi, np.diff(at))

    assert root @ (phi**lags / (1 - phi**2)) @ root.T == pytest.approx(np.eye(at.size))


@pytest.mark.parametrize("phi", [0.2, 0.6, 0.9])
def test_the_autocorrelation_is_found_on_average(phi: float) -> None:
    found = [choose_phi(problem(noise(seed, phi)), 3) for seed in range(20)]

    assert float(np.mean(found)) == pytest.approx(phi, abs=0.17)


def test_no_residuals_have_no_autocorrelation() -> None:
    flat = problem(np.zeros(N))

    assert choose_phi(flat, 0) == 0.0


@pytest.mark.parametrize(
    ("name", "shape", "steps"),
    [
        ("flat", np.zeros(N), 0),
        ("trend in time", 60 * X, 0),
        ("flat", 30.0 * (X > 0.4), 1),
        ("flat", 30.0 * (X > 0.4) - 18.0 * (X > 0.7), 2),
        ("ramp, then flat", 60 * np.minimum(X / 0.35, 1), 0),
        ("saturating", 60 * (1 - np.exp(-X / 0.16)), 0),
    ],
)
def test_the_shape_that_made_the_data_ranks_first(name: str, shape: FloatArray, steps: int) -> None:
    best = rank_models(problem(shape + noise(4)), 0.5, 3)[0]

    assert best.candidate.label == name
    assert len(best.steps) == steps


def test_the_best_step_is_the_one_that_trying_all_would_find() -> None:
    y = noise(9) + 2.5 * (X > 0.62)
    phi = 0.5
    plain = next(m for m in rank_models(problem(y), phi, 1) if m.candidate.label == "flat")

    def left(place: int) -> float:
        design = np.column_stack([np.ones(N), np.arange(N) >= place])
        white = whiten(np.column_stack([design, y]), phi, np.ones(N - 1))
        return float(np.linalg.lstsq(white[:, :2], white[:, 2])[1][0])

    assert plain.steps == (int(np.argmin([left(k) for k in range(1, N)])),)


def test_an_empty_column_gets_no_coefficient() -> None:
    """Two clusters of samples make two blocks; work that begins after both gives no column."""
    shapes = build_shapes(np.array([0.1, 0.2]), [np.array([0.1, 0.2])])
    few = Problem(np.array([1.0, 2.0]), np.array([30.0]), shapes)

    fits = [fit_model(few, model, 0.9) for model in rank_models(few, 0.9, 0)]

    assert all(np.isfinite(fit.beta).all() and np.isfinite(fit.cov).all() for fit in fits)
    late = [f for f in fits if f.model.candidate.trend is Trend.WORK_ONSET]
    assert all(f.beta[-1] == 0.0 for f in late)
