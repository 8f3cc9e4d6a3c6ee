"""Finding the event that explains growth, among counters that all rise with the same load."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hybridbench.analysis.drivers.search import Driver, Hints, find_driver
from hybridbench.analysis.facts.counters import EventCounters
from hybridbench.analysis.facts.pools import IdleReading
from hybridbench.analysis.record import FloatArray, Series
from tests.unit.analysis.traces import ar1
from tests.unit.analysis.traffic import as_counters, traffic

T = np.arange(1.0, 600.0, 0.5)
HOUR = np.arange(1.0, 3600.0)


def live_requests(seed: int, t: FloatArray) -> FloatArray:
    rng = np.random.default_rng(500 + seed)
    return np.clip(16 + ar1(rng, t, 4.0, 5.0), 0, 40).round()


def memory(seed: int, t: FloatArray) -> FloatArray:
    return 7e8 + ar1(np.random.default_rng(700 + seed), t, 6e5, 6.0) + 2e6 * ((t / 11.0) % 1.0)


@pytest.mark.parametrize("first_seed", [0, 10])
def test_four_leaks_at_once_are_each_told_from_the_others(first_seed: int) -> None:
    named: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 10):
        counts = traffic(seed, HOUR)
        counters = as_counters(HOUR, counts)
        live = live_requests(seed, HOUR)
        slots = find_driver(HOUR, counts["refusals"], counters)
        tokens = find_driver(HOUR, 16 * counts["retracts"], counters)
        entries = find_driver(HOUR, counts["requests_rejected"] + live, counters)
        grown = memory(seed, HOUR) + 30e3 * counts["nodes_evicted"]
        held = find_driver(HOUR, grown, counters)

        assert slots is not None
        assert (slots.counter, slots.per_event, slots.exact) == ("refusals", 1.0, True)
        assert tokens is not None
        assert (tokens.counter, tokens.per_event, tokens.exact) == ("retracts", 16.0, True)
        named["entries"] += holds(entries, "requests_rejected", 1.0)
        named["bytes"] += holds(held, "nodes_evicted", 30e3)
        # Nearly all nodes are leaves: either counter may be named, and then the other is a rival.
        assert held is None or {held.counter, *held.rivals} & {"nodes_evicted", "evict_leaf"}

    assert named["entries"] >= 9
    assert named["bytes"] >= 8


def holds(driver: Driver | None, counter: str, rate: float) -> bool:
    return (
        driver is not None
        and driver.counter == counter
        and driver.lower <= rate <= driver.upper
        and driver.upper - driver.lower < 0.1 * rate
    )


@pytest.mark.parametrize("name", ["invariant_violations", "invariant_violations_total"])
def test_what_the_checks_of_the_engine_found_is_not_the_driver(name: str) -> None:
    """It rises with every loss, so it fits better than the event that loses."""
    counts = traffic(3, T)
    events = np.diff(counts["abort_decode"], prepend=0.0).astype(np.int64)
    lost = np.cumsum(np.random.default_rng(903).binomial(events, 0.3)).astype(np.float64)

    driver = find_driver(T, lost, as_counters(T, {**counts, name: lost}))

    assert driver is not None
    assert driver.counter == "abort_decode"


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_share_of_the_events_has_an_interval_that_holds_it(share: float) -> None:
    held = 0
    for seed in range(20):
        counts = traffic(seed, T)
        rng = np.random.default_rng(900 + seed)
        events = np.diff(counts["abort_decode"], prepend=0.0).astype(np.int64)
        lost = np.cumsum(rng.binomial(events, share)).astype(np.float64)
        driver = find_driver(T, lost, as_counters(T, counts))

        assert driver is not None
        assert driver.counter == "abort_decode"
        assert not driver.exact
        held += driver.lower <= share <= driver.upper

    assert held >= 18


def test_what_grows_with_time_alone_has_no_driver() -> None:
    named = 0
    for seed in range(20):
        counts = traffic(seed, T)
        rng = np.random.default_rng(300 + seed)
        ticks = np.cumsum(rng.poisson(0.3, T.size)).astype(np.float64)
        counters = as_counters(T, counts)
        named += find_driver(T, ticks, counters) is not None
        named += find_driver(T, memory(seed, T) + 3e5 * T, counters) is not None
        named += find_driver(T, live_requests(seed, T), counters) is not None

    assert named <= 1


def test_counters_that_move_alike_are_all_named() -> None:
    counts = traffic(3, T)
    driver = find_driver(T, 2 * counts["node_splits"], as_counters(T, counts))

    assert driver is not None
    assert (driver.counter, driver.rivals) == ("node_splits", ("tombstones",))
    assert driver.how.rivals == ("tombstones",)


def test_nearly_collinear_counters_cannot_be_told_apart_in_noise() -> None:
    counts = traffic(4, T)
    rng = np.random.default_rng(8)
    twin = counts["retracts"] + np.cumsum(rng.random(T.size) < 0.002)
    grown = 1000.0 * counts["retracts"] + ar1(rng, T, 4000.0, 6.0)

    driver = find_driver(T, grown, as_counters(T, {**counts, "twins": twin}))

    assert driver is not None
    assert {driver.counter, *driver.rivals} >= {"retracts", "twins"}


def test_what_is_likely_decides_only_where_the_samples_cannot() -> None:
    counts = traffic(5, T)
    counters = as_counters(T, counts)

    likely = find_driver(T, counts["node_splits"], counters, Hints(expected=("tombstone",)))
    against = find_driver(T, counts["node_splits"], counters, Hints(expected=("retract",)))

    assert likely is not None
    assert likely.counter == "tombstones"
    assert against is not None
    assert against.counter == "node_splits"


def skewed(t: FloatArray, counts: FloatArray, seed: int) -> FloatArray:
    """Return the counter as read up to 0.3 s before or after each sample's time."""
    off = np.random.default_rng(seed).uniform(-0.3, 0.3, t.size)
    return np.maximum.accumulate(np.round(np.interp(t + off, t, counts)))


def test_samples_that_are_skewed_missing_or_across_a_restart_tell_the_same() -> None:
    counts = traffic(6, T)
    lost = 3.0 * counts["retracts"]
    kept = np.random.default_rng(2).random(T.size) > 0.2
    kept[300:340] = False
    whole = as_counters(T, counts)
    off = as_counters(T, {name: skewed(T, c, 40) for name, c in counts.items()})
    half = T.size // 2
    again = np.where(np.arange(T.size) < half, lost, lost - lost[half])
    restarted = EventCounters(whole.series, np.array([T[half]]))

    missing = find_driver(T[kept], lost[kept], whole)
    late = find_driver(T, lost, off)
    anew = find_driver(T, again, restarted)

    for driver in (missing, late, anew):
        assert driver is not None
        assert driver.counter == "retracts"
        assert driver.lower <= 3.0 <= driver.upper
    assert missing is not None
    assert missing.exact


def test_a_pool_that_is_all_gone_does_not_spoil_the_rate() -> None:
    counts = traffic(7, T)
    gone = np.minimum(counts["refusals"], 40.0)

    driver = find_driver(T, gone, as_counters(T, counts))

    assert driver is not None
    assert (driver.counter, driver.per_event) == ("refusals", 1.0)


def test_garbage_is_counted_between_collections() -> None:
    counts = traffic(8, T)
    made = counts["nodes_evicted"]
    emptied = made - np.concatenate([[0.0], made[(T[1:] // 50 * 100).astype(int)]])

    driver = find_driver(T, emptied, as_counters(T, counts), Hints(emptied=True))

    assert driver is not None
    assert driver.counter == "nodes_evicted"
    assert driver.per_event == pytest.approx(1.0, rel=0.01)


def test_the_rate_of_what_began_at_nothing_is_its_whole_over_all_events() -> None:
    counts = traffic(2, T)
    rng = np.random.default_rng(2)
    splits = np.diff(counts["node_splits"], prepend=0.0).astype(np.int64)
    locked = np.cumsum([rng.integers(1, 40, n).sum() for n in splits.tolist()])
    wavering = locked + 30.0 * live_requests(2, T)
    shown = {name: float(count[-1]) for name, count in counts.items()}
    last = IdleReading(float(T[-1]), float(locked[-1]), shown)

    driver = find_driver(T, wavering, as_counters(T, counts), Hints(idle=[last], from_zero=True))

    assert driver is not None
    assert driver.counter == "node_splits"
    assert driver.per_event == float(locked[-1]) / shown["node_splits"]
    below, above = driver.per_event - driver.lower, driver.upper - driver.per_event
    assert below == pytest.approx(above), "the spread is around this estimate, not another"
    assert driver.lower <= 20.0 <= driver.upper


def test_rests_alone_are_enough_when_they_agree() -> None:
    seen = [
        IdleReading(t, 3.0 * n, {"session_closes": n, "finishes": 7 * n + noise})
        for t, n, noise in ((10.0, 0.0, 0.0), (60.0, 31.0, 2.0), (120.0, 77.0, 1.0))
    ]

    counters = EventCounters({n: Series(n, T, T) for n in ("session_closes", "finishes")})
    driver = find_driver(np.empty(0), np.empty(0), counters, Hints(idle=seen))

    assert driver is not None
    assert (driver.counter, driver.per_event, driver.exact) == ("session_closes", 3.0, True)


def test_a_quantity_that_never_rises_has_no_driver() -> None:
    counts = traffic(9, T)

    assert find_driver(T, -counts["finishes"], as_counters(T, counts)) is None


def test_the_rate_of_a_driver_is_per_event_in_words() -> None:
    driver = Driver("session_closes", 3.0, 2.99, 3.01, 100.0, 300.0, 1.0)

    assert driver.rate("slots").per == "session close"


def test_a_cause_whose_effect_comes_samples_later_is_found_at_rest() -> None:
    rng = np.random.default_rng(9)
    retracts = np.cumsum(rng.poisson(0.4, 300)).astype(np.float64)
    t = np.arange(300.0)
    # Each retract is followed by restored tokens twenty samples later, mixed with other work.
    lost = np.concatenate([np.zeros(20), retracts[:-20]])
    tokens = lost * 300.0 + np.cumsum(rng.poisson(2.0, 300))
    known = EventCounters(
        {
            "retracts": Series("events.retracts", t, retracts),
            "restored_tokens": Series("events.restored_tokens", t, tokens),
        }
    )
    ends = {"retracts": retracts, "restored_tokens": tokens}
    rests = [
        IdleReading(
            float(at), float(retracts[at]), {name: float(x[at]) for name, x in ends.items()}
        )
        for at in (70, 140, 210, 299)
    ]

    found = find_driver(t, lost, known, Hints(idle=rests, from_zero=True))

    assert found is not None
    assert (found.counter, found.per_event, found.exact) == ("retracts", 1.0, True)
