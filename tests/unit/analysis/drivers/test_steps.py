"""Finding the driver of a quantity that rises and falls."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.drivers.steps import (
    find_rise_driver,
    find_step_driver,
    losing_steps,
)
from hybridbench.analysis.facts.counters import EventCounters
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.manifest import Manifest

T = np.arange(300.0)
RNG = np.random.default_rng(1)
CLOSES = np.cumsum(RNG.poisson(0.2, T.size)).astype(np.float64)
FINISHES = np.cumsum(RNG.poisson(5.0, T.size)).astype(np.float64)


def counters(**values: FloatArray) -> EventCounters:
    return EventCounters({n: Series(f"events.{n}", T, v) for n, v in sorted(values.items())})


def test_the_counter_with_matching_steps_wins_even_if_all_slots_return() -> None:
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


def looked(moved: dict[str, tuple[float, float]]) -> RunRecord:
    """A run of 1,000 steps that lost 100 slots.

    ``moved`` has the number of steps in which each counter moved, and the slots lost in those
    steps.
    """
    values = {"steps_with.steps": 1000.0, "lost_taken.kv.steps": 100.0}
    for name, (steps, slots) in moved.items():
        values[f"steps_with.{name}"] = steps
        values[f"lost_taken.kv.{name}"] = slots
    series = {name: Series(name, T[-1:], np.array([v])) for name, v in values.items()}
    return RunRecord(Manifest(), series, ())


def test_a_counter_that_moved_in_every_losing_step_and_in_few_others_is_found() -> None:
    known = counters(closes=CLOSES, finishes=FINISHES)

    found = losing_steps(looked({"closes": (60.0, 100.0), "finishes": (900.0, 100.0)}), "kv", known)

    assert found is not None
    assert found.always == ("closes",)
    assert found.mostly == {"closes", "finishes"}
    assert found.parts == ()


def test_two_causes_have_each_its_share_and_none_is_always_there() -> None:
    known = counters(closes=CLOSES, aborts=CLOSES, finishes=FINISHES)
    record = looked({"closes": (60.0, 58.0), "aborts": (30.0, 44.0), "finishes": (900.0, 95.0)})

    found = losing_steps(record, "kv", known)

    assert found is not None
    assert found.always == ()
    assert found.parts == (("aborts", 0.44, 0.03), ("closes", 0.58, 0.06))


def test_without_a_look_after_every_step_nothing_is_said() -> None:
    assert losing_steps(RunRecord(Manifest(), {}, ()), "kv", counters(closes=CLOSES)) is None


def test_the_interval_allows_for_events_that_take_unequal_numbers_of_slots() -> None:
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        refused = rng.random(T.size) < 0.2
        taken = np.where(refused, rng.integers(16, 513, T.size), 0).astype(np.float64)
        refusals = counters(refusals=np.cumsum(refused).astype(np.float64))
        series = {
            name: Series(name, T, np.cumsum(value).astype(np.float64))
            for name, value in {
                "steps_with.steps": np.full(T.size, 10.0),
                "steps_with.refusals": refused,
                "waiting_taken.kv.steps": taken,
                "waiting_taken.kv.refusals": taken,
            }.items()
        }
        driver = find_step_driver(RunRecord(Manifest(), series, ()), "kv", refusals)
        assert driver is not None
        rate = driver.rate("KV tokens")
        covered += rate.lower <= 264.0 <= rate.upper

    assert covered >= 35
