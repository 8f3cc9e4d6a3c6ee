"""Sliding windows in two KV pools: freeing KV that has left a window changes no token.

The law of test_engine_equals_no_reuse.py for a model whose sliding-window layers lose the KV behind
their window, while requests run and in the tree before full KV is evicted.  The oracle keeps all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from hybridbench.engine.cache.swa_radix_cache import SWARadixCache
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.req import ReqKv
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.window import WindowRelease
from hybridbench.foundation.engine_config import CacheKind, NewTokenRatio, SpeculativeAlgorithm
from tests.builders import (
    NANO_ENGINE,
    WINDOW_MODEL,
    assert_idle_and_clean,
    make_engine,
    make_window_engine,
    run_to_idle,
    window_model,
)
from tests.drafters import HalfRightDrafter
from tests.engine_programs import EngineProgram, run_against_oracle
from tests.laws.engine_machine import EngineMachine, engine_examples

# Assumes that requests stop early, so that decoding sometimes runs out of room.
DARING = NewTokenRatio(init=1.0, min=0.0, decay_steps=1)
# Longest prompt, longest output and stretch; outputs are many windows long.
LENGTHS = {1: (48, 40, 1), 16: (120, 90, 2), 64: (250, 150, 4)}
SQUEEZES: dict[str, dict[str, Any]] = {
    "both pools bind": {"swa_full_tokens_ratio": 0.5},
    "the window pool binds": {"swa_full_tokens_ratio": 0.36, "chunks": 1},
    "the full pool binds": {"swa_full_tokens_ratio": 1.0, "new_token_ratio": DARING},
    "overlap": {"enable_overlap_schedule": True, "swa_full_tokens_ratio": 0.5},
    "drafts": {"drafter": HalfRightDrafter(48), "swa_full_tokens_ratio": 0.5},
    "unified tree": {
        "cache": "unified", "enable_overlap_schedule": True, "swa_full_tokens_ratio": 0.4,
    },
    "no reuse": {"cache": "swa_chunk", "swa_full_tokens_ratio": 0.5},
    "priorities": {"enable_priority_scheduling": True, "swa_full_tokens_ratio": 0.4},
}  # fmt: skip


def make_program(page_size: int, name: str, seed: int) -> EngineProgram:
    longest_prompt, longest_output, stretch = LENGTHS[page_size]
    changes = dict(SQUEEZES[name])
    sizes = {
        "max_context_len": 416,
        "max_prefill_tokens": 256,
        "max_running_requests": 10,
        "chunked_prefill_size": changes.pop("chunks", 2) * max(16, page_size),
        "kv_tokens": {1: 200, 16: 26 * 16, 64: 20 * 64}[page_size],
    }
    program = EngineProgram(
        make_window_engine(page_size, **sizes, **changes),
        random.Random(seed),
        longest_prompt=longest_prompt,
        longest_output=longest_output,
        stretch=stretch,
        make_oracle=partial(make_window_engine, max_context_len=416),
    )
    if name == "priorities":
        program.priorities = (0, 20)
    return program


WANTED = {
    "prefix_hits": 50, "node_splits": 20, "evict_leaf": 100, "evict_cascade": 20, "retracts": 5,
    "swa_tombstones": 100, "swa_releases": 300, "prefill_chunks": 20, "abort_decode": 5,
    "drafts_accepted": 20, "surplus_steps": 20, "preemptions": 1,
}  # fmt: skip


def assert_law(programs: Iterable[tuple[int, str]], actions: int) -> None:
    """Check the law on a program for each pair of page size and squeeze.

    ``WANTED`` is what 400 actions must bring about.
    """

    def flush(program: EngineProgram) -> None:
        assert program.engine.flush_cache()
        assert_idle_and_clean(program.engine)

    made = [
        (f"page size {page_size}, {name}", make_program(page_size, name, seed))
        for seed, (page_size, name) in enumerate(programs)
    ]
    seen = run_against_oracle(made, actions, flush)

    for event, count in WANTED.items():
        assert seen[event] >= count * actions // 400, (event, seen)
    assert seen["cow_copies"] == seen["tombstones"] == 0


def test_every_squeeze_gives_the_tokens_of_the_engine_that_keeps_all() -> None:
    assert_law(zip(cycle((1, 16)), SQUEEZES, strict=False), actions=130)


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_every_program_gives_the_tokens_of_the_engine_that_keeps_all(page_size: int) -> None:
    # Nodes with large pages are rarely split, so it takes more programs to reach ``WANTED``.
    names = {1: [*SQUEEZES], 16: [*SQUEEZES, "both pools bind"], 64: [*SQUEEZES] * 5}[page_size]

    assert_law(((page_size, name) for name in names), actions=400)


def smallest_engine(page_size: int, chunk: int, cache: CacheKind, seed: int) -> Engine:
    """Build an engine with the smallest window pool that a configuration allows."""
    sizes: dict[str, Any] = {"kv_tokens": 160, "chunked_prefill_size": chunk}
    algorithm: SpeculativeAlgorithm | None = "NGRAM" if seed % 2 else None
    config = replace(NANO_ENGINE, page_size=page_size, speculative_algorithm=algorithm, **sizes)
    pages = -(-config.least_swa_tokens(WINDOW_MODEL.sliding_window) // page_size)
    # Slightly more, because the pool is rounded down to whole pages.
    ratio = pages * page_size / config.kv_tokens + 1e-9
    drafter = None if algorithm is None else HalfRightDrafter(48)
    return make_window_engine(
        page_size, cache=cache, swa_full_tokens_ratio=ratio, drafter=drafter, **sizes
    )


@pytest.mark.parametrize("cache", ["swa", "unified"])
@pytest.mark.parametrize(("page_size", "chunk"), [(1, 1), (1, 8), (2, 8), (4, 16)])
def test_the_smallest_window_pool_serves_every_request_that_is_alone(
    cache: CacheKind, page_size: int, chunk: int
) -> None:
    for seed in range(2):
        rng, engine = random.Random(seed), smallest_engine(page_size, chunk, cache, seed)
        text = [rng.randrange(48) for _ in range(128)]
        for number in range(4):
            length = rng.choice([100, 112, 127, rng.randint(1, 127)])
            known = rng.choice([length, length - 1, rng.randint(0, length)])
            prompt = text[:known] + [rng.randrange(48) for _ in range(length - known)]
            params = SamplingParams(max_new_tokens=128 - length, ignore_eos=True)
            engine.submit(f"{number}", prompt, params)
            ends = [event for event in run_to_idle(engine) if event.ends_request]
            assert [event.kind for event in ends] == [EventKind.FINISHED], ends[0].reason
        assert engine.counters.swa_tombstones > 0
        assert_idle_and_clean(engine)


@pytest.mark.parametrize(
    ("cache", "tree"), [("auto", SWARadixCache), ("unified", UnifiedRadixCache)]
)
def test_gpt_oss_gives_the_same_tokens_in_float64(cache: CacheKind, tree: type) -> None:
    engine = make_engine(
        model=window_model(), kv_tokens=200, swa_full_tokens_ratio=0.5, chunked_prefill_size=32,
        cache=cache,
    )  # fmt: skip
    program = EngineProgram(
        engine, random.Random(1), longest_output=30,
        make_oracle=partial(make_engine, model=window_model()),
    )  # fmt: skip

    program.run(100)

    program.compare_with_oracle()
    assert type(engine.pools.tree_cache) is tree
    assert engine.pools.tree_cache.supports_swa()
    assert engine.counters.swa_releases > 30
    assert engine.counters.prefix_hits > 5


@pytest.mark.parametrize("cache", ["swa", "unified", "swa_chunk"])
def test_the_law_sees_a_window_that_is_released_a_token_too_early(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = WindowRelease._leave_behind

    def early(self: WindowRelease, kv: ReqKv) -> Any:
        kv.kv_committed_len += 2
        behind = healthy(self, kv)
        kv.kv_committed_len -= 2
        return behind

    program = make_program(1, "overlap", seed=3)
    program.engine = make_window_engine(cache=cache)
    monkeypatch.setattr(WindowRelease, "_leave_behind", early)
    program.run(150)

    with pytest.raises(AssertionError):
        program.compare_with_oracle()


class WindowEngineMachine(EngineMachine):
    """Traffic chosen by Hypothesis, which shrinks a failure to the few actions that matter."""

    @initialize(squeeze=st.sampled_from(sorted(SQUEEZES)), seed=st.integers(0, 2**16))
    def build(self, squeeze: str, seed: int) -> None:
        self.program = make_program(seed % 2 * 15 + 1, squeeze, seed)


TestWindowEngineMachine = WindowEngineMachine.TestCase
TestWindowEngineMachine.settings = engine_examples(0.2, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3000, 3032))
def test_long_programs_give_the_tokens_of_the_engine_that_keeps_all(seed: int) -> None:
    name = list(SQUEEZES)[seed % len(SQUEEZES)]
    program = make_program((1, 16, 64)[seed % 3], name, seed)

    program.run(2000)

    program.compare_with_oracle()
