"""Attention-only engines, KV in pages of 1, 16 and 64 tokens: reuse changes no token.

The law of test_engine_equals_no_reuse.py for models without states, where a hit ends at a page
boundary and a request's last page is partly its own.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import assert_idle_and_clean, each_page_size, make_attention_engine
from tests.engine_programs import EngineProgram
from tests.laws.engine_machine import EngineMachine, engine_examples

PAGE_SIZES = (1, 16, 64)
# Assumes that requests stop early, so that decoding sometimes runs out of room.
DARING = NewTokenRatio(init=1.0, min=0.0, decay_steps=1)
# Longest prompt, longest output and stretch: of programs with long outputs, and of all others.
OUTPUTS_BIND = {1: (12, 60, 1), 16: (40, 90, 1), 64: (80, 200, 2)}
PROMPTS_BIND = {1: (60, 10, 1), 16: (160, 20, 3), 64: (320, 20, 8)}
SQUEEZES: dict[tuple[int, str], dict[str, Any]] = {
    (1, "prompts"): {"kv_tokens": 180, "chunked_prefill_size": 24},
    (1, "outputs"): {"kv_tokens": 130, "max_running_requests": 14, "new_token_ratio": DARING},
    (1, "whole prompts, longest prefix first"): {
        "kv_tokens": 200, "chunked_prefill_size": None, "schedule_policy": "lpm",
    },
    (16, "prompts"): {"kv_tokens": 28 * 16, "chunked_prefill_size": 64},
    (16, "outputs"): {
        "kv_tokens": 24 * 16, "max_running_requests": 14, "new_token_ratio": DARING,
        "chunked_prefill_size": 16,
    },
    (16, "whole prompts, longest prefix first"): {
        "kv_tokens": 32 * 16, "chunked_prefill_size": None, "schedule_policy": "lpm",
    },
    (64, "prompts"): {"kv_tokens": 18 * 64, "chunked_prefill_size": 128},
    (64, "outputs"): {
        "kv_tokens": 18 * 64, "max_running_requests": 14, "new_token_ratio": DARING,
        "chunked_prefill_size": 64,
    },
    (64, "whole prompts, longest prefix first"): {
        "kv_tokens": 22 * 64, "chunked_prefill_size": None, "schedule_policy": "lpm",
    },
}  # fmt: skip


def make_program(page_size: int, name: str, seed: int) -> EngineProgram:
    sizes = {"max_context_len": 352, "max_prefill_tokens": 256}
    longest = OUTPUTS_BIND if name == "outputs" else PROMPTS_BIND
    longest_prompt, longest_output, stretch = longest[page_size]
    return EngineProgram(
        make_attention_engine(page_size, **{**sizes, **SQUEEZES[page_size, name]}),
        random.Random(seed),
        longest_prompt=longest_prompt,
        longest_output=longest_output,
        stretch=stretch,
        make_oracle=partial(make_attention_engine, page_size, max_context_len=352),
    )


def names_of(page_size: int) -> list[str]:
    return [name for size, name in SQUEEZES if size == page_size]


WANTED = {
    1: {"prefix_hits": 65, "node_splits": 25, "evict_leaf": 130, "retracts": 2},
    16: {"prefix_hits": 30, "node_splits": 3, "evict_leaf": 65, "retracts": 1},
    64: {"prefix_hits": 25, "node_splits": 2, "evict_leaf": 40, "retracts": 1},
}


@each_page_size
def test_every_program_gives_the_tokens_of_the_engine_without_reuse(page_size: int) -> None:
    seen: Counter[str] = Counter()
    for seed, name in enumerate(names_of(page_size)):
        program = make_program(page_size, name, seed)
        try:
            program.run(220)
            program.compare_with_oracle()
            assert program.engine.flush_cache()
            assert_idle_and_clean(program.engine)
        except BaseException as error:
            error.add_note(f"seed {seed}, page size {page_size}, {name}")
            raise
        seen.update(program.engine.counters.as_dict())
    for event, count in WANTED[page_size].items():
        assert seen[event] >= count, (event, seen)
    # Aborts between chunks are rare here; test_engine_abort_points.py covers all of them.
    for event in (
        "refusals", "prefill_chunks", "abort_queued", "abort_decode",
        "disconnects", "finish_stop", "finish_length",
    ):  # fmt: skip
        assert seen[event] > 0, (event, seen)
    for event in ("cow_copies", "tombstones", "evict_internal_state", "evict_cascade"):
        assert seen[event] == 0, (event, seen)


class AttentionEngineMachine(EngineMachine):
    """Traffic chosen by Hypothesis, which shrinks a failure to the few actions that matter."""

    @initialize(squeeze=st.sampled_from(sorted(SQUEEZES)), seed=st.integers(0, 2**16))
    def build(self, squeeze: tuple[int, str], seed: int) -> None:
        self.program = make_program(*squeeze, seed)

    @rule(pages=st.integers(0, 3), rest=st.integers(0, 2), token=st.integers(0, 1))
    def submit_around_a_page_border(self, pages: int, rest: int, token: int) -> None:
        """Submit a prompt of one of two texts that ends before, at or after a page boundary."""
        assert self.program is not None
        page_size = self.program.engine.config.page_size
        length = max(1, pages * page_size + rest - 1)
        self.program.submit_prompt([token] * length, 1 + rest)


TestAttentionEngineMachine = AttentionEngineMachine.TestCase
TestAttentionEngineMachine.settings = engine_examples(0.3, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2036))
def test_long_programs_give_the_tokens_of_the_engine_without_reuse(seed: int) -> None:
    page_size, name = list(SQUEEZES)[seed % len(SQUEEZES)]
    program = make_program(page_size, name, seed)

    program.run(2500)

    program.compare_with_oracle()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("cache", ["radix", "chunk"])
def test_an_engine_without_recurrent_layers_has_no_state_slots(page_size: int, cache: str) -> None:
    engine: Engine = make_attention_engine(page_size, cache=cache)

    pools = engine.pools
    kind = TokenToKVPoolAllocator if page_size == 1 else PagedTokenToKVPoolAllocator
    assert type(pools.token_to_kv_pool_allocator) is kind
    assert isinstance(pools.tree_cache, RadixCache) == (cache == "radix")
    assert not isinstance(pools.req_to_token_pool, HybridReqToTokenPool)
    assert set(engine.pool_stats()) == {"kv", "req"}
