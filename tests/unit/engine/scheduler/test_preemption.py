"""Preemption in an engine: which requests are preempted, how many, and never in vain."""

from __future__ import annotations

from typing import Any

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.decode import retract_order
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import (
    assert_idle_and_clean,
    make_attention_engine,
    make_engine,
    make_req,
    run_to_idle,
)

CAREFUL = NewTokenRatio(init=1.0, min=1.0)


def _engine(**changes: Any) -> Engine:
    """Return an engine with KV for two requests of 10 + 20 tokens."""
    sizes: dict[str, Any] = {
        "kv_tokens": 64, "max_running_requests": 4, "new_token_ratio": CAREFUL,
        "enable_priority_scheduling": True,
    }  # fmt: skip
    return make_engine(**{**sizes, **changes})


def _submit(engine: Engine, rid: str, priority: int, *, output: int = 20, first: int = 0) -> None:
    """Submit a prompt of ten tokens; prompts with different ``first`` share no prefix."""
    prompt = [(first + i) % 48 for i in range(10)]
    engine.submit(rid, prompt, SamplingParams(max_new_tokens=output), priority=priority)


def _running(engine: Engine) -> set[str]:
    return {req.rid for req in engine.scheduler.running}


def _waiting(engine: Engine) -> list[str]:
    return [req.rid for req in engine.scheduler.waiting_queue]


def _two_running(engine: Engine, first: int = 0, second: int = 0) -> None:
    _submit(engine, "a", first, first=0)
    _submit(engine, "b", second, first=10)
    for _ in range(3):
        engine.step()
    assert _running(engine) == {"a", "b"}


def test_a_request_that_does_not_fit_preempts_the_latest_of_the_lowest_priority() -> None:
    engine = _engine()
    _two_running(engine)

    _submit(engine, "urgent", 11, first=20)
    events = engine.step()

    assert [(event.kind, event.rid) for event in events] == [
        (EventKind.ADMITTED, "urgent"), (EventKind.FIRST_TOKEN, "urgent"),
    ]  # fmt: skip
    assert _running(engine) == {"a", "urgent"}
    assert _waiting(engine) == ["b"]
    assert engine.scheduler.waiting_queue[0].kv.is_empty
    assert (engine.counters.preemptions, engine.counters.retracts) == (1, 1)
    run_to_idle(engine)
    assert_idle_and_clean(engine)


def test_what_was_sent_back_says_the_same_as_if_it_had_not_been() -> None:
    params = SamplingParams(max_new_tokens=20)
    alone = make_engine().generate([[(10 + i) % 48 for i in range(10)]], params)
    engine = _engine()
    _two_running(engine)
    _submit(engine, "urgent", 11, first=20)

    outputs = {
        event.rid: event.output_ids
        for event in run_to_idle(engine)
        if event.kind is EventKind.FINISHED
    }

    assert engine.counters.preemptions == 1
    assert list(outputs["b"]) == alone[0]


@pytest.mark.parametrize(("priority", "preemptions"), [(10, 0), (11, 1)])
def test_a_difference_up_to_the_threshold_takes_nothing(priority: int, preemptions: int) -> None:
    engine = _engine(priority_scheduling_preemption_threshold=10)
    _two_running(engine)

    _submit(engine, "urgent", priority, first=20)
    engine.step()

    assert engine.counters.preemptions == preemptions


def test_the_lowest_priority_goes_and_not_the_last_arrival() -> None:
    engine = _engine()
    _two_running(engine, first=0, second=5)

    _submit(engine, "urgent", 30, first=20)
    engine.step()

    assert _running(engine) == {"b", "urgent"}


def test_smaller_values_can_be_the_more_important() -> None:
    engine = _engine(schedule_low_priority_values_first=True)
    _two_running(engine, first=50, second=60)

    _submit(engine, "urgent", 0, first=20)
    engine.step()

    assert _running(engine) == {"a", "urgent"}


def test_priority_without_preemption_only_decides_whose_turn_it_is() -> None:
    engine = _engine(disable_priority_preemption=True)
    _two_running(engine)
    _submit(engine, "later", 0, first=20)
    _submit(engine, "urgent", 100, first=30)

    engine.step()

    assert _running(engine) == {"a", "b"}
    assert engine.counters.preemptions == 0
    order = [event.rid for event in run_to_idle(engine) if event.kind is EventKind.ADMITTED]
    assert order == ["urgent", "later"]


def test_without_priority_scheduling_a_priority_is_only_a_number() -> None:
    engine = _engine(enable_priority_scheduling=False)
    _two_running(engine)
    _submit(engine, "later", 0, first=20)
    _submit(engine, "urgent", 100, first=30)

    order = [event.rid for event in run_to_idle(engine) if event.kind is EventKind.ADMITTED]

    assert order == ["later", "urgent"]
    assert engine.counters.preemptions == 0


def test_nobody_is_sent_back_if_even_all_of_them_would_not_do() -> None:
    engine = _engine()
    _two_running(engine, first=0, second=100)

    # It needs 60 tokens, but "b" cannot be preempted and leaves only about 34 of the 64.
    _submit(engine, "urgent", 50, first=20, output=50)
    for _ in range(3):
        engine.step()

    assert _running(engine) == {"a", "b"}
    assert engine.counters.preemptions == 0
    run_to_idle(engine)
    assert_idle_and_clean(engine)


def test_as_many_go_as_it_takes() -> None:
    engine = _engine()
    _two_running(engine)

    _submit(engine, "urgent", 50, first=20, output=50)
    engine.step()

    assert _running(engine) == {"urgent"}
    assert sorted(_waiting(engine)) == ["a", "b"]
    assert engine.counters.preemptions == 2


def test_one_goes_for_a_row() -> None:
    engine = _engine(max_running_requests=2, kv_tokens=256)
    _two_running(engine)

    _submit(engine, "urgent", 50, first=20)
    engine.step()

    assert _running(engine) == {"a", "urgent"}
    assert engine.counters.preemptions == 1


def test_one_goes_for_a_state_slot() -> None:
    engine = _engine(mamba_slots=2, kv_tokens=256, cache="chunk")
    _two_running(engine)

    _submit(engine, "urgent", 50, first=20)
    engine.step()

    assert _running(engine) == {"a", "urgent"}
    assert engine.counters.preemptions == 1


def test_a_prefix_that_only_victims_lock_counts_as_room_and_one_that_others_lock_does_not() -> None:
    """Three requests share a prompt of 30: preempting one frees little, all nearly everything."""
    engine = _engine(kv_tokens=60)
    prompt = list(range(30))
    params = SamplingParams(max_new_tokens=6)
    engine.generate([prompt], params)
    for rid, priority in (("a", 0), ("b", 0), ("c", 100)):
        engine.submit(rid, [*prompt, 40 + ord(rid) % 8], params, priority=priority)
        engine.step()
    assert _running(engine) == {"a", "b", "c"}

    _submit(engine, "urgent", 50, first=31, output=20)
    engine.step()
    # "c" cannot be preempted and locks the prompt; without "a" and "b", about 23 tokens are free.
    assert engine.counters.preemptions == 0

    engine.abort("c")
    engine.step()
    assert engine.counters.preemptions == 2
    assert _running(engine) == {"urgent"}
    run_to_idle(engine)
    assert_idle_and_clean(engine)


def test_pages_are_what_is_counted() -> None:
    engine = make_attention_engine(
        16, kv_tokens=128, new_token_ratio=CAREFUL, enable_priority_scheduling=True
    )
    for rid, first in (("a", 0), ("b", 20)):
        prompt = [(first + i) % 48 for i in range(20)]
        engine.submit(rid, prompt, SamplingParams(max_new_tokens=20))
        engine.step()

    engine.submit("urgent", list(range(40)), SamplingParams(max_new_tokens=20), priority=11)
    engine.step()

    assert engine.counters.preemptions == 1
    assert "urgent" in _running(engine) | {getattr(engine.scheduler.chunked_req, "rid", "")}
    run_to_idle(engine)
    assert_idle_and_clean(engine)


def test_whoever_is_blocked_is_tried_again_when_somebody_less_important_begins_to_run() -> None:
    """The long prompt cannot be preempted between its chunks, but can be afterwards."""
    engine = _engine(max_running_requests=1, chunked_prefill_size=8)
    engine.submit("long", [i % 48 for i in range(20)], SamplingParams(max_new_tokens=9), priority=0)
    engine.step()
    _submit(engine, "urgent", 50, first=20)
    engine.step()
    assert engine.scheduler.chunked_req is not None
    assert engine.counters.preemptions == 0

    engine.step()
    engine.step()

    assert engine.counters.preemptions == 1
    assert _waiting(engine) == ["long"]
    run_to_idle(engine)
    assert_idle_and_clean(engine)


def test_when_decode_runs_out_of_room_the_least_important_is_sent_back() -> None:
    busy, idle = make_req("busy"), make_req("idle")
    busy.output_ids, idle.output_ids = [1, 2, 3], [1]
    ranks = {"busy": 5, "idle": 0}

    assert retract_order([busy, idle])[0] is idle
    assert retract_order([busy, idle], lambda req: ranks[req.rid])[0] is busy
