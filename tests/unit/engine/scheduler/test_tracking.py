"""When the states of requests are saved, and how batches tell the model to save them."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from hybridbench.engine.engine import Engine
from hybridbench.engine.forward_batch import NOT_TRACKED, ForwardBatch
from hybridbench.engine.memory.owners import TRACK, TREE
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import (
    NANO_MODEL,
    assert_idle_and_clean,
    make_engine,
    make_tracking_engine,
    run_to_idle,
)
from tests.drafters import HalfRightDrafter

ONE_TOKEN = SamplingParams(max_new_tokens=1)
PROMPT = [(5 * i) % 48 for i in range(60)]


def batches(engine: Engine) -> list[ForwardBatch]:
    """Return a list that collects the batches given to the model from now on."""
    seen: list[ForwardBatch] = []
    runner = engine._runner
    healthy = runner.launch

    def noting(batch: ForwardBatch) -> Tensor:
        seen.append(batch)
        return healthy(batch)

    runner.launch = noting  # type: ignore[method-assign]
    return seen


def tracked_lens(engine: Engine, prompt: list[int], max_new_tokens: int = 1) -> list[list[int]]:
    """Serve one request; return the lengths at which each of its steps saved states."""
    seen = batches(engine)
    engine.generate([prompt], SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True))
    return [
        [length for length in batch.mamba_track_seqlens or () if length != NOT_TRACKED]
        for batch in seen
    ]


@pytest.mark.parametrize(
    ("length", "chunk", "expected"),
    [
        (15, None, [[]]),
        (16, None, [[16]]),
        (60, None, [[48]]),
        (60, 24, [[16], [48], []]),  # [0, 24), [24, 48), [48, 60)
        (60, 7, [[], [], [16], [], [32], [], [48], [], []]),
    ],
)
def test_a_prefill_saves_at_the_last_multiple_in_its_step_however_it_is_cut(
    length: int, chunk: int | None, expected: list[list[int]]
) -> None:
    engine = make_tracking_engine(chunked_prefill_size=chunk)

    assert tracked_lens(engine, PROMPT[:length]) == expected
    assert engine.counters.states_tracked == sum(map(len, expected))


def test_multiples_count_from_the_beginning_whatever_was_reused() -> None:
    engine = make_tracking_engine(mamba_track_interval=10)
    [first] = engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=30, ignore_eos=True))

    # The hit of 30 tokens is not a multiple of 16.
    lens = tracked_lens(engine, [1, 2, 3, *first, *PROMPT[:20]])

    assert engine.counters.prefix_hit_tokens == 30
    assert lens == [[48]]


def test_decode_steps_save_at_multiples_of_the_interval() -> None:
    engine = make_tracking_engine(mamba_track_interval=6)

    lens = tracked_lens(engine, [1, 2, 3], max_new_tokens=20)

    # The last token is never computed: 22 of 23 tokens have a state.
    assert [length for step in lens for length in step] == [6, 12, 18]


def test_where_a_prompt_leaves_what_is_cached_its_state_is_saved_instead_of_at_its_end() -> None:
    engine = make_tracking_engine(chunked_prefill_size=None)
    engine.generate([PROMPT], ONE_TOKEN)
    forked = [*PROMPT[:40], 1, *PROMPT[20:39]]

    lens = tracked_lens(engine, forked)

    assert lens == [[32]]
    assert tracked_lens(engine, [*forked[:36], 2]) == [[]]
    assert engine.counters.prefix_hit_tokens == 32


def test_without_branching_states_a_prompt_saves_at_its_end() -> None:
    engine = make_tracking_engine(chunked_prefill_size=None, cache_branching_states=False)
    engine.generate([PROMPT], ONE_TOKEN)

    assert tracked_lens(engine, [*PROMPT[:40], 1, *PROMPT[20:39]]) == [[48]]


def test_a_batch_names_a_slot_of_the_buffer_for_each_state_that_is_due() -> None:
    engine = make_tracking_engine(chunked_prefill_size=None)
    seen = batches(engine)
    for rid, length in (("short", 5), ("long", 20)):
        engine.submit(rid, PROMPT[:length], SamplingParams(max_new_tokens=2))

    engine.step()

    [batch] = seen
    assert batch.mamba_track_seqlens == [NOT_TRACKED, 16]
    assert batch.mamba_track_indices is not None
    none, slot = batch.mamba_track_indices.tolist()
    assert none == 0
    # The tree holds the slot by now.
    assert engine.pools.tree_cache.tree_slots().mamba_slots == [slot]


def _turn(engine: Engine, rid: str, prompt: list[int]) -> None:
    engine.submit(rid, prompt, SamplingParams(max_new_tokens=40, ignore_eos=True), session_id="s")
    run_to_idle(engine)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"drafter": HalfRightDrafter(NANO_MODEL.vocab_size)},
        {"enable_overlap_schedule": True},
        {"enable_overlap_schedule": True, "mamba_scheduler_strategy": "extra_buffer_lazy"},
    ],
    ids=["one", "drafts", "two", "lazy"],
)
def test_of_a_session_only_the_first_prompt_has_states_for_the_tree(
    changes: dict[str, Any],
) -> None:
    engine = make_tracking_engine(chunked_prefill_size=None, **changes)
    engine.open_session("s")

    _turn(engine, "first", PROMPT[:20])
    assert engine.counters.states_tracked == engine.pools.tree_cache.events.track_donations == 1

    _turn(engine, "second", PROMPT[:20])
    assert engine.counters.session_restores == 1
    assert engine.counters.states_tracked == 1


def test_a_turn_of_a_session_evicts_no_state_for_a_copy_that_nobody_would_read() -> None:
    engine = make_tracking_engine(
        mamba_slots=4,
        enable_overlap_schedule=True,
        mamba_scheduler_strategy="extra_buffer_lazy",
        chunked_prefill_size=None,
    )
    for prompt in (PROMPT[:20], PROMPT[20:40]):
        engine.generate([prompt], ONE_TOKEN)
    engine.open_session("s")

    _turn(engine, "first", [7, 8, 9])
    _turn(engine, "second", PROMPT[40:])

    # The session holds two slots and the tree the others: none is left for a second copy.
    assert engine.pools.mamba_allocator.held(TREE) == 2
    assert engine.counters.evict_calls == 0


@pytest.mark.parametrize(
    "changes", [{}, {"mamba_scheduler_strategy": "extra_buffer", "cache": "chunk"}]
)
def test_without_track_buffers_no_state_is_saved(changes: dict[str, Any]) -> None:
    engine = make_engine(mamba_cache_chunk_size=16, mamba_track_interval=16, **changes)

    assert tracked_lens(engine, PROMPT, max_new_tokens=20) == [[]] * 21
    assert engine.pools.mamba_allocator.held(TRACK) == 0


@pytest.mark.parametrize(
    ("changes", "slots"),
    [({}, 3), ({"enable_overlap_schedule": True}, 4)],
    ids=["one", "two"],
)
def test_the_smallest_pool_that_is_allowed_serves_hits(changes: dict[str, Any], slots: int) -> None:
    engine = make_tracking_engine(mamba_slots=slots, **changes)

    for _ in range(3):
        engine.generate([PROMPT], SamplingParams(max_new_tokens=20, ignore_eos=True))

    assert engine.counters.prefix_hits > 0
    assert engine.counters.abort_no_room == 0
    assert_idle_and_clean(engine)


def test_a_running_request_takes_its_own_slot_and_its_buffer() -> None:
    engine = make_tracking_engine(enable_overlap_schedule=True)
    engine.submit("r", [1, 2, 3], SamplingParams(max_new_tokens=8))

    engine.step()

    assert engine.pool_stats()["mamba"].in_flight == 3
    assert engine.pools.mamba_allocator.held(TRACK) == 2
