"""Which counter explains a quantity."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.counters import EventCounters, singular
from hybridbench.analysis.drivers import find_driver
from hybridbench.analysis.record import FloatArray, Series

T = np.arange(300.0)
RNG = np.random.default_rng(1)


def counters(**values: FloatArray) -> EventCounters:
    return EventCounters({n: Series(f"events.{n}", T, v) for n, v in sorted(values.items())})


CLOSES = np.cumsum(RNG.poisson(0.2, T.size)).astype(np.float64)
FINISHES = np.cumsum(RNG.poisson(5.0, T.size)).astype(np.float64)


def test_the_counter_whose_steps_match_wins_with_its_rate() -> None:
    driver = find_driver(T, 3.0 * CLOSES, counters(closes=CLOSES, finishes=FINISHES))

    assert driver is not None
    assert driver.counter == "closes"
    assert driver.per_event == 3.0
    assert driver.covered == 1.0


def test_a_counter_that_misses_rises_is_no_driver() -> None:
    half = np.where(T > 150, CLOSES - CLOSES[150], 0.0)

    assert find_driver(T, CLOSES, counters(late=half)) is None


def test_what_moves_in_every_step_explains_nothing() -> None:
    assert find_driver(T, CLOSES, counters(steps=T * 9, output_tokens=T * 70)) is None


def test_a_quantity_that_never_rises_has_no_driver() -> None:
    assert find_driver(T, -CLOSES, counters(closes=CLOSES)) is None


def test_events_have_names_that_a_reader_knows() -> None:
    assert singular("events.nodes_evicted") == "evicted node"
    assert singular("finishes") == "request"
    assert singular("node_splits") == "node split"
