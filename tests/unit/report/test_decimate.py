"""Decimation: the number of points is bounded, and no extreme is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridbench.report.decimate import gaps, kept, per_minute


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 9000),
    spike=st.floats(0, 1),
    limit=st.sampled_from([200, 500, 2000]),
    seed=st.integers(0, 99),
    rows=st.integers(1, 7),
)
def test_extremes_and_ends_stay_and_the_limit_holds(
    size: int, spike: float, limit: int, seed: int, rows: int
) -> None:
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.uniform(4.9, 5.1, size))
    values = rng.normal(0, 1, (rows, size))
    at = round(spike * (size - 1))
    values[0, at] = 50.0
    values[-1, size - 1 - at] = -50.0

    positions = kept(t, values, limit)

    assert positions.size <= limit
    assert np.all(np.diff(positions) > 0)
    assert {0, size - 1} <= set(positions.tolist())
    for row in values:
        assert row[positions].max() == row.max()
        assert row[positions].min() == row.min()


def test_a_short_series_is_kept_whole() -> None:
    t = np.arange(2000.0)

    assert kept(t, t).size == 2000


def test_both_sides_of_a_hole_stay() -> None:
    t = np.arange(10_000.0)
    t[4321:] += 900.0

    positions = set(kept(t, np.zeros(10_000)).tolist())

    assert gaps(t).tolist() == [4320]
    assert {4320, 4321} <= positions


def test_a_counter_becomes_a_rate_that_adds_up_to_its_rise() -> None:
    rng = np.random.default_rng(5)
    t = np.arange(0.0, 36_000.0, 5.0)
    count = np.cumsum(rng.poisson(3, t.size)).astype(float)

    at, rate = per_minute(t, count)

    assert at.size <= 400
    widths = np.diff(np.concatenate([t[:1], at]))
    assert float(np.sum(rate * widths / 60.0)) == pytest.approx(count[-1] - count[0])


def test_a_counter_that_restarts_shows_no_negative_rate() -> None:
    _, rate = per_minute(np.array([0.0, 10.0, 20.0]), np.array([100.0, 0.0, 5.0]))

    assert rate.tolist() == [0.0, 30.0]
