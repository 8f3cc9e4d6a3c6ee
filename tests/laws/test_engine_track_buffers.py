"""Hybrid engines that track states, in pages of 1, 16 and 64 tokens: reuse changes no token.

The law of test_engine_equals_no_reuse.py for the strategies with track buffers.  There, a state in
the tree is a copy that a step saved at an aligned length, in the middle of a prefill or while
decoding; other requests never continue from a request's own state.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import (
    NANO_MODEL,
    assert_idle_and_clean,
    each_page_size,
    make_tracking_engine,
)
from tests.drafters import HalfRightDrafter
from tests.engine_programs import EngineProgram
from tests.laws.engine_machine import EngineMachine, engine_examples

# Assumes that requests stop early, so that decoding sometimes runs out of room.
DARING = NewTokenRatio(init=1.0, min=0.0, decay_steps=1)
# How states are saved: in one buffer slot, in two with overlap, in two taken lazily, or from
# verified draft chains.
BUFFERS: dict[str, dict[str, Any]] = {
    "one": {"mamba_scheduler_strategy": "extra_buffer"},
    "drafts": {
        "mamba_scheduler_strategy": "extra_buffer", "speculative_num_draft_tokens": 6,
        "drafter": HalfRightDrafter(NANO_MODEL.vocab_size),
    },
    "two": {"mamba_scheduler_strategy": "extra_buffer", "enable_overlap_schedule": True},
    "lazy": {"mamba_scheduler_strategy": "extra_buffer_lazy", "enable_overlap_schedule": True},
}  # fmt: skip
# Longest prompt, longest output and stretch.
PROMPTS_BIND = {1: (90, 24, 2), 16: (160, 40, 3), 64: (256, 90, 6)}
OUTPUTS_BIND = {1: (30, 60, 1), 16: (40, 90, 1), 64: (80, 200, 2)}
# Barely sufficient pools, by page size; states cannot be saved more often than once a page.
SQUEEZES: dict[tuple[int, str], dict[str, Any]] = {
    (1, "states bind"): {"mamba_slots": 12, "kv_tokens": 500, "mamba_cache_chunk_size": 8},
    (1, "hardly any states"): {"mamba_slots": 5, "kv_tokens": 400, "mamba_track_interval": 5},
    (1, "outputs"): {
        "mamba_slots": 40, "kv_tokens": 200, "max_running_requests": 14,
        "new_token_ratio": DARING, "mamba_track_interval": 7,
    },
    (1, "whole prompts, longest prefix first"): {
        "mamba_slots": 24, "kv_tokens": 300, "chunked_prefill_size": None,
        "schedule_policy": "lpm",
    },
    (1, "short chunks"): {
        "mamba_slots": 20, "kv_tokens": 300, "chunked_prefill_size": 7, "mamba_track_interval": 3,
    },
    (16, "states bind"): {"mamba_slots": 14, "kv_tokens": 40 * 16, "chunked_prefill_size": 64},
    (16, "outputs"): {
        "mamba_slots": 40, "kv_tokens": 24 * 16, "max_running_requests": 14,
        "new_token_ratio": DARING, "chunked_prefill_size": 16,
    },
    (16, "chunks of four pages"): {
        "mamba_slots": 30, "kv_tokens": 32 * 16, "chunked_prefill_size": None,
        "mamba_cache_chunk_size": 64, "mamba_track_interval": 48, "schedule_policy": "lpm",
    },
    (64, "states bind"): {"mamba_slots": 14, "kv_tokens": 26 * 64, "chunked_prefill_size": 128},
    (64, "outputs"): {
        "mamba_slots": 40, "kv_tokens": 18 * 64, "max_running_requests": 14,
        "new_token_ratio": DARING, "chunked_prefill_size": 64,
    },
}  # fmt: skip
PAGE_SIZES = (1, 16, 64)
# Each page size with each kind of buffer.
WORLDS = [(page_size, buffer) for page_size in PAGE_SIZES for buffer in BUFFERS]


def make_program(page_size: int, name: str, buffer: str, seed: int) -> EngineProgram:
    sizes = {"max_context_len": 352, "max_prefill_tokens": 256}
    longest = OUTPUTS_BIND if name == "outputs" else PROMPTS_BIND
    longest_prompt, longest_output, stretch = longest[page_size]
    squeeze = {**sizes, **SQUEEZES[page_size, name], **BUFFERS[buffer]}
    return EngineProgram(
        make_tracking_engine(page_size, **squeeze),
        random.Random(seed),
        longest_prompt=longest_prompt,
        longest_output=longest_output,
        stretch=stretch,
        make_oracle=partial(make_tracking_engine, page_size, max_context_len=352),
    )


def names_of(page_size: int) -> list[str]:
    return [name for size, name in SQUEEZES if size == page_size]


WANTED = {
    1: {"cow_copies": 90, "track_donations": 250, "tombstones": 120, "retracts": 3},
    16: {"cow_copies": 30, "track_donations": 80, "tombstones": 20, "retracts": 2},
    64: {"cow_copies": 8, "track_donations": 30, "tombstones": 5, "retracts": 1},
}


def is_met(seen: Counter[str], page_size: int, actions: int) -> bool:
    """Return whether the events are those of ``WANTED``, which is for 250 actions."""
    wanted = {event: count * actions // 250 for event, count in WANTED[page_size].items()}
    return all(seen[event] >= max(1, count) for event, count in wanted.items())


def assert_law(page_size: int, pairs: Sequence[tuple[str, str]], actions: int) -> None:
    """Check the law on one program per pair, and on more while the counts miss ``WANTED``.

    Each kind of buffer in ``pairs`` must also produce its own events.
    """
    seen: Counter[str] = Counter()
    for seed, (name, buffer) in enumerate([*pairs, *pairs]):
        if seed >= len(pairs) and is_met(seen, page_size, actions):
            break
        program = make_program(page_size, name, buffer, seed)
        try:
            program.run(actions)
            program.compare_with_oracle()
            assert program.engine.flush_cache()
            assert_idle_and_clean(program.engine)
        except BaseException as error:
            error.add_note(f"seed {seed}, page size {page_size}, {name}, buffer {buffer}")
            raise
        seen.update(program.engine.counters.as_dict())
    assert is_met(seen, page_size, actions), seen
    events = ["refusals", "prefill_chunks", "abort_queued", "abort_decode", "disconnects"]
    for _, buffer in pairs:
        events += {"drafts": ["drafts_accepted"], "two": ["surplus_steps"]}.get(buffer, [])
    for event in events:
        assert seen[event] > 0, (event, seen)


@each_page_size
def test_every_squeeze_and_every_buffer_gives_the_tokens_of_the_engine_without_reuse(
    page_size: int,
) -> None:
    names, buffers = names_of(page_size), list(BUFFERS)
    count = max(len(names), len(buffers))

    pairs = list(islice(zip(cycle(names), cycle(buffers), strict=False), count))
    assert_law(page_size, pairs, actions=90)


@pytest.mark.slow
@pytest.mark.parametrize(("page_size", "buffer"), WORLDS)
def test_every_program_gives_the_tokens_of_the_engine_without_reuse(
    page_size: int, buffer: str
) -> None:
    assert_law(page_size, [(name, buffer) for name in names_of(page_size)], actions=250)


class TrackingEngineMachine(EngineMachine):
    """Traffic chosen by Hypothesis, which shrinks a failure to the few actions that matter."""

    @initialize(
        squeeze=st.sampled_from(sorted(SQUEEZES)),
        buffer=st.sampled_from(sorted(BUFFERS)),
        seed=st.integers(0, 2**16),
    )
    def build(self, squeeze: tuple[int, str], buffer: str, seed: int) -> None:
        self.program = make_program(*squeeze, buffer, seed)

    @rule(chunks=st.integers(0, 3), rest=st.integers(0, 2), token=st.integers(0, 1))
    def submit_around_a_grid_line(self, chunks: int, rest: int, token: int) -> None:
        """Submit a prompt that ends before, at or after a length at which states are saved."""
        assert self.program is not None
        grid = self.program.engine.config.cache_chunk_size
        length = max(1, min(chunks * grid + rest - 1, 200))
        self.program.submit_prompt([token] * length, 1 + rest)


TestTrackingEngineMachine = TrackingEngineMachine.TestCase
TestTrackingEngineMachine.settings = engine_examples(0.4, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3000, 3060))
def test_long_programs_give_the_tokens_of_the_engine_without_reuse(seed: int) -> None:
    page_size, name = list(SQUEEZES)[seed % len(SQUEEZES)]
    program = make_program(page_size, name, list(BUFFERS)[seed % len(BUFFERS)], seed)

    program.run(2500)

    program.compare_with_oracle()
