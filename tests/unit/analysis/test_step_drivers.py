"""What drives a quantity that comes and goes."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.counters import EventCounters
from hybridbench.analysis.record import FloatArray, Series
from hybridbench.analysis.step_drivers import find_rise_driver

T = np.arange(300.0)
RNG = np.random.default_rng(1)
CLOSES = np.cumsum(RNG.poisson(0.2, T.size)).astype(np.float64)
FINISHES = np.cumsum(RNG.poisson(5.0, T.size)).astype(np.float64)


def counters(**values: FloatArray) -> EventCounters:
    return EventCounters({n: Series(f"events.{n}", T, v) for n, v in sorted(values.items())})


def test_the_counter_whose_steps_match_wins_though_all_comes_back() -> None:
    held = np.diff(CLOSES, prepend=0.0)

    driver = find_rise_driver(T, held, counters(closes=CLOSES, finishes=FINISHES))

    assert driver is not None
    assert driver.counter == "closes"
    assert driver.covered == 1.0


def test_a_counter_that_misses_rises_is_no_driver() -> None:
    half = np.where(T > 150, CLOSES - CLOSES[150], 0.0)

    assert find_rise_driver(T, CLOSES, counters(late=half)) is None


def test_what_moves_in_every_step_explains_nothing() -> None:
    always = counters(steps=T * 9, output_tokens=T * 70)

    assert find_rise_driver(T, CLOSES, always) is None
