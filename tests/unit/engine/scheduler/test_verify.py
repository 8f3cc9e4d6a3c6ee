"""Draft verification is lossless, fits into the pools, and leaves no rejected drafts behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hybridbench.engine.cache.base import MatchPrefixParams
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.memory.owners import REQ
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import (
    assert_idle_and_clean,
    assert_nothing_lost,
    make_attention_engine,
    make_engine,
    run_to_idle,
)

PROMPT = [1, 2, 3, 4, 5]
OUTPUT = 12


class ScriptedDrafter:
    """Proposes how known texts continue: ``right`` correct tokens, then a wrong one."""

    def __init__(self, texts: Sequence[Sequence[int]], right: int) -> None:
        self._texts = [list(text) for text in texts]
        self._right = right
        self.asked: list[int] = []

    def propose(self, prompt: Sequence[int], output: Sequence[int], most: int) -> list[int]:
        self.asked.append(most)
        text = [*prompt, *output]
        [whole] = [known for known in self._texts if known[: len(text)] == text]
        guesses = (whole[len(text) :] + [0] * most)[:most]
        if self._right < most:
            guesses[self._right] = (guesses[self._right] + 1) % 48
        return guesses


def _params(max_new_tokens: int = OUTPUT, **more: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, **more)


def _plain(prompt: Sequence[int], params: SamplingParams) -> list[int]:
    return make_engine(cache="chunk").generate([prompt], params)[0]


def _drafting(drafter: ScriptedDrafter, chain: int = 5, **changes: Any) -> Engine:
    return make_engine(drafter=drafter, speculative_num_draft_tokens=chain, **changes)


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_are_those_of_plain_decoding_however_right_the_guesses(
    right: int, temperature: float
) -> None:
    params = _params(temperature=temperature, seed=5)
    plain = _plain(PROMPT, params)
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right))

    assert engine.generate([PROMPT], params) == [plain]

    # A step with four draft tokens yields the correct ones and one token from the model.
    counters = engine.counters
    assert counters.verify_steps == -(-(OUTPUT - 2) // (min(right, 4) + 1))
    assert counters.output_tokens == OUTPUT
    assert_idle_and_clean(engine)


def test_counters_say_how_many_guesses_were_right_and_how_many_tails_went_back() -> None:
    plain = _plain(PROMPT, _params(11))
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right=1))

    engine.generate([PROMPT], _params(11))

    counters = engine.counters
    # After the prefill, 10 tokens remain: 2 per step, with 4, 4, 4, 3 and 1 draft tokens.  Each
    # step accepts one, so only the last has no tail.
    assert (counters.drafts_proposed, counters.drafts_accepted) == (16, 5)
    assert (counters.verify_steps, counters.decode_steps) == (5, 5)
    assert counters.draft_tails == 4


def test_no_guess_is_asked_for_that_the_request_could_not_use() -> None:
    plain = _plain(PROMPT, _params(4))
    drafter = ScriptedDrafter([PROMPT + plain], right=0)

    _drafting(drafter).generate([PROMPT], _params(4))

    # Two more tokens can follow the next one, then one; none can follow the last.
    assert drafter.asked == [2, 1]


def test_between_steps_a_request_holds_what_it_would_have_decoded() -> None:
    plain = _plain(PROMPT, _params())
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right=2))
    engine.submit("a", PROMPT, _params())
    engine.step()
    [req] = engine.scheduler.running
    while engine.has_work:
        engine.step()
        assert_nothing_lost(engine)
        if not req.finished:
            kv = req.kv
            assert kv.kv_committed_len == kv.kv_allocated_len == req.seqlen - 1


@pytest.mark.parametrize("right", range(5))
def test_the_tree_gets_exactly_the_state_of_the_text(right: int) -> None:
    plain = _plain(PROMPT, _params())
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right))

    engine.generate([PROMPT], _params())

    text = (PROMPT + plain)[:-1]
    reference = make_engine(chunked_prefill_size=None)
    reference.generate([text], _params(1))
    for mine, theirs in zip(_tree_state(engine, text), _tree_state(reference, text), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def _tree_state(engine: Engine, text: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    match = engine.pools.match_prefix(MatchPrefixParams(key=RadixKey(text)))
    assert len(match.device_indices) == len(text)
    slot = match.last_device_node.mamba_value
    assert slot is not None
    cache = engine.pools.mamba_pool.mamba_cache
    return cache.conv[0][:, slot].clone(), cache.temporal[:, slot].clone()


def test_a_stop_token_in_the_middle_of_a_chain_ends_the_request_there() -> None:
    plain = _plain(PROMPT, _params())
    stop = plain[5]
    first = plain.index(stop)
    params = _params(stop_token_ids=(stop,))
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right=4))

    [tokens] = engine.generate([PROMPT], params)

    assert tokens == plain[: first + 1]
    assert engine.counters.finish_stop == 1
    text = (PROMPT + tokens)[:-1]
    assert len(_tree_state(engine, text)) == 2
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("right", [0, 1, 2])
def test_wrong_guesses_leave_nothing_in_pages_of_any_size(page_size: int, right: int) -> None:
    params = _params(3 * page_size + 5)
    plain = make_attention_engine(page_size, cache="chunk").generate([PROMPT], params)[0]
    drafter = ScriptedDrafter([PROMPT + plain], right)
    engine = make_attention_engine(page_size, drafter=drafter, speculative_num_draft_tokens=7)
    engine.submit("a", PROMPT, params)

    outputs = []
    while engine.has_work:
        outputs += [event.output_ids for event in engine.step() if event.ends_request]
        assert_nothing_lost(engine)

    assert outputs == [tuple(plain)]
    assert engine.counters.draft_tails > 0
    assert engine.flush_cache()
    assert engine.pool_stats()["kv"].available == engine.config.kv_tokens


def test_where_room_is_short_there_are_fewer_guesses() -> None:
    plain = _plain(PROMPT, _params())
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right=4), check_level="off")
    engine.submit("a", PROMPT, _params())
    engine.step()
    allocator = engine.pools.token_to_kv_pool_allocator
    lost = allocator.alloc(allocator.available_size() - 3, REQ)
    assert lost is not None

    engine.step()

    # Three positions: one for the last token, two for draft tokens.
    assert engine.counters.drafts_proposed == 2
    [req] = engine.scheduler.running
    assert len(req.output_ids) == 4


def test_without_room_for_a_guess_a_step_decodes_plainly() -> None:
    plain = _plain(PROMPT, _params())
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right=4), check_level="off")
    engine.submit("a", PROMPT, _params())
    engine.step()
    allocator = engine.pools.token_to_kv_pool_allocator
    assert allocator.alloc(allocator.available_size() - 1, REQ) is not None

    engine.step()

    counters = engine.counters
    assert (counters.verify_steps, counters.decode_steps, counters.output_tokens) == (0, 1, 2)


def test_a_request_that_is_retracted_while_others_guess_loses_no_token() -> None:
    prompts = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}
    plain = {rid: _plain(prompt, _params(30)) for rid, prompt in prompts.items()}
    drafter = ScriptedDrafter([prompts[rid] + plain[rid] for rid in prompts], right=2)
    ratio = NewTokenRatio(init=0.0, min=0.0, decay_steps=1)
    engine = _drafting(drafter, kv_tokens=48, new_token_ratio=ratio)
    for rid, prompt in prompts.items():
        engine.submit(rid, prompt, _params(30))
        engine.step()

    events = run_to_idle(engine)

    assert engine.counters.retracts > 0
    ended = {event.rid: list(event.output_ids) for event in events if event.ends_request}
    assert ended == plain
    assert_idle_and_clean(engine)


def test_each_token_of_a_step_is_told() -> None:
    plain = _plain(PROMPT, _params(9))
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right=3))
    engine.submit("a", PROMPT, _params(9))

    [finished] = [event for event in run_to_idle(engine) if event.kind is EventKind.FINISHED]

    assert len(finished.itl_s) == len(finished.output_ids) - 1 == 8


def test_admission_counts_the_guesses_of_running_requests() -> None:
    """Even if nothing is reserved for outputs, a running request's next step needs its chain."""
    ratio = NewTokenRatio(init=0.0, min=0.0, decay_steps=1)
    admitted = []
    for chain in (2, 8):
        engine = _drafting(
            ScriptedDrafter([PROMPT + _plain(PROMPT, _params(20))], right=0),
            chain,
            kv_tokens=34,
            new_token_ratio=ratio,
            check_level="off",
        )
        engine.submit("a", PROMPT, _params(20))
        engine.step()
        engine.submit("b", [40, 41, 42], _params(20))
        engine.step()
        admitted.append(engine.running_requests)

    assert admitted == [2, 1]


# With overlap, room for a chain is taken before the previous results arrive; it is formed after.


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_overlapped_guesses_change_no_output(right: int, temperature: float) -> None:
    params = _params(temperature=temperature, seed=5)
    plain = _plain(PROMPT, params)
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right), enable_overlap_schedule=True)

    assert engine.generate([PROMPT], params) == [plain]

    # The same steps as without overlap, plus a surplus step without draft tokens.
    counters = engine.counters
    assert counters.verify_steps == -(-(OUTPUT - 2) // (min(right, 4) + 1))
    assert (counters.output_tokens, counters.surplus_steps) == (OUTPUT, 1)
    assert_idle_and_clean(engine)


def test_overlapped_guesses_leave_more_allocated_than_committed_from_step_to_step() -> None:
    params = _params(24)
    plain = _plain(PROMPT, params)
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right=2), enable_overlap_schedule=True)
    engine.submit("a", PROMPT, params)
    engine.step()
    [req] = engine.scheduler.running
    ahead = []
    while engine.has_work:
        engine.step()
        assert_nothing_lost(engine)
        if not req.finished:
            kv = req.kv
            assert kv.kv_committed_len == req.seqlen - 1
            assert kv.kv_allocated_len <= len(PROMPT) + 24
            ahead.append(kv.kv_allocated_len - kv.kv_committed_len)

    # Room for two chains of five tokens; the first has yielded three by then.
    assert max(ahead) == 2 * 5 - 3
    assert engine.flush_cache()


def test_a_stop_token_in_the_middle_of_an_overlapped_chain_leaves_the_state_of_the_text() -> None:
    plain = _plain(PROMPT, _params())
    stop = plain[5]
    params = _params(stop_token_ids=(stop,))
    engine = _drafting(ScriptedDrafter([PROMPT + plain], right=4), enable_overlap_schedule=True)

    [tokens] = engine.generate([PROMPT], params)

    assert tokens == plain[: plain.index(stop) + 1]
    text = (PROMPT + tokens)[:-1]
    reference = make_engine(chunked_prefill_size=None)
    reference.generate([text], _params(1))
    for mine, theirs in zip(_tree_state(engine, text), _tree_state(reference, text), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert_idle_and_clean(engine)


def test_where_room_is_short_overlapped_chains_are_shorter() -> None:
    plain = _plain(PROMPT, _params())
    engine = _drafting(
        ScriptedDrafter([PROMPT + plain], right=4),
        enable_overlap_schedule=True,
        check_level="off",
    )
    engine.submit("a", PROMPT, _params())
    engine.step()
    allocator = engine.pools.token_to_kv_pool_allocator
    lost = allocator.alloc(allocator.available_size() - 3, REQ)
    assert lost is not None

    engine.step()
    engine.step()

    # Three positions: one for the last token, two for draft tokens.
    assert engine.counters.drafts_proposed == 2
    [req] = engine.scheduler.running
    assert len(req.output_ids) == 4
