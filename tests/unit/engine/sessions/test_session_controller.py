from __future__ import annotations

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.req import Session
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.clock import FakeClock
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle

PARAMS = SamplingParams(max_new_tokens=4, ignore_eos=True)


def take_turn(engine: Engine, rid: str, tokens: list[int], session_id: str = "s") -> list[int]:
    engine.submit(rid, tokens, PARAMS, session_id=session_id)
    [end] = [event for event in run_to_idle(engine) if event.ends_request]
    assert end.kind is EventKind.FINISHED, end.reason
    return list(end.output_ids)


def rejection(engine: Engine, rid: str, tokens: list[int], session_id: str = "s") -> str:
    engine.submit(rid, tokens, PARAMS, session_id=session_id)
    [event] = [event for event in engine.step() if event.kind is EventKind.REJECTED]
    return event.reason


def test_a_name_is_open_once_at_a_time() -> None:
    engine = make_engine()

    assert engine.open_session("s")
    assert not engine.open_session("s")
    assert engine.close_session("s")
    assert not engine.close_session("s")
    assert engine.open_session("s")
    assert (engine.counters.session_opens, engine.counters.session_closes) == (2, 1)


def test_a_turn_is_appended_to_everything_that_was_said() -> None:
    engine = make_engine()
    engine.open_session("s")

    first = take_turn(engine, "a", [1, 2, 3])
    second = take_turn(engine, "b", [4, 5])

    plain = make_engine()
    assert plain.generate([[1, 2, 3]], PARAMS) == [first]
    assert plain.generate([[1, 2, 3, *first, 4, 5]], PARAMS) == [second]
    session = engine.scheduler.sessions.get("s")
    assert session is not None
    assert session.tokens == [1, 2, 3, *first, 4, 5, *second]


def test_a_later_turn_computes_only_what_is_new() -> None:
    engine = make_engine()
    engine.open_session("s")
    take_turn(engine, "a", [1, 2, 3])
    computed = engine.counters.prompt_tokens

    take_turn(engine, "b", [4, 5])

    # The last token of the answer has no KV yet.
    assert engine.counters.prompt_tokens - computed == 3
    assert engine.counters.session_restored_tokens == 6


def test_a_turn_without_new_tokens_goes_on_talking() -> None:
    engine = make_engine()
    engine.open_session("s")
    first = take_turn(engine, "a", [1, 2, 3])

    second = take_turn(engine, "b", [])

    eight = SamplingParams(max_new_tokens=8, ignore_eos=True)
    assert make_engine().generate([[1, 2, 3]], eight) == [first + second]


def test_a_refused_turn_has_a_reason_and_leaves_the_session_unchanged() -> None:
    engine = make_engine()
    engine.open_session("s")
    first = take_turn(engine, "a", [1, 2, 3])
    held = engine.pool_stats()["kv"].session_held

    assert "there is no session 'other'" in rejection(engine, "b", [1], "other")
    assert "more than the 128" in rejection(engine, "c", [1] * 200)
    engine.submit("d", [4], PARAMS, session_id="s", payload=b"picture")
    assert "payload" in engine.step()[0].reason
    assert engine.pool_stats()["kv"].session_held == held
    engine.submit("e", [4, 5], PARAMS, session_id="s")
    assert "has a turn under way" in rejection(engine, "f", [6])
    engine.close_session("s")
    assert "is being closed" in rejection(engine, "g", [6])

    [end] = [event for event in run_to_idle(engine) if event.kind is EventKind.FINISHED]
    assert make_engine().generate([[1, 2, 3, *first, 4, 5]], PARAMS) == [list(end.output_ids)]
    assert engine.counters.session_rejected_turns == 5
    assert_idle_and_clean(engine)


def test_truncation_cuts_only_what_is_new() -> None:
    engine = make_engine()
    engine.open_session("s")
    first = take_turn(engine, "a", [1, 2, 3])
    engine.submit("b", [5] * 300, PARAMS, session_id="s", truncate=True)

    [end] = [event for event in run_to_idle(engine) if event.ends_request]

    prompt = [1, 2, 3, *first, *[5] * 300][:124]
    assert make_engine().generate([prompt], PARAMS) == [list(end.output_ids)]
    # Truncation would now leave none of the new tokens.
    engine.submit("c", [5] * 10, PARAMS, session_id="s", truncate=True)
    assert engine.step()[0].kind is EventKind.REJECTED
    assert engine.counters.requests_truncated == 1


def test_a_close_during_a_turn_waits_for_its_end() -> None:
    engine = make_engine()
    engine.open_session("s")
    engine.submit("a", [1, 2, 3], PARAMS, session_id="s")
    engine.step()

    assert engine.close_session("s")
    assert engine.close_session("s")

    assert (engine.counters.session_closes, engine.counters.session_deferred_closes) == (0, 1)
    events = run_to_idle(engine)
    assert [e.kind for e in events if e.ends_request] == [EventKind.FINISHED]
    assert engine.counters.session_closes == 1
    assert "s" not in engine.scheduler.sessions
    assert_idle_and_clean(engine)


def test_an_idle_session_times_out_by_the_engines_clock() -> None:
    clock = FakeClock()
    engine = make_engine(clock=clock)
    engine.open_session("s", timeout_s=10.0)
    engine.open_session("patient")
    take_turn(engine, "a", [1, 2, 3])
    clock.advance(9.0)
    assert engine.reap_sessions() == 1.0
    take_turn(engine, "b", [4])

    clock.advance(10.0)
    assert engine.reap_sessions() == 0.0
    clock.advance(0.5)
    assert engine.reap_sessions() is None

    assert "s" not in engine.scheduler.sessions
    assert "patient" in engine.scheduler.sessions
    counters = engine.counters
    assert (counters.session_timeouts, counters.session_closes) == (1, 1)
    assert counters.lock_calls == counters.unlock_calls > 0
    assert_idle_and_clean(engine)


def test_a_session_does_not_time_out_while_a_turn_is_under_way() -> None:
    clock = FakeClock()
    engine = make_engine(clock=clock)
    engine.open_session("s", timeout_s=2.0)
    engine.submit("a", [1, 2, 3], PARAMS, session_id="s")
    while engine.has_work:
        clock.advance(5.0)
        engine.step()
        assert "s" in engine.scheduler.sessions

    clock.advance(5.0)
    engine.step()
    assert "s" not in engine.scheduler.sessions


def test_a_session_and_its_request_do_not_wait_for_the_collector() -> None:
    engine = make_engine()
    engine.open_session("s")
    engine.submit("a", [1, 2, 3], PARAMS, session_id="s")
    [req] = engine.scheduler.waiting_queue
    session = engine.scheduler.sessions.get("s")
    assert session is not None
    assert (req.session, session.req) == (session, req)

    run_to_idle(engine)

    assert (req.session, session.req) == (None, None)


def test_as_many_sessions_may_be_alive_as_are_open() -> None:
    engine = make_engine()
    for name in ("s", "t"):
        engine.open_session(name)

    engine.close_session("s")

    kind, expected = engine.reference_counted_classes()["Session"]
    assert (kind, expected) == (Session, 1)
