"""Recognising whole multiples, in samples and at idle points."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.drivers.rates import exact_at_idle, exact_multiple
from hybridbench.analysis.facts.pools import IdleReading

RNG = np.random.default_rng(1)
EVENTS = np.cumsum(RNG.poisson(0.2, 300)).astype(np.float64)
FIRST = np.arange(300) == 0


@pytest.mark.parametrize("times", [1, 3, 16])
def test_a_whole_multiple_is_recognised(times: int) -> None:
    assert exact_multiple(5 + times * EVENTS, EVENTS, FIRST) == times


def test_one_stray_unit_in_twenty_is_too_many() -> None:
    stray = np.cumsum(np.arange(300) % 12 == 5)

    assert exact_multiple(EVENTS + stray, EVENTS, FIRST) is None


def test_a_share_of_the_events_is_not_a_whole_multiple() -> None:
    some = np.cumsum(RNG.binomial(np.diff(EVENTS, prepend=0).astype(int), 0.9)).astype(float)

    assert exact_multiple(some, EVENTS, FIRST) is None


def test_one_event_that_did_nothing_is_enough_to_tell() -> None:
    early = int(np.flatnonzero(np.diff(EVENTS) > 0)[2]) + 1
    missed = 16 * (EVENTS - (np.arange(300) >= early))

    assert exact_multiple(missed, EVENTS, FIRST) is None


def test_a_sample_between_event_and_effect_does_no_harm() -> None:
    value = 2 * EVENTS
    late = np.flatnonzero(np.diff(EVENTS) > 0)[4] + 1
    value[late] = value[late - 1]

    assert exact_multiple(value, EVENTS, FIRST) == 2


def test_a_new_stretch_may_begin_anywhere() -> None:
    first = FIRST.copy()
    first[150] = True
    value = 2 * EVENTS - np.where(np.arange(300) >= 150, 77.0, 0.0)

    assert exact_multiple(value, EVENTS, first) == 2
    assert exact_multiple(value, EVENTS, FIRST) is None


def rests(*values: tuple[float, float, float]) -> list[IdleReading]:
    return [IdleReading(10.0 * i, v, {"a": a, "b": b}) for i, (v, a, b) in enumerate(values)]


def test_rests_agree_on_one_counter() -> None:
    seen = rests((0, 0, 5), (42, 14, 19), (84, 28, 40), (129, 43, 45))

    assert exact_at_idle(seen, ["a", "b"]) == {"a": 3.0}


def test_a_match_that_chance_would_bring_needs_a_second_witness() -> None:
    seen = rests((0, 0, 0), (60, 20, 59))

    assert exact_at_idle(seen, ["a", "b"]) == {}
    assert exact_at_idle(rests((0, 0, 0), (60, 60, 59)), ["a", "b"], confirming=True) == {"a": 1.0}
