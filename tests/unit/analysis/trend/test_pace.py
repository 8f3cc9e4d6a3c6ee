"""The deceleration guard."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.criteria import measure_pace, stops_at_the_end

X = (np.arange(80) + 0.5) / 80
GAPS = np.ones(79)


def noisy(y: FloatArray) -> FloatArray:
    return y + 0.2 * np.random.default_rng(1).normal(size=y.size)


def wander(phi: float, rng: np.random.Generator) -> FloatArray:
    """AR(1) noise with unit standard deviation."""
    fresh = rng.normal(size=X.size)
    out = np.zeros(X.size)
    for i in range(1, X.size):
        out[i] = phi * out[i - 1] + fresh[i]
    out /= out.std()
    return out


def test_a_line_keeps_its_pace() -> None:
    pace = measure_pace(X, noisy(100 * X), GAPS, 0.0)

    assert pace is not None
    assert pace.last_quarter == pytest.approx(100, abs=5)
    assert pace.holds(warming=False)
    assert pace.holds(warming=True)


@pytest.mark.parametrize("tau", [0.2, 0.5, 0.9])
def test_saturation_fades(tau: float) -> None:
    pace = measure_pace(X, noisy(100 * (1 - np.exp(-X / tau))), GAPS, 0.0)

    assert pace is not None
    assert not pace.holds(warming=False)


def test_the_last_quarter_must_show_what_a_warm_up_shape_leaves_over() -> None:
    pace = measure_pace(X, noisy(10 * X), GAPS, 0.0)

    assert pace is not None
    assert pace.shows(12.0)
    assert not pace.shows(40.0)


def test_work_that_pauses_at_the_end_of_the_run_has_not_stopped_leaking() -> None:
    """Requests come in bursts, so the last blocks all lie at the end of the work."""
    busy = (X * 8.0) % 1.0 < 0.5
    done = np.cumsum(busy) / busy.sum()

    assert not stops_at_the_end(done, noisy(100 * done), GAPS)


@pytest.mark.parametrize("end", [0.8, 0.9])
def test_work_that_goes_on_after_growth_has_ended_is_seen(end: float) -> None:
    busy = (X * 8.0) % 1.0 < 0.5
    done = np.cumsum(busy) / busy.sum()

    assert stops_at_the_end(done, noisy(1000 * np.minimum(done, end)), GAPS)


def test_too_few_late_blocks_say_nothing() -> None:
    assert measure_pace(X[:10], X[:10], GAPS[:9], 0.0) is None


@pytest.mark.parametrize("end", [0.8, 0.9, 0.93, 0.95, 0.97])
def test_a_fill_that_ends_before_the_run_has_stopped(end: float) -> None:
    assert stops_at_the_end(X, noisy(100 * np.minimum(X, end)), GAPS)


@pytest.mark.parametrize(("phi", "noise"), [(0.0, 3.0), (0.5, 1.0), (0.7, 3.0)])
def test_of_a_hundred_leaks_hardly_one_seems_to_have_stopped(phi: float, noise: float) -> None:
    rng = np.random.default_rng(1)

    stopped = sum(stops_at_the_end(X, 100 * X + noise * wander(phi, rng), GAPS) for _ in range(100))

    assert stopped <= 2


def test_growth_that_only_slows_down_has_not_stopped() -> None:
    slower = np.minimum(X, 0.9) + 0.7 * np.maximum(X - 0.9, 0.0)

    assert not stops_at_the_end(X, noisy(100 * slower), GAPS)


def test_an_end_that_drowns_in_noise_is_not_claimed() -> None:
    assert not stops_at_the_end(X, noisy(2 * np.minimum(X, 0.97)), GAPS)


def test_too_few_blocks_have_no_end() -> None:
    assert not stops_at_the_end(X[:10], X[:10], GAPS[:9])
