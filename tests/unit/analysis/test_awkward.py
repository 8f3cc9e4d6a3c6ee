"""Every awkward family of series gets an answer with finite numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hybridbench.analysis.facts.readings import LARGEST, are_readings
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.estimate import MIN_SAMPLES, Estimate, Options, Samples, estimate
from tests.unit.analysis.awkward import FAMILIES, Awkward, draw

FEW, MANY = 3, 400


def answered(series: Awkward, floor: float = 0.0) -> Estimate | None:
    """Return the checked estimate; None if too few samples are readings."""
    samples = Samples(series.t_s, series.value, series.works, series.load)
    if are_readings(series.value).sum() < MIN_SAMPLES:
        with pytest.raises(ValueError, match="too few"):
            estimate(samples)
        return None
    found = estimate(samples, Options(floor=floor))
    numbers = [found.growth, found.lower, found.upper, found.phi, found.p_value]
    assert np.isfinite(numbers).all()
    assert found.lower <= found.growth <= found.upper
    assert np.isfinite(found.fitted).all()
    assert np.isfinite(found.band).all()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_estimated(family: str) -> None:
    for seed in range(FEW):
        answered(draw(family, seed))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_estimated_by_the_hundred(family: str) -> None:
    for seed in range(FEW, MANY):
        answered(draw(family, seed), floor=float(seed % 2) * 1e6)


SIZES = st.integers(MIN_SAMPLES, 60)
ANY = st.floats(allow_nan=False, allow_infinity=False)
FEW_VALUES = st.sampled_from([0.0, 1.0, 2.0, 7e8, -1.0, 1e-310, 1e300])


@st.composite
def any_series(draw_one: st.DrawFn) -> Awkward:
    size = draw_one(SIZES)

    def column() -> FloatArray:
        return draw_one(arrays(np.float64, size, elements=st.one_of(FEW_VALUES, ANY)))

    counts = st.integers(0, 3).map(float)
    work = np.cumsum(draw_one(arrays(np.float64, size, elements=counts)))
    load = draw_one(st.none() | arrays(np.float64, size, elements=counts))
    return Awkward(np.arange(float(size)), column(), (work, column()), load)


@given(any_series())
def test_any_numbers_are_estimated(series: Awkward) -> None:
    answered(series)


@given(SIZES, st.data())
def test_counts_that_follow_counts_are_estimated(size: int, data: st.DataObject) -> None:
    steps = arrays(np.float64, size, elements=st.integers(0, 2).map(float))
    work = np.cumsum(data.draw(steps))
    value = np.cumsum(data.draw(steps))

    answered(Awkward(np.arange(float(size)), value, (work, value), work))


@pytest.mark.parametrize("end", [0.3, 0.5, 0.75, 0.8, 0.95])
def test_growth_with_work_that_then_rests_is_judged_by_the_work(end: float) -> None:
    t = np.arange(600.0)
    work = np.minimum(t / 600.0, end) * 6000.0
    noise = np.cumsum(np.random.default_rng(3).normal(size=t.size))
    series = Awkward(t, 7e8 + 1e4 * work + 3e4 * noise, (work,))

    found = answered(series)

    assert found is not None
    assert not found.leak or "work" in found.model


def test_what_nothing_measured_can_be_is_left_out() -> None:
    rng = np.random.default_rng(1)
    t = np.arange(300.0)
    value = 7e8 + 1e4 * t + 1e3 * rng.normal(size=t.size)
    spoilt = value.copy()
    spoilt[[5, 100, 299]] = [1e300, -1e250, np.inf]
    kept = np.abs(spoilt) <= LARGEST

    with_them = estimate(Samples(t, spoilt))

    without = estimate(Samples(t[kept], value[kept]))
    assert (with_them.growth, with_them.leak) == (without.growth, without.leak)
