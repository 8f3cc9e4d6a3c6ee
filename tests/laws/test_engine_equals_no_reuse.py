"""The cached engine gives exactly the tokens of an engine without reuse, under any traffic.

The model is a digest of all it reads (tests/digest_model.py); test_every_cell.py uses a real one.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import NANO_ENGINE, assert_idle_and_clean, make_engine
from tests.engine_programs import EngineProgram
from tests.laws.engine_machine import EngineMachine, engine_examples

# Assumes that requests stop early, so that decoding sometimes runs out of room.
DARING = NewTokenRatio(init=1.0, min=0.0, decay_steps=1)

SQUEEZES: dict[str, dict[str, Any]] = {
    "state slots bind": {"mamba_slots": 12, "kv_tokens": 400},
    "hardly any state slots": {"mamba_slots": 5, "kv_tokens": 400},
    "kv tokens bind": {
        "mamba_slots": 40, "kv_tokens": 130, "max_running_requests": 14, "new_token_ratio": DARING,
    },
    "both bind, long chunks": {
        "mamba_slots": 18, "kv_tokens": 150, "max_running_requests": 14, "new_token_ratio": DARING,
        "chunked_prefill_size": 48,
    },
    "short chunks, longest prefix first": {
        "mamba_slots": 12, "kv_tokens": 220, "chunked_prefill_size": 7, "schedule_policy": "lpm",
    },
    "whole prompts": {"mamba_slots": 16, "kv_tokens": 200, "chunked_prefill_size": None},
    "many rows": {
        "mamba_slots": 28, "kv_tokens": 240, "max_running_requests": 12, "new_token_ratio": DARING,
    },
    "short prompts, long outputs": {
        "mamba_slots": 40, "kv_tokens": 150, "max_running_requests": 14, "new_token_ratio": DARING,
    },
    "long prompts that branch": {"mamba_slots": 16, "kv_tokens": 500},
}  # fmt: skip
# Longest output and longest prompt, where they differ from the defaults.
LONGEST_OUTPUT = {
    "kv tokens bind": 40, "both bind, long chunks": 40, "short prompts, long outputs": 60,
}  # fmt: skip
LONGEST_PROMPT = {
    "long prompts that branch": 110, "short prompts, long outputs": 12, "kv tokens bind": 40,
}  # fmt: skip


def make_program(name: str, seed: int) -> EngineProgram:
    return EngineProgram(
        make_engine(**SQUEEZES[name]),
        random.Random(seed),
        longest_output=LONGEST_OUTPUT.get(name, 10),
        longest_prompt=LONGEST_PROMPT.get(name, 60),
    )


WANTED = {
    "cow_copies": 75,
    "node_splits": 75,
    "tombstones": 250,
    "evict_cascade": 250,
    "retracts": 8,
}
# Every squeeze once; then, while events are still too few, the one that causes most retracts.
PROGRAMS = [*SQUEEZES] + ["short prompts, long outputs"] * 8


def test_every_program_gives_the_tokens_of_the_engine_without_reuse_and_loses_nothing() -> None:
    seen: Counter[str] = Counter()
    for seed, name in enumerate(PROGRAMS):
        program = make_program(name, seed)
        try:
            program.run(160)
            program.compare_with_oracle()
            assert program.engine.flush_cache()
            assert_idle_and_clean(program.engine)
        except BaseException as error:
            error.add_note(f"seed {seed}, {name}")
            raise
        seen.update(program.engine.counters.as_dict())
        if seed >= len(SQUEEZES) - 1 and all(seen[event] >= WANTED[event] for event in WANTED):
            break
    for event, count in WANTED.items():
        assert seen[event] >= count, (event, seen)
    # Aborts between chunks are rare here; test_engine_abort_points.py covers all of them.
    for event in (
        "refusals",
        "prefill_chunks",
        "evict_internal_state",
        "abort_queued",
        "abort_decode",
        "disconnects",
        "finish_stop",
        "flushes",
    ):
        assert seen[event] > 0, (event, seen)


class HybridEngineMachine(EngineMachine):
    """Traffic chosen by Hypothesis, which shrinks a failure to the few actions that matter."""

    @initialize(name=st.sampled_from(sorted(SQUEEZES)), seed=st.integers(0, 2**16))
    def build(self, name: str, seed: int) -> None:
        self.program = make_program(name, seed)

    @rule(texts=st.lists(st.integers(0, 3), min_size=1, max_size=20), more=st.integers(1, 8))
    def submit_few_tokens(self, texts: list[int], more: int) -> None:
        """Submit a prompt over four tokens, so that prompts share prefixes of every length."""
        assert self.program is not None
        self.program.submit_prompt(texts, more)


TestEngineMachine = HybridEngineMachine.TestCase
TestEngineMachine.settings = engine_examples(0.8, steps=40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_long_programs_give_the_tokens_of_the_engine_without_reuse(seed: int) -> None:
    name = list(SQUEEZES)[seed % len(SQUEEZES)]
    program = make_program(name, seed)

    program.run(3000)

    program.compare_with_oracle()


def test_squeezes_are_valid_configurations() -> None:
    for changes in SQUEEZES.values():
        assert replace(NANO_ENGINE, **changes).max_request_len >= 52
