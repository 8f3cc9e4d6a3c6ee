"""The table of clients: entries exist before validation and are removed on every way out."""

from __future__ import annotations

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.front_end import DuplicateRequestError, FrontEnd
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.clock import FakeClock
from tests.builders import make_engine, make_req, run_to_idle

PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True)


def test_an_entry_is_there_before_anybody_knows_whether_its_request_is_valid() -> None:
    front_end = FrontEnd(48, 100)
    front_end.open("a", 1.0)

    assert (len(front_end), front_end.knows("a"), front_end.find("a")) == (1, True, None)
    with pytest.raises(DuplicateRequestError):
        front_end.refuse_duplicate("a")
    front_end.forget_unserved("a")
    assert len(front_end) == 0


def test_a_client_waits_for_one_request_and_not_for_another_of_the_same_id() -> None:
    front_end, first, second = FrontEnd(48, 100), make_req("a"), make_req("a")
    front_end.open("a", 0.0)
    assert not front_end.awaits(first)

    front_end.accept(first)

    assert front_end.awaits(first)
    assert not front_end.awaits(second)
    assert front_end.requests() == [first]


@pytest.mark.parametrize("way_out", ["rejected", "queued", "decode", "disconnect", "finish"])
def test_the_entry_is_gone_on_every_way_out(way_out: str) -> None:
    engine = make_engine()
    engine.submit("a", [1] * 200 if way_out == "rejected" else [1, 2, 3], PARAMS)
    if way_out in {"decode", "disconnect"}:
        engine.step()
        engine.step()
    if way_out in {"queued", "decode"}:
        engine.abort("a")
    if way_out == "disconnect":
        engine.disconnect("a")

    run_to_idle(engine)

    assert engine.containers()["front_end"] == 0
    assert engine.reference_counted_classes()["Req"][1] == 0


def aged_engine() -> tuple[Engine, FakeClock]:
    """Return an engine at 3 s: one request arrived at 0 s and runs, one came at 2 s and waits."""
    clock = FakeClock()
    engine = make_engine(clock=clock, max_running_requests=1)
    engine.submit("runs", [1, 2, 3], PARAMS)
    clock.advance(1.0)
    engine.step()
    clock.advance(1.0)
    engine.submit("waits", [4, 5], PARAMS)
    engine.step()
    clock.advance(1.0)
    return engine, clock


def test_ages_are_those_of_the_injected_clock_and_who_waits_is_not_silent() -> None:
    engine, clock = aged_engine()

    liveness = engine.liveness()
    assert liveness.requests_without_client == 0
    assert liveness.oldest_request_s == 3.0
    assert liveness.oldest_silence_s == 1.0
    clock.advance(0.5)
    engine.step()
    assert engine.liveness().oldest_silence_s == 0.0
    assert engine.liveness().oldest_request_s == 3.5


def test_an_idle_engine_has_nobody_old() -> None:
    engine, _ = aged_engine()
    run_to_idle(engine)

    liveness = engine.liveness()
    assert (liveness.oldest_request_s, liveness.oldest_silence_s) == (0.0, 0.0)


def test_a_request_asked_to_end_is_not_one_without_a_client() -> None:
    engine, _ = aged_engine()

    engine.disconnect("runs")
    engine.disconnect("waits")

    assert engine.containers()["front_end"] == 0
    assert engine.liveness().requests_without_client == 0


def test_requests_that_nobody_waits_for_are_counted_wherever_they_are() -> None:
    engine, _ = aged_engine()

    # As in an engine with a bug: the clients leave, and the scheduler is not told.
    engine._front_end.drop("runs")
    engine._front_end.drop("waits")

    assert engine.liveness().requests_without_client == 2
    assert engine.liveness().oldest_request_s == 3.0
