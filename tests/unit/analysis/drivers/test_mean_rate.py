"""Gain per event: the ratio of two totals, and its uncertainty."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.drivers.rates import mean_rate


def test_without_events_there_is_no_rate() -> None:
    assert mean_rate(np.ones(5), np.zeros(5)) is None


def test_few_stretches_give_a_rate_without_an_interval() -> None:
    found = mean_rate(np.array([2.0, 4.0]), np.array([1.0, 2.0]))

    assert found is not None
    assert (found.value, found.ends, found.least) == (2.0, None, 0.0)


def test_the_same_multiple_everywhere_has_no_spread() -> None:
    events = np.array([1.0, 5.0, 2.0, 7.0, 3.0])

    found = mean_rate(3.0 * events, events)

    assert found is not None
    assert found.ends is not None
    assert found.ends == pytest.approx((3.0, 3.0))


def test_what_fell_now_and_then_may_have_a_negative_rate() -> None:
    found = mean_rate(np.array([9.0, -8.0, 9.0, -9.0, 1.0]), np.ones(5))

    assert found is not None
    assert found.ends is not None
    assert found.least == -np.inf
    assert found.ends[0] < 0 < found.ends[1]


def test_effects_that_come_a_sample_late_widen_nothing() -> None:
    events = np.random.default_rng(3).poisson(2.0, 600).astype(np.float64)
    late = np.zeros(600, dtype=np.float64)
    late[1:] = events[:-1]

    found = mean_rate(late, events)

    assert found is not None
    assert found.ends is not None
    assert found.ends[1] - found.ends[0] < 0.12


@pytest.mark.parametrize("stretches", [6, 40, 400])
def test_the_interval_covers_the_truth_as_often_as_it_says(stretches: int) -> None:
    rng = np.random.default_rng(stretches)
    covered = 0
    for _ in range(400):
        events = rng.poisson(5.0, stretches).astype(np.float64)
        rises = 2.0 * rng.binomial(events.astype(np.int64), 0.4)
        found = mean_rate(rises.astype(np.float64), events)
        assert found is not None
        assert found.ends is not None
        covered += found.ends[0] <= 0.8 <= found.ends[1]

    assert covered / 400 > 0.92
