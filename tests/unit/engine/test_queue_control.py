"""The engine's queue from outside: limit, time-out, abort-all, pause and resume, flush."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.waiting import DISPLACED, QUEUE_FULL, WAITED_TOO_LONG
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import PauseMode
from tests.builders import assert_idle_and_clean, assert_nothing_lost, make_engine, run_to_idle

PARAMS = SamplingParams(max_new_tokens=6)


def _submit(engine: Engine, *rids: str, priority: int | None = None) -> None:
    for rid in rids:
        prompt = [(ord(rid[0]) + i) % 48 for i in range(9)]
        engine.submit(rid, prompt, PARAMS, priority=priority)


def _aborts(events: list[EngineEvent]) -> dict[str, str]:
    return {event.rid: event.reason for event in events if event.kind is EventKind.ABORTED}


def _finished(events: list[EngineEvent]) -> dict[str, list[int]]:
    return {
        event.rid: list(event.output_ids) for event in events if event.kind is EventKind.FINISHED
    }


def test_a_full_queue_refuses_the_newest_and_the_next_step_says_so() -> None:
    engine = make_engine(max_queued_requests=2)
    _submit(engine, "a", "b", "c", "d")

    assert engine.waiting_requests == 2
    events = engine.step()

    assert _aborts(events) == {"c": QUEUE_FULL, "d": QUEUE_FULL}
    assert (engine.counters.queue_limit_aborts, engine.counters.abort_queued) == (2, 2)
    assert set(_finished(run_to_idle(engine))) == {"a", "b"}
    assert_idle_and_clean(engine)


def test_a_refused_id_is_free_again_once_its_refusal_was_told() -> None:
    engine = make_engine(max_queued_requests=1)
    _submit(engine, "a", "b")
    engine.step()

    _submit(engine, "b")

    assert set(_finished(run_to_idle(engine))) == {"a", "b"}


def test_with_priorities_the_lowest_makes_room_in_a_full_queue() -> None:
    engine = make_engine(max_queued_requests=2, enable_priority_scheduling=True)
    _submit(engine, "a", "b", priority=1)
    _submit(engine, "c", priority=2)
    _submit(engine, "d", priority=0)

    events = engine.step()

    assert _aborts(events) == {"b": DISPLACED, "d": QUEUE_FULL}
    assert set(_finished(run_to_idle(engine))) == {"a", "c"}


def test_requests_without_a_priority_have_the_default_one() -> None:
    engine = make_engine(
        max_queued_requests=1, enable_priority_scheduling=True, default_priority_value=5
    )
    _submit(engine, "a", priority=4)
    _submit(engine, "b")

    assert _aborts(engine.step()) == {"a": DISPLACED}


def test_the_refusal_of_a_client_that_has_left_is_told_to_nobody() -> None:
    engine = make_engine(max_queued_requests=1)
    _submit(engine, "a", "b")
    engine.disconnect("b")

    assert _aborts(engine.step()) == {}
    run_to_idle(engine)
    assert engine.containers()["front_end"] == 0


def test_retracted_requests_may_overfill_the_queue() -> None:
    engine = make_engine(max_queued_requests=1)
    _submit(engine, "a")
    engine.step()
    _submit(engine, "b")
    engine.pause_generation("retract")

    assert engine.waiting_requests == 2
    engine.continue_generation()
    assert set(_finished(run_to_idle(engine))) == {"a", "b"}


def test_who_waits_too_long_is_aborted_with_the_reason_and_others_go_on() -> None:
    clock = FakeClock()
    engine = make_engine(clock=clock, max_running_requests=1, req_waiting_timeout_s=5.0)
    _submit(engine, "a", "b")
    engine.step()
    clock.advance(4.0)
    _submit(engine, "c")
    assert _aborts(engine.step()) == {}

    clock.advance(1.5)
    events = engine.step()

    assert _aborts(events) == {"b": WAITED_TOO_LONG}
    assert (engine.counters.queue_timeouts, engine.counters.abort_queued) == (1, 1)
    assert set(_finished(run_to_idle(engine))) == {"a", "c"}
    assert_idle_and_clean(engine)


def test_a_request_that_runs_is_not_overdue_however_long_it_takes() -> None:
    clock = FakeClock()
    engine = make_engine(clock=clock, req_waiting_timeout_s=1.0)
    _submit(engine, "a")
    engine.step()
    clock.advance(100.0)

    assert set(_finished(run_to_idle(engine))) == {"a"}


def test_abort_all_ends_everybody_wherever_they_are() -> None:
    engine = make_engine(max_running_requests=2, chunked_prefill_size=16)
    _submit(engine, "a")
    engine.step()
    engine.submit("long", [i % 48 for i in range(60)], PARAMS)
    engine.step()
    _submit(engine, "b", "c")
    engine.abort("c")

    assert engine.abort_all() == 3
    events = engine.step()

    assert set(_aborts(events)) == {"a", "long", "b", "c"}
    counters = engine.counters
    assert (counters.abort_queued, counters.abort_prefill, counters.abort_decode) == (2, 1, 1)
    assert_idle_and_clean(engine)
    assert not engine.has_work


def test_ending_a_long_queue_walks_it_once_and_not_once_for_each() -> None:
    engine = make_engine()
    for number in range(500):
        engine.submit(f"r{number}", [number % 48, 1, 2], PARAMS)
    walks = 0

    class Counted(list[Req]):
        def __iter__(self) -> Iterator[Req]:
            nonlocal walks
            walks += 1
            return super().__iter__()

    assert engine.abort_all() == 500
    engine.scheduler.waiting_queue = Counted(engine.scheduler.waiting_queue)
    events = engine.step()

    assert len(_aborts(events)) == 500
    assert 0 < walks < 5
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_paused_engine_has_no_work_and_goes_on_where_it_stopped(mode: PauseMode) -> None:
    calm = make_engine()
    _submit(calm, "a", "b")
    expected = _finished(run_to_idle(calm))
    engine = make_engine()
    _submit(engine, "a", "b")
    for _ in range(3):
        engine.step()

    engine.pause_generation(mode)

    assert (engine.has_work, engine.is_paused, engine.is_idle) == (False, True, False)
    assert engine.step() == []
    assert engine.running_requests == (2 if mode == "in_place" else 0)
    assert_nothing_lost(engine)
    assert engine.check_invariants(idle=False) == []
    engine.continue_generation()
    assert _finished(run_to_idle(engine)) == expected
    assert engine.counters.pauses == 1
    assert_idle_and_clean(engine)


def test_pausing_with_abort_ends_everybody_in_the_next_step() -> None:
    engine = make_engine()
    _submit(engine, "a", "b")
    engine.step()

    engine.pause_generation()

    assert set(_aborts(run_to_idle(engine))) == {"a", "b"}
    _submit(engine, "c")
    assert engine.step() == []
    engine.continue_generation()
    assert set(_finished(run_to_idle(engine))) == {"c"}


def test_a_paused_engine_still_settles_aborts() -> None:
    engine = make_engine()
    _submit(engine, "a", "b")
    engine.step()
    engine.pause_generation("in_place")
    engine.abort("a")

    assert set(_aborts(run_to_idle(engine))) == {"a"}
    assert engine.running_requests == 1


def test_retracting_pause_takes_back_a_request_between_chunks_too() -> None:
    engine = make_engine(chunked_prefill_size=16)
    engine.submit("long", [i % 48 for i in range(60)], PARAMS)
    engine.step()
    assert engine.scheduler.chunked_req is not None

    engine.pause_generation("retract")

    assert engine.running_requests == 0
    assert {pool: stats.in_flight for pool, stats in engine.pool_stats().items()} == {
        "kv": 0, "mamba": 0, "req": 0,
    }  # fmt: skip
    engine.continue_generation()
    assert set(_finished(run_to_idle(engine))) == {"long"}
    assert_idle_and_clean(engine)


def test_the_cache_is_flushed_while_nobody_reads_it_and_refused_otherwise() -> None:
    engine = make_engine()
    _submit(engine, "a")
    engine.step()
    assert not engine.flush_cache()
    engine.pause_generation("in_place")
    assert not engine.flush_cache()
    engine.continue_generation()

    engine.pause_generation("retract")

    assert engine.pool_stats()["kv"].evictable > 0
    assert engine.flush_cache()
    assert engine.pool_stats()["kv"].evictable == 0
    assert_nothing_lost(engine)
    engine.continue_generation()
    assert set(_finished(run_to_idle(engine))) == {"a"}
    assert_idle_and_clean(engine)


def test_a_waiting_request_alone_still_refuses_a_flush() -> None:
    engine = make_engine()
    _submit(engine, "a")

    assert not engine.flush_cache()
