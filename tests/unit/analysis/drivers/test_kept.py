"""How much is kept per event, fitted to counts alone."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.drivers.at_idle import kept_at_idle
from hybridbench.analysis.drivers.kept import Kept, Work
from hybridbench.analysis.drivers.search import TIME
from hybridbench.analysis.drivers.under_traffic import kept_under_traffic
from hybridbench.analysis.record import FloatArray


@pytest.mark.parametrize("half", ["first", "second"])
def test_a_counter_that_stands_still_in_one_half_explains_nothing(half: str) -> None:
    """Its line has no slope there; computing with that would warn, which fails this test."""
    t_s = 10.0 * np.arange(40)
    requests = 7.0 * np.arange(40) + np.sin(t_s)
    rejected = np.minimum(requests, requests[10])
    if half == "first":
        rejected = np.maximum(requests, requests[25])
    names = ("finishes", "requests_rejected", TIME)
    columns = np.column_stack([requests, rejected, t_s])
    work = Work(names, columns, {"finishes": 0, "requests_rejected": 1}, frozenset({"finishes"}))
    first = np.zeros(40, dtype=np.bool_)
    first[0] = True

    (kept,) = kept_under_traffic(np.round(requests)[None, :], first, work, np.zeros((40, 0)))

    assert kept is not None
    assert kept.driver.counter == "finishes"


@pytest.mark.parametrize("fills", [False, True])
def test_an_event_that_becomes_more_common_makes_no_fill_of_what_another_one_keeps(
    fills: bool,
) -> None:
    """Every third request keeps an entry while aborts become more common; or aborts fill a cache.

    By aborts, both slow down.
    """
    t_s = 10.0 * np.arange(24)
    aborts = np.round(50.0 * np.arange(24.0) ** 1.2)
    finishes = np.round(700.0 * np.arange(24) + 40.0 * np.sin(t_s))
    held = np.round(finishes / 3.0)
    if fills:
        held = np.round(3_000.0 * (1.0 - np.exp(-aborts / 1_500.0)))
    names = ("finishes", "requests_aborted", TIME)
    columns = np.column_stack([finishes, aborts, t_s])
    work = Work(names, columns, {"finishes": 0, "requests_aborted": 1}, frozenset({"finishes"}))
    first = np.arange(24) == 0

    (kept,) = kept_under_traffic(held[None, :], first, work, np.zeros((24, 0)))

    assert kept is not None
    assert (kept.slows, kept.steady) == (fills, not fills)
    if not fills:
        assert kept.driver.counter == "finishes"
        assert kept.driver.per_event == pytest.approx(1 / 3, rel=0.01)


def test_requests_among_which_a_rare_event_varies_by_chance_make_no_fill_of_what_it_keeps() -> None:
    """A soak of a server that lost a state at about each abort in prefill; 20 of them a round."""
    held = np.array([52.0, 103.0, 142.0, 200.0, 227.0, 244.0, 261.0, 281.0])
    finishes = [6_173, 11_212, 15_944, 20_675, 22_931, 25_156, 27_079, 29_388]
    aborts = [68, 122, 166, 217, 239, 255, 271, 292]
    columns = np.column_stack([finishes, aborts, 37.5 * np.arange(8)]).astype(np.float64)
    names = ("finishes", "abort_prefill", TIME)
    work = Work(names, columns, {"finishes": 0, "abort_prefill": 1}, frozenset({"finishes"}))

    kept = kept_at_idle(held, work, 2.0, 5.0, named=True)

    assert kept is not None
    assert kept.driver.counter == "abort_prefill"
    assert not kept.slows
    assert not kept.steady


def rounds(
    held: FloatArray, events: FloatArray, finishes: FloatArray, event: str = "requests_accepted"
) -> Kept | None:
    columns = np.column_stack([finishes, events, 30.0 * np.arange(held.size)])
    work = Work(
        ("finishes", event, TIME), columns, {"finishes": 0, event: 9}, frozenset({"finishes"})
    )
    return kept_at_idle(held, work, 2.0, 5.0, named=True)


@pytest.mark.parametrize("every", [2, 5, 50])
def test_exactly_one_entry_in_so_many_events_names_the_event(every: int) -> None:
    """Finished requests agree within 10%: a session for every second request was 0.523 of them."""
    accepted = np.cumsum([0, 3537, 2570, 2755, 2589, 2016, 1867, 2092, 1235]).astype(np.float64)
    finishes = np.cumsum([0, 3360, 2457, 2640, 2475, 1932, 1792, 2002, 1189]).astype(np.float64)

    kept = rounds((accepted + 1) // every, accepted, finishes)

    assert kept is not None
    assert (kept.driver.counter, kept.driver.exact) == ("requests_accepted", True)
    assert kept.driver.lower == kept.driver.per_event == kept.driver.upper == 1.0 / every


def test_entries_of_random_events_are_not_exactly_one_in_so_many() -> None:
    rng = np.random.default_rng(7)
    exact = []
    for _ in range(200):
        requests = np.cumsum(rng.integers(40, 400, 6)).astype(np.float64)
        held = np.cumsum(rng.binomial(np.diff(requests, prepend=0).astype(int), 0.2))
        kept = rounds(held.astype(np.float64), requests, requests)
        exact += [kept] if kept is not None and kept.driver.exact else []

    assert exact == []


@pytest.mark.parametrize("stray", [0, 1])
def test_rounds_with_few_events_agree_if_each_keeps_exactly_as_much(stray: int) -> None:
    """A soak of a server that kept each rejected request: named were the bytes that it held."""
    rejected = np.cumsum([0.0, 14, 7, 7, 9, 2, 0, 11, 8])
    finishes = 2_000.0 * np.arange(9.0)
    held = rejected + stray * (np.arange(9) > 4)

    kept = rounds(held, rejected, finishes, "requests_rejected")

    assert (kept is None) is bool(stray)
    if kept is not None:
        assert (kept.driver.counter, kept.driver.per_event) == ("requests_rejected", 1.0)
        assert (kept.driver.exact, kept.whole, kept.steady) == (True, True, True)


@pytest.mark.parametrize(("kept_of_last", "counted"), [(1.0, True), (0.93, False)])
def test_a_whole_number_per_event_between_two_counters_is_counted(
    kept_of_last: float, counted: bool
) -> None:
    """Admissions: more than requests finish, and fewer than are accepted."""
    accepted = np.cumsum([0.0, 3537, 2570, 2755, 2589, 2016, 1867, 2092, 1235])
    admitted = np.cumsum([0.0, 3496, 2540, 2721, 2558, 1991, 1843, 2066, 1220 * kept_of_last])
    finishes = np.cumsum([0.0, 3360, 2457, 2640, 2475, 1932, 1792, 2002, 1189])

    kept = rounds(np.floor(admitted), accepted, finishes)

    assert kept is not None
    assert (kept.counted, kept.whole, kept.driver.exact) == (counted, False, False)
