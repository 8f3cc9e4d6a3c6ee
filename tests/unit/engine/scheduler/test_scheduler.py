from __future__ import annotations

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.lineage import Passed
from hybridbench.engine.memory.owners import REQ
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle

DARING = NewTokenRatio(init=0.0, min=0.0, decay_steps=1)


def _params(max_new_tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens)


def _running(engine: Engine) -> dict[str, Req]:
    return {req.rid: req for req in engine.scheduler.running}


def _step_until_retract(engine: Engine) -> None:
    for _ in range(60):
        if engine.counters.retracts:
            return
        engine.step()
    raise AssertionError("nothing was retracted")


def test_prefill_goes_before_decode() -> None:
    engine = make_engine()
    engine.submit("a", [1, 2, 3], _params(9))
    engine.step()
    engine.submit("b", [4, 5, 6], _params(9))

    engine.step()

    assert engine.counters.prefill_steps == 2
    assert engine.counters.decode_steps == 0
    assert set(_running(engine)) == {"a", "b"}


def test_a_long_prompt_is_computed_in_chunks_and_shared_between_them() -> None:
    engine = make_engine(chunked_prefill_size=8)
    engine.submit("a", list(range(20)), _params(2))

    protected = []
    for _ in range(3):
        engine.step()
        protected.append(engine.pool_stats()["kv"].protected)

    assert protected == [8, 16, 20]
    assert (engine.counters.prefill_chunks, engine.counters.prompt_tokens) == (2, 20)
    run_to_idle(engine)
    assert_idle_and_clean(engine)


def test_chunks_change_no_token() -> None:
    prompt = [i % 40 for i in range(60)]
    whole = make_engine(chunked_prefill_size=None).generate([prompt], _params(8))

    for chunk in (1, 7, 16):
        assert make_engine(chunked_prefill_size=chunk).generate([prompt], _params(8)) == whole


def test_when_decode_runs_out_of_room_the_request_with_the_fewest_outputs_waits() -> None:
    engine = make_engine(kv_tokens=40, new_token_ratio=DARING)
    engine.submit("old", [1, 2, 3, 4], _params(24))
    for _ in range(6):
        engine.step()
    engine.submit("new", [5, 6, 7, 8], _params(24))
    _step_until_retract(engine)

    assert set(_running(engine)) == {"old"}
    [waiting] = engine.scheduler.waiting_queue
    assert (waiting.rid, waiting.is_retracted, waiting.kv.is_empty) == ("new", True, True)
    assert len(waiting.output_ids) > 0


def test_a_retract_changes_no_token_and_tells_the_client_nothing() -> None:
    engine = make_engine(kv_tokens=40, new_token_ratio=DARING)
    prompts = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}
    events: list[EngineEvent] = []
    for rid, prompt in prompts.items():
        engine.submit(rid, prompt, _params(30))
        events += engine.step()

    events += run_to_idle(engine)

    assert engine.counters.retracts > 0
    for rid, prompt in prompts.items():
        [alone] = make_engine().generate([prompt], _params(30))
        mine = [event for event in events if event.rid == rid]
        assert [event.kind for event in mine] == [
            EventKind.ADMITTED,
            EventKind.FIRST_TOKEN,
            EventKind.FINISHED,
        ]
        assert list(mine[-1].output_ids) == alone
    assert_idle_and_clean(engine)


def test_after_a_retract_admission_is_more_careful() -> None:
    engine = make_engine(kv_tokens=40, new_token_ratio=DARING)
    for i in range(2):
        engine.submit(f"r{i}", [i, 2, 3, 4], _params(30))
        engine.step()
    _step_until_retract(engine)

    assert engine.scheduler._ratio.value > 0.5


def test_the_only_running_request_is_aborted_when_even_it_has_no_room() -> None:
    engine = make_engine(check_level="off")
    engine.submit("a", [1, 2, 3], _params(50))
    engine.step()
    allocator = engine.pools.token_to_kv_pool_allocator
    allocator.alloc(allocator.available_size(), REQ)

    [event] = engine.step()

    assert event.kind is EventKind.ABORTED
    assert "no room for token 4" in event.reason
    assert (engine.counters.abort_no_room, engine.counters.retracts) == (1, 0)
    assert engine.is_idle


def test_a_refusal_is_not_repeated_until_somebody_leaves() -> None:
    engine = make_engine(max_running_requests=6, kv_tokens=60)
    engine.submit("a", [1] * 20, _params(20))
    engine.step()
    engine.submit("b", [2] * 20, _params(20))

    for _ in range(10):
        engine.step()
    assert engine.counters.refusals == 1
    run_to_idle(engine)

    assert engine.counters.finishes == 2


def _finished(engine: Engine) -> dict[str, Req]:
    """Run until idle; return the requests that ended, by id."""
    return {event.rid: event.req for event in run_to_idle(engine) if event.req is not None}


def test_a_request_that_fills_its_step_is_known_at_its_end_by_chunks_and_room() -> None:
    engine = make_engine(chunked_prefill_size=8)
    engine.submit("long", list(range(20)), _params(2))
    engine.submit("short", [30, 31, 32], _params(2))

    ended = _finished(engine)

    assert ended["long"].passed == Passed.CHUNKED | Passed.ENDED_ADMISSION
    assert not (Passed.CHUNKED | Passed.ENDED_ADMISSION) & ended["short"].passed


def test_who_ends_an_admission_after_a_hit_is_told_from_who_reuses_nothing() -> None:
    engine = make_engine(chunked_prefill_size=8)
    engine.submit("first", list(range(8)), _params(2))
    run_to_idle(engine)
    engine.submit("hit", list(range(30)), _params(2))
    [hit] = _finished(engine).values()
    engine.submit("fresh", list(range(40, 20, -1)), _params(2))
    [fresh] = _finished(engine).values()

    assert Passed.ENDED_ADMISSION & hit.passed & fresh.passed
    assert Passed.ENDED_AFTER_HIT & hit.passed
    assert not Passed.ENDED_AFTER_HIT & fresh.passed


def test_a_request_is_known_by_its_refusals_and_the_one_before_it_did_not_end_the_step() -> None:
    engine = make_engine(max_running_requests=6, kv_tokens=60)
    engine.submit("a", [1] * 20, _params(20))
    engine.submit("b", [2] * 20, _params(20))

    ended = _finished(engine)

    assert Passed.REFUSED & ended["b"].passed
    # It was admitted with room for more; only the next one was too large.
    assert not (Passed.REFUSED | Passed.ENDED_ADMISSION) & ended["a"].passed


def test_a_request_is_known_by_its_retracts() -> None:
    engine = make_engine(kv_tokens=40, new_token_ratio=DARING)
    for rid, prompt in {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}.items():
        engine.submit(rid, prompt, _params(30))
        engine.step()

    ended = _finished(engine)

    retracted = [rid for rid, req in ended.items() if Passed.RETRACTED & req.passed]
    assert len(retracted) == engine.counters.retracts == 1
    assert any(Passed.BESIDE_OTHERS & req.passed for req in ended.values())


@pytest.mark.parametrize("rid", ["a", "b"])
def test_an_abort_before_anything_ran_counts_as_queued(rid: str) -> None:
    engine = make_engine()
    for each in ("a", "b"):
        engine.submit(each, [1, 2, 3], _params(4))

    engine.abort(rid)
    events = run_to_idle(engine)

    assert [e.rid for e in events if e.kind is EventKind.ABORTED] == [rid]
    assert engine.counters.abort_queued == 1
    assert engine.counters.finishes == 1


def test_an_abort_between_chunks_counts_as_prefill_and_frees_the_row() -> None:
    engine = make_engine(chunked_prefill_size=8)
    engine.submit("a", list(range(30)), _params(4))
    engine.step()

    engine.abort("a")
    engine.step()

    assert engine.counters.abort_prefill == 1
    assert engine.scheduler.chunked_req is None
    assert_idle_and_clean(engine)


def test_asking_twice_aborts_once() -> None:
    engine = make_engine()
    engine.submit("a", [1, 2, 3], _params(40))
    engine.step()

    engine.abort("a")
    engine.disconnect("a")
    events = engine.step()

    assert events == []
    assert engine.counters.abort_decode == 1
    assert_idle_and_clean(engine)


def test_state_slots_that_run_short_only_slow_the_engine_down() -> None:
    engine = make_engine(mamba_slots=1, max_running_requests=6)
    prompts = [[i, 2, 3] for i in range(8)] + [[i, 2, 3, 4, 5] for i in range(8)]

    outputs = engine.generate(prompts, _params(3))

    assert outputs == make_engine(mamba_slots=16).generate(prompts, _params(3))
    assert_idle_and_clean(engine)


def test_the_longest_cached_prefix_is_admitted_first() -> None:
    engine = make_engine(schedule_policy="lpm", max_running_requests=1)
    engine.generate([[1, 2, 3, 4, 5, 6]], _params(1))
    engine.submit("cold", [9, 9, 9], _params(2))
    engine.submit("warm", [1, 2, 3, 4, 5, 6, 7], _params(2))

    events = run_to_idle(engine)

    admitted = [event.rid for event in events if event.kind is EventKind.ADMITTED]
    assert admitted == ["warm", "cold"]


def test_a_reused_state_slot_does_not_show_its_last_owner() -> None:
    """All prompts run one after another in the same slot, without a prefix cache."""
    engine = make_engine(cache="chunk", mamba_slots=1, max_running_requests=1)
    prompts = [[7, 7, 7], [1, 2, 3], [7, 7, 7], [4], [1, 2, 3]]

    outputs = engine.generate(prompts, _params(4))

    assert outputs[0] == outputs[2]
    assert outputs[1] == outputs[4]
    assert outputs == [make_engine().generate([prompt], _params(4))[0] for prompt in prompts]
