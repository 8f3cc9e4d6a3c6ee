"""The criteria by which fitted models call a leak."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.criteria import (
    Pace,
    Question,
    climbs_between_steps,
    goes_on,
    least_sure,
    p_value,
    reason,
    slowed,
    tail,
)
from hybridbench.analysis.trend.gls import Model, ModelFit, Problem, fit_model, rank_models
from hybridbench.analysis.trend.shapes import Candidate, Trend, Warmup, build_shapes

X = np.linspace(0.0, 1.0, 80)
NOISE = np.random.default_rng(7).normal(size=X.size)


def ranked(y: FloatArray) -> tuple[Problem, list[Model]]:
    problem = Problem(y + NOISE, np.ones(X.size - 1), build_shapes(X))
    return problem, rank_models(problem, 0.0, 0)


def best_fit(y: FloatArray) -> ModelFit:
    problem, models = ranked(y)
    return fit_model(problem, models[0], 0.0)


def model(warmup: Warmup, steps: int) -> Model:
    return Model(Candidate(warmup, Trend.TIME, (0,), 0, 2), tuple(range(steps)), 0.0)


def test_the_chance_is_that_of_student_s_t() -> None:
    assert tail(t_quantile(0.999, 70), 1.0, 70) == pytest.approx(0.001)
    assert tail(2.0, 0.0, 70) == 0.0
    assert tail(-2.0, 0.0, 70) == 1.0


def test_growth_is_tested_against_the_floor_and_not_against_nothing() -> None:
    fit = best_fit(20.0 * X)

    assert p_value(fit, 10.0) < 1e-6
    assert p_value(fit, 20.0) > 0.01
    assert p_value(best_fit(0.0 * X), 0.0) == 1.0


def test_the_more_steps_the_surer_it_must_be() -> None:
    assert least_sure(model(Warmup.NONE, 0), 3) == 0.0
    assert 0.0 < least_sure(model(Warmup.NONE, 1), 3) < least_sure(model(Warmup.RAMP, 3), 3)
    assert least_sure(model(Warmup.RAMP, 0), 3, phi=0.2) == 0.0
    assert least_sure(model(Warmup.RAMP, 0), 3, phi=0.9) == least_sure(model(Warmup.RAMP, 1), 3)
    # If a plain model uses all its steps, the lumps decide instead.
    assert least_sure(model(Warmup.NONE, 3), 3) == 0.0


def test_the_reason_names_what_is_in_the_way() -> None:
    flat = best_fit(0.0 * X)

    assert reason(all_agree=False, best=flat) == "too-short"
    assert reason(all_agree=True, best=flat) == "still-filling"


def stepped(y: FloatArray, *steps: int) -> ModelFit:
    problem = Problem(y + NOISE, np.ones(X.size - 1), build_shapes(X))
    time = next(
        c for c in problem.shapes.candidates if (c.warmup, c.trend) == (Warmup.NONE, Trend.TIME)
    )
    return fit_model(problem, Model(time, steps, 0.0), 0.0)


def test_a_leak_beside_steps_climbs_between_them_and_a_staircase_does_not() -> None:
    three = np.sum([40.0 * (at < X) for at in (0.2, 0.5, 0.8)], axis=0)
    stairs = np.sum([40.0 * (at < X) for at in (0.1, 0.3, 0.5, 0.7, 0.9)], axis=0)
    early = 100.0 * np.minimum(X, 0.19)

    assert climbs_between_steps(stepped(three + 100.0 * X, 15, 39, 63), X)
    assert not climbs_between_steps(stepped(three + early, 15, 39, 63), X)
    # With three of five equal steps fitted, a trend absorbs the rest but misses some stretches.
    assert not climbs_between_steps(stepped(stairs, 23, 39, 55), X)


def test_a_trend_that_needs_a_falling_warm_up_does_not_go_on() -> None:
    problem = Problem(60.0 * X + NOISE, np.ones(X.size - 1), build_shapes(X))
    bent = next(
        c for c in problem.shapes.candidates if (c.warmup, c.trend) == (Warmup.LOG, Trend.TIME)
    )
    fit = fit_model(problem, Model(bent, (), 0.0), 0.0)
    trend = fit.trend()
    assert trend is not None
    pace = Pace(60.0, 60.0, 1.0, 1.0)

    assert goes_on(pace, fit, trend[0])
    assert not goes_on(pace, fit, 0.5 * trend[0])
    assert not goes_on(None, fit, trend[0])


def test_a_plain_line_alone_is_asked_for_less() -> None:
    asked = Question(floor=8.0, line_floor=2.0, alpha=0.001, max_steps=3)

    assert asked.floor_of(model(Warmup.NONE, 0)) == 2.0
    assert asked.floor_of(model(Warmup.NONE, 1)) == 8.0
    assert asked.floor_of(model(Warmup.RAMP, 0)) == 8.0


def fits_of(y: FloatArray) -> tuple[list[ModelFit], Problem]:
    problem, models = ranked(y)
    near = [m for m in models[:60] if m.bic <= models[0].bic + 4.5]
    return [fit_model(problem, m, 0.0) for m in near], problem


@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("knee", [0.4, 0.5, 0.63, 0.8])
def test_a_pace_that_fell_late_to_a_part_has_slowed(factor: float, knee: float) -> None:
    y = 400.0 * (np.minimum(X, knee) + np.maximum(X - knee, 0.0) / factor)

    found = slowed(*fits_of(y), 0.0)

    assert found is not None
    before, after = found
    assert before == pytest.approx(400.0, rel=0.05)
    assert after == pytest.approx(400.0 / factor, rel=0.3)


@pytest.mark.parametrize(
    "y",
    [
        400.0 * X,
        400.0 * np.minimum(X, 0.6),
        400.0 * (np.minimum(X, 0.15) + np.maximum(X - 0.15, 0.0) / 4.0),
        4000.0 * (np.minimum(X, 0.4) + np.maximum(X - 0.4, 0.0) / 40.0),
        400.0 * np.maximum(X - 0.4, 0.0),
        400.0 * X + 60.0 * (X > 0.5),
    ],
    ids=["line", "fill that ends", "early end of a fill", "another fill", "late onset", "step"],
)
def test_other_shapes_have_not_slowed(y: FloatArray) -> None:
    found = slowed(*fits_of(y), 0.0)

    assert found is None
