from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest

from hybridbench.workload.arrivals import ClosedLoop, Poisson, Thinking, build_arrivals
from hybridbench.workload.rng_streams import stream
from hybridbench.workload.settings import Arrival, Bursts, Ramp
from tests.unit.workload.profiles import base


def open_loop(
    rate: float, bursts: Bursts | None, max_in_flight: int, random: Random, ramp: Ramp | None = None
) -> Poisson:
    arrival = Arrival(
        process="poisson",
        rate=rate,  # type: ignore[call-arg]  # the alias is the key in a file
        bursts=bursts,
        max_in_flight=max_in_flight,
        ramp=ramp,
    )
    return Poisson(arrival, random)


def arrivals_until(poisson: Poisson, end_s: float) -> list[float]:
    times = []
    now_s = 0.0
    while now_s < end_s:
        while poisson.due(now_s, in_flight=0):
            times.append(now_s)
        next_s = poisson.next_s(now_s, in_flight=0)
        assert next_s is not None
        assert next_s > now_s
        now_s = next_s
    return times


def test_poisson_arrivals_have_the_rate_and_the_spread_of_their_law_seed_1() -> None:
    times = arrivals_until(open_loop(40.0, None, 512, stream(1, "arrivals")), 500.0)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))

    # With 20,000 arrivals, four standard errors are 2.8% of the mean.
    assert mean == pytest.approx(1 / 40, rel=0.028)
    assert deviation == pytest.approx(mean, rel=0.05)


def test_a_burst_makes_poisson_arrivals_denser_by_its_factor_seed_2() -> None:
    bursts = Bursts(every="10s", length="2s", factor=5.0)  # type: ignore[call-arg]

    times = arrivals_until(open_loop(20.0, bursts, 512, stream(2, "arrivals")), 1000.0)

    inside = sum(1 for time in times if time % 10 < 2)
    assert inside / 200 == pytest.approx(100.0, rel=0.04)
    assert (len(times) - inside) / 800 == pytest.approx(20.0, rel=0.04)


def test_a_gap_that_spans_many_bursts_uses_up_each_at_its_own_rate_seed_6() -> None:
    bursts = Bursts(every="2s", length="0.5s", factor=10.0)  # type: ignore[call-arg]

    times = arrivals_until(open_loop(0.1, bursts, 512, stream(6, "arrivals")), 30_000.0)

    assert len(times) / 30_000 == pytest.approx(0.1 * (0.25 * 10 + 0.75), rel=0.04)
    inside = sum(1 for time in times if time % 2 < 0.5)
    assert inside / len(times) == pytest.approx(2.5 / 3.25, rel=0.04)


def test_an_open_loop_over_a_full_house_drops_and_counts_seed_3() -> None:
    poisson = open_loop(100.0, None, 8, stream(3, "arrivals"))

    assert not poisson.due(1.0, in_flight=8)
    assert 60 < poisson.dropped < 140
    assert poisson.next_s(1.0, in_flight=8) > 1.0  # type: ignore[operator]


def test_a_closed_loop_fills_up_to_its_concurrency_and_then_waits_for_an_end() -> None:
    loop = ClosedLoop(3)

    assert loop.due(0.0, in_flight=2)
    assert not loop.due(0.0, in_flight=3)
    assert loop.next_s(0.0, in_flight=3) is None
    assert loop.next_s(5.0, in_flight=2) == 5.0


def test_a_burst_widens_a_closed_loop_and_says_when_the_next_one_comes() -> None:
    loop = ClosedLoop(4, Bursts(every="10s", length="3s", factor=2.5))  # type: ignore[call-arg]

    assert [loop.limit(t) for t in (0.0, 2.9, 3.0, 9.9, 10.0, 12.0)] == [10, 10, 4, 4, 10, 10]
    assert loop.next_s(4.0, in_flight=4) == 10.0
    assert loop.next_s(11.0, in_flight=10) == 13.0


def test_a_ramp_widens_a_closed_loop_evenly_and_never_to_none() -> None:
    ramp = Ramp(start=0.1, over="100s")  # type: ignore[call-arg]
    loop = ClosedLoop(20, ramp=ramp)

    assert [loop.limit(t) for t in (0.0, 50.0, 99.0, 100.0, 500.0)] == [2, 11, 19, 20, 20]
    assert ClosedLoop(4, ramp=ramp).limit(0.0) == 1
    assert loop.next_s(10.0, in_flight=20) == 11.0
    assert loop.next_s(100.0, in_flight=20) is None


def test_a_ramp_thins_poisson_arrivals_in_proportion_seed_8() -> None:
    ramp = Ramp(start=0.0, over="1000s")  # type: ignore[call-arg]

    times = arrivals_until(open_loop(30.0, None, 512, stream(8, "arrivals"), ramp), 2000.0)

    quarters = [sum(1 for t in times if 250 * q <= t < 250 * (q + 1)) for q in range(8)]
    for quarter, share in enumerate((0.125, 0.375, 0.625, 0.875, 1.0, 1.0, 1.0, 1.0)):
        assert quarters[quarter] == pytest.approx(7500 * share, rel=0.12)


def test_a_profile_gets_the_process_it_asks_for() -> None:
    closed = build_arrivals(base().arrival, stream(1, "arrivals"))
    poisson = base().with_overrides({"arrival": "{process: poisson, rate: 90/min}"}).arrival

    assert isinstance(closed, ClosedLoop)
    assert poisson.rate_per_s == 1.5
    assert isinstance(build_arrivals(poisson, stream(1, "arrivals")), Poisson)


@pytest.mark.parametrize("every_s", [0.1, 0.3, 7.7])
def test_changes_of_a_burst_always_lie_ahead_whatever_the_rounding_seed_4(every_s: float) -> None:
    bursts = Bursts(every=every_s, length=every_s / 3, factor=2.0)  # type: ignore[call-arg]
    loop = ClosedLoop(1, bursts)
    now_s = 0.0

    for _ in range(3000):
        next_s = loop.next_s(now_s, in_flight=2)
        assert next_s is not None
        assert now_s < next_s <= now_s + every_s
        now_s = next_s


def answered_at_once(arrivals: Thinking, clients: int, end_s: float) -> list[float]:
    """Return the arrival times of requests that are answered immediately."""
    times = []
    now_s = 0.0
    while now_s < end_s:
        in_flight = 0
        while arrivals.due(now_s, in_flight):
            times.append(now_s)
            in_flight += 1
        assert in_flight <= clients
        next_s = arrivals.next_s(now_s, 0)
        assert next_s is not None
        assert next_s > now_s
        now_s = next_s
    return times


@pytest.mark.parametrize("clients", [1, 3])
def test_clients_think_after_each_answer_seed_3(clients: int) -> None:
    arrivals = Thinking(ClosedLoop(clients), 2.0, stream(3, "arrivals"))

    times = answered_at_once(arrivals, clients, 4000.0)

    # All clients start at once; then each thinks for one to three seconds.
    assert times[:clients] == [0.0] * clients
    assert len(times) == pytest.approx(clients * 2000, rel=0.02)
    if clients == 1:
        gaps = [b - a for a, b in pairwise(times)]
        assert 1.0 <= min(gaps) < 1.05
        assert 2.95 < max(gaps) <= 3.0


def test_who_waits_for_an_answer_does_not_think() -> None:
    arrivals = Thinking(ClosedLoop(2), 2.0, stream(4, "arrivals"))
    assert arrivals.due(0.0, 0)
    assert arrivals.due(0.0, 1)
    assert not arrivals.due(10.0, 2)
    assert arrivals.next_s(10.0, 2) is None

    # One is answered; the other client sends nothing, however long it waits.
    assert not arrivals.due(20.0, 1)
    next_s = arrivals.next_s(20.0, 1)
    assert next_s is not None
    assert 21.0 <= next_s <= 23.0
    assert arrivals.due(next_s, 1)
    assert not arrivals.due(next_s + 100.0, 2)


def test_a_profile_chooses_whether_its_clients_think() -> None:
    closed = Arrival(process="closed", concurrency=4, think="250ms")  # type: ignore[call-arg]

    assert isinstance(build_arrivals(closed, stream(1, "a")), Thinking)
    assert isinstance(
        build_arrivals(Arrival(process="closed", concurrency=4), stream(1, "a")), ClosedLoop
    )
