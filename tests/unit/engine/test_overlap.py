"""Overlapped steps: futures, surplus steps, late tokens, and what reaches the tree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from hybridbench.engine.cache.base import MatchPrefixParams
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.memory.owners import REQ
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.batch_builder import resolve_future_token_ids
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import (
    NANO_MODEL,
    assert_idle_and_clean,
    assert_nothing_lost,
    make_attention_engine,
    make_engine,
    run_to_idle,
)
from tests.digest_model import DigestModel
from tests.late_model import LateModel
from tests.model_steps import lay_out

PROMPT = [1, 2, 3, 4, 5]
DARING = NewTokenRatio(init=0.0, min=0.0, decay_steps=1)


def _overlapped(**changes: Any) -> Engine:
    return make_engine(enable_overlap_schedule=True, **changes)


def _params(max_new_tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens)


def _plain_tokens(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    return make_engine(cache="chunk").generate([prompt], _params(max_new_tokens))[0]


def _tree_state(engine: Engine, text: Sequence[int]) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Return how much of ``text`` is in the tree, and the state kept there."""
    match = engine.pools.match_prefix(MatchPrefixParams(key=RadixKey(text)))
    slot = match.last_device_node.mamba_value
    assert slot is not None
    cache = engine.pools.mamba_pool.mamba_cache
    return len(match.device_indices), cache.conv[0][:, slot].clone(), cache.temporal[:, slot]


def _state_after(text: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state that an engine without overlap keeps after one prefill of ``text``."""
    engine = make_engine(chunked_prefill_size=None)
    engine.generate([text], _params(1))
    length, conv, temporal = _tree_state(engine, text)
    assert length == len(text)
    return conv, temporal


def _order_of_work(monkeypatch: pytest.MonkeyPatch, *, overlapped: bool) -> list[str]:
    """Return what three steps do, in order; each entry has its batch number."""
    done: list[str] = []

    def note(what: str) -> None:
        done.append(f"{what} {sum(each.startswith(what) for each in done) + 1}")

    def noting(what: str) -> Any:
        healthy = getattr(Scheduler, what)

        def called(self: Scheduler, *arguments: object) -> object:
            note(what)
            return healthy(self, *arguments)

        return called

    for what in ("schedule", "settle"):
        monkeypatch.setattr(Scheduler, what, noting(what))
    model = LateModel(DigestModel(NANO_MODEL), partial(note, "launch"), partial(note, "read"))
    engine = make_engine(model=model, enable_overlap_schedule=overlapped)
    engine.submit("a", PROMPT, _params(8))
    for _ in range(3):
        engine.step()
    return done


def test_the_next_step_is_scheduled_before_anyone_waits_for_the_one_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _order_of_work(monkeypatch, overlapped=True) == [
        *("schedule 1", "launch 1"),
        *("schedule 2", "read 1", "launch 2", "settle 1"),
        *("schedule 3", "read 2", "launch 3", "settle 2"),
    ]


def test_without_overlap_a_step_is_waited_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _order_of_work(monkeypatch, overlapped=False) == [
        *("schedule 1", "launch 1", "read 1", "settle 1"),
        *("schedule 2", "launch 2", "read 2", "settle 2"),
        *("schedule 3", "launch 3", "read 3", "settle 3"),
    ]


def test_results_come_one_step_later() -> None:
    engine = _overlapped()
    engine.submit("a", PROMPT, _params(3))

    told = [[event.kind for event in engine.step()] for _ in range(5)]

    assert told == [
        [EventKind.ADMITTED],
        [EventKind.FIRST_TOKEN],
        [],
        [EventKind.FINISHED],
        [],
    ]
    assert not engine.has_work


def test_a_finished_request_runs_one_surplus_step_whose_token_is_thrown_away() -> None:
    engine = _overlapped()

    [tokens] = engine.generate([PROMPT], _params(4))

    assert tokens == _plain_tokens(PROMPT, 4)
    counters = engine.counters
    # The prefill yields the first token; three decode steps are needed, and one is surplus.
    assert (counters.decode_steps, counters.surplus_steps, counters.late_tokens) == (4, 1, 1)
    assert counters.output_tokens == 4
    assert_idle_and_clean(engine)


def test_while_its_late_token_is_under_way_a_finished_request_holds_nothing() -> None:
    engine = _overlapped()
    engine.submit("a", PROMPT, _params(2))

    kinds = [event.kind for _ in range(3) for event in engine.step()]

    assert kinds[-1] is EventKind.FINISHED
    assert (engine.has_work, engine.is_idle, engine.running_requests) == (True, False, 0)
    assert_nothing_lost(engine)
    for stats in engine.pool_stats().values():
        assert (stats.in_flight, stats.protected) == (0, 0)
    [gone] = engine.scheduler.outrun()
    assert gone.rid == "a"
    assert engine.reference_counted_classes()["Req"][1] == 1
    assert not engine.flush_cache()

    assert engine.step() == []
    assert engine.is_idle
    assert engine.flush_cache()
    assert engine.reference_counted_classes()["Req"][1] == 0


def test_the_tree_gets_the_whole_text_with_exactly_its_state() -> None:
    engine = _overlapped()

    [tokens] = engine.generate([PROMPT], _params(6))

    text = PROMPT + tokens
    length, conv, temporal = _tree_state(engine, text)
    # One token more than without overlap: the surplus step computed the last token.
    assert length == len(text)
    expected_conv, expected_temporal = _state_after(text)
    torch.testing.assert_close(conv, expected_conv, rtol=0, atol=1e-12)
    torch.testing.assert_close(temporal, expected_temporal, rtol=0, atol=1e-12)


def test_without_counting_the_surplus_step_the_tree_would_get_a_state_too_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Scheduler, "_commit_launched", lambda self, req: None)
    engine = _overlapped()

    [tokens] = engine.generate([PROMPT], _params(6))

    text = PROMPT + tokens
    length, _, temporal = _tree_state(engine, text)
    assert length == len(text) - 1
    assert not torch.allclose(temporal, _state_after(text[:length])[1], atol=1e-6)


def test_a_prompt_is_shared_before_the_next_step_moves_its_state() -> None:
    engine = _overlapped()
    engine.submit("a", PROMPT, _params(30))
    for _ in range(4):
        engine.step()

    length, conv, temporal = _tree_state(engine, PROMPT)

    assert length == len(PROMPT)
    expected_conv, expected_temporal = _state_after(PROMPT)
    torch.testing.assert_close(conv, expected_conv, rtol=0, atol=1e-12)
    torch.testing.assert_close(temporal, expected_temporal, rtol=0, atol=1e-12)


def test_an_abort_takes_effect_at_once_and_keeps_what_is_in_flight() -> None:
    engine = _overlapped()
    engine.submit("a", PROMPT, _params(30))
    for _ in range(5):
        engine.step()
    [req] = engine.scheduler.running
    known = list(req.output_ids)
    allocated = req.kv.kv_allocated_len
    assert allocated == req.kv.kv_committed_len + 1

    engine.abort("a")
    [event] = engine.step()

    assert (event.kind, list(event.output_ids)) == (EventKind.ABORTED, known)
    assert req.kv.is_empty
    assert (engine.counters.late_tokens, engine.counters.surplus_steps) == (1, 0)
    text = PROMPT + known
    length, _, temporal = _tree_state(engine, text)
    assert length == allocated == len(text)
    torch.testing.assert_close(temporal, _state_after(text)[1], rtol=0, atol=1e-12)
    run_to_idle(engine)
    assert_idle_and_clean(engine)


def test_the_late_token_of_a_retracted_request_is_computed_again() -> None:
    engine = _overlapped(kv_tokens=40, new_token_ratio=DARING)
    prompts = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}
    outputs: dict[str, list[int]] = {}
    for rid, prompt in prompts.items():
        engine.submit(rid, prompt, _params(30))
        engine.step()
    late = 0
    while engine.has_work:
        before = engine.counters.retracts
        for event in engine.step():
            if event.kind is EventKind.FINISHED:
                outputs[event.rid] = list(event.output_ids)
        if engine.counters.retracts > before:
            late = engine.counters.late_tokens
        assert_nothing_lost(engine)

    assert engine.counters.retracts > 0
    assert late > 0
    assert outputs == {rid: _plain_tokens(prompt, 30) for rid, prompt in prompts.items()}
    assert_idle_and_clean(engine)


def test_the_only_request_is_not_given_up_before_its_last_result_is_known() -> None:
    engine = _overlapped(check_level="off")
    engine.submit("a", [1, 2, 3], _params(3))
    for _ in range(3):
        engine.step()
    # The last token is in flight, and all free slots are lost.
    allocator = engine.pools.token_to_kv_pool_allocator
    lost = allocator.alloc(allocator.available_size(), REQ)
    assert lost is not None

    kinds = [event.kind for event in run_to_idle(engine)]

    assert kinds == [EventKind.FINISHED]
    assert (engine.counters.abort_no_room, engine.counters.surplus_steps) == (0, 0)


def test_the_only_request_is_aborted_when_no_result_can_help() -> None:
    engine = _overlapped(check_level="off")
    engine.submit("a", [1, 2, 3], _params(50))
    for _ in range(3):
        engine.step()
    allocator = engine.pools.token_to_kv_pool_allocator
    assert allocator.alloc(allocator.available_size(), REQ) is not None

    [event] = run_to_idle(engine)

    assert event.kind is EventKind.ABORTED
    assert "no room" in event.reason
    # The results of all launched steps had arrived by then.
    assert engine.counters.late_tokens == 0


def test_a_chunk_is_shared_when_it_is_launched_so_that_the_next_one_can_be() -> None:
    engine = _overlapped(chunked_prefill_size=8)
    engine.submit("a", list(range(20)), _params(2))

    protected = []
    for _ in range(3):
        engine.step()
        protected.append(engine.pool_stats()["kv"].protected)

    assert protected == [8, 16, 20]
    run_to_idle(engine)
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_surplus_position_is_given_back_once_whatever_the_page(page_size: int) -> None:
    for max_new_tokens in range(1, 2 * page_size + 2):
        engine = make_attention_engine(page_size, enable_overlap_schedule=True)

        engine.generate([PROMPT], _params(max_new_tokens))

        assert engine.counters.surplus_steps == 1
        assert_idle_and_clean(engine)
        assert engine.flush_cache()
        assert engine.pool_stats()["kv"].available == engine.config.kv_tokens


def test_a_second_admission_is_not_mistaken_for_the_one_whose_result_is_late() -> None:
    """The chunk in flight belongs to an old record: its request was retracted and readmitted."""
    engine = _overlapped(chunked_prefill_size=8)
    engine.submit("a", list(range(20)), _params(2))
    engine.step()
    scheduler = engine.scheduler
    req: Req | None = scheduler.chunked_req
    assert req is not None
    scheduler.chunked_req = None
    scheduler._retract(req)

    events = run_to_idle(engine)

    assert list(events[-1].output_ids) == _plain_tokens(list(range(20)), 2)
    assert_idle_and_clean(engine)


def _batch(input_ids: list[int]) -> ForwardBatch:
    one_each = [[token] for token in input_ids]
    slots = [[row + 1] for row in range(len(input_ids))]
    return lay_out("decode", one_each, [0] * len(one_each), slots, [0] * len(one_each))


def test_futures_are_replaced_by_the_tokens_of_their_rows() -> None:
    forward = _batch([-2, 7, -1])

    resolved = resolve_future_token_ids(forward, [30, 40])

    assert resolved.input_ids.tolist() == [40, 7, 30]
    assert forward.input_ids.tolist() == [-2, 7, -1]
    assert np.shares_memory(resolved.positions, forward.positions)


def test_a_batch_without_futures_is_left_as_it_is() -> None:
    forward = _batch([3, 4])

    assert resolve_future_token_ids(forward, []) is forward


def test_a_future_that_nobody_computes_is_an_error() -> None:
    with pytest.raises(IndexError):
        resolve_future_token_ids(_batch([-3]), [1, 2])
