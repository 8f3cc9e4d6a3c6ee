"""With sessions, the engine gives the tokens of one long conversation without caching.

The law of test_engine_equals_no_reuse.py, with turns, closes, time-outs and aborts of sessions on
top: after every step every slot of every pool has exactly one holder, and once the sessions are
closed and the tree is flushed every slot is free.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import (
    each_page_size,
    make_attention_engine,
    make_engine,
    make_tracking_engine,
    make_window_engine,
)
from tests.session_programs import SessionProgram

# Assumes that requests stop early, so that decoding sometimes runs out of room.
DARING = NewTokenRatio(init=0.3, min=0.0, decay_steps=1)
HYBRID: dict[str, dict[str, Any]] = {
    "ample": {"kv_tokens": 600, "mamba_slots": 40},
    "rows bind": {"max_running_requests": 4, "kv_tokens": 600, "mamba_slots": 40},
    "state slots bind": {"mamba_slots": 9, "kv_tokens": 600},
    "kv tokens bind": {"kv_tokens": 130, "mamba_slots": 40, "new_token_ratio": DARING},
    "short chunks, longest prefix first": {
        "kv_tokens": 240, "mamba_slots": 14, "chunked_prefill_size": 7, "schedule_policy": "lpm",
    },
    "whole prompts": {"kv_tokens": 200, "mamba_slots": 16, "chunked_prefill_size": None},
    "no reuse beside the sessions": {"cache": "chunk", "kv_tokens": 200, "mamba_slots": 12},
}  # fmt: skip
PAGED: dict[str, dict[str, Any]] = {
    "ample": {"kv_tokens": 2048},
    "rows bind": {"max_running_requests": 4, "kv_tokens": 2048},
    "kv tokens bind": {"kv_tokens": 512, "new_token_ratio": DARING, "max_running_requests": 10},
    "no reuse beside the sessions": {"cache": "chunk", "kv_tokens": 640},
}
# State slots and KV pages of each kind.
TRACKED: dict[str, tuple[int, int]] = {"ample": (60, 100), "both bind": (20, 24)}
BUFFERS: dict[str, dict[str, Any]] = {
    "one": {},
    "two": {"enable_overlap_schedule": True},
    "lazy": {
        "enable_overlap_schedule": True, "mamba_scheduler_strategy": "extra_buffer_lazy",
    },
    "guesses": {"speculative_algorithm": "NGRAM"},
    "guesses, two": {"speculative_algorithm": "NGRAM", "enable_overlap_schedule": True},
    "guesses, lazy": {
        "speculative_algorithm": "NGRAM", "enable_overlap_schedule": True,
        "mamba_scheduler_strategy": "extra_buffer_lazy",
    },
}  # fmt: skip
MOST_SEEDS = 6
# `make test` runs one short program of each kind, `make test-deep` several longer ones.  Both run
# more while a required event has not occurred.
several_seeds = pytest.mark.parametrize(
    "seeds", [1, pytest.param(3, marks=pytest.mark.slow)], ids=["one seed", "three seeds"]
)
# Actions per program, by number of seeds.
ACTIONS = {1: 130, 3: 350}
# Overlapped steps, speculative decoding, or both.
AHEAD: dict[str, dict[str, Any]] = {
    "overlap": {"enable_overlap_schedule": True},
    "guesses": {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4},
    "both": {"enable_overlap_schedule": True, "speculative_algorithm": "NGRAM"},
}
TURNS_AHEAD = ("session_turns", "session_restores", "session_abort_decode", "session_retracts")
# Events that overlapped steps, speculative decoding, or both must produce.
LEFT_AHEAD = {
    "overlap": ["surplus_steps", "session_tail_frees"],
    "guesses": ["drafts_accepted"],
    "both": ["surplus_steps", "drafts_accepted", "session_tail_frees"],
}


def hybrid_program(name: str, seed: int, **changes: Any) -> SessionProgram:
    clock = FakeClock()
    engine = make_engine(clock=clock, **{**HYBRID[name], **changes})
    return SessionProgram(engine, random.Random(seed), clock)


def paged_program(page_size: int, name: str, seed: int, **more: Any) -> SessionProgram:
    clock = FakeClock()
    changes = {**PAGED[name], **more}
    if page_size == 1 and name == "kv tokens bind":
        changes["kv_tokens"] = 130
    engine = make_attention_engine(page_size, clock=clock, **changes)
    program = SessionProgram(engine, random.Random(seed), clock, longest_prompt=90)
    program._make_oracle = partial(make_attention_engine, 1)
    return program


def tracked_program(page_size: int, name: str, buffer: str, seed: int) -> SessionProgram:
    mamba_slots, pages = TRACKED[name]
    clock = FakeClock()
    engine = make_tracking_engine(
        page_size,
        clock=clock,
        mamba_slots=mamba_slots,
        kv_tokens=pages * max(8, page_size),
        new_token_ratio=DARING,
        **BUFFERS[buffer],
    )
    program = SessionProgram(engine, random.Random(seed), clock, longest_prompt=90)
    program._make_oracle = make_engine
    return program


def run_all(
    programs: Iterable[tuple[str, SessionProgram]],
    actions: int,
    *,
    least: int,
    events: Iterable[str],
    push_back_share: float = 0.0,
) -> Counter[str]:
    """Run the first ``least`` of ``programs``, and more until each of ``events`` has occurred.

    Returns the summed counters of all engines.
    """
    seen: Counter[str] = Counter()
    for number, (note, program) in enumerate(programs):
        if number >= least and all(seen[event] > 0 for event in events):
            break
        try:
            program.run(actions, push_back_share=push_back_share)
            program.compare_with_oracle()
        except BaseException as error:
            error.add_note(note)
            raise
        seen.update(program.engine.counters.as_dict())
    for event in events:
        assert seen[event] > 0, (event, seen)
    return seen


@several_seeds
@pytest.mark.parametrize("name", HYBRID)
def test_hybrid_sessions_give_the_tokens_of_one_long_conversation(name: str, seeds: int) -> None:
    programs = ((f"seed {seed}", hybrid_program(name, seed)) for seed in range(MOST_SEEDS))

    run_all(
        programs, ACTIONS[seeds], least=seeds, events=(
            "session_turns", "session_restores", "session_closes", "session_deferred_closes",
            "session_timeouts", "session_abort_decode", "session_rejected_turns",
        ),
    )  # fmt: skip


@several_seeds
@pytest.mark.parametrize("name", PAGED)
@each_page_size
def test_paged_sessions_give_the_tokens_of_one_long_conversation(
    page_size: int, name: str, seeds: int
) -> None:
    programs = (
        (f"seed {seed}", paged_program(page_size, name, seed)) for seed in range(MOST_SEEDS)
    )

    run_all(
        programs,
        ACTIONS[seeds],
        least=seeds,
        events=("session_turns", "session_restores", "session_deferred_closes"),
    )


@several_seeds
def test_pressure_reaches_every_way_out_of_a_turn(seeds: int) -> None:
    programs = (
        (f"{name}, seed {seed}", hybrid_program(name, seed))
        for seed in range(100, 105)
        for name in ("rows bind", "kv tokens bind", "short chunks, longest prefix first")
    )

    run_all(
        programs, ACTIONS[seeds], least=5 * seeds, push_back_share=0.02, events=(
            "session_retracts", "session_evictions", "session_abort_queued",
            "session_abort_prefill", "session_abort_decode", "refusals",
        ),
    )  # fmt: skip


@several_seeds
@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize(
    "name", ["rows bind", "kv tokens bind", "short chunks, longest prefix first"]
)
def test_hybrid_sessions_keep_to_it_when_steps_run_ahead(ahead: str, name: str, seeds: int) -> None:
    programs = (
        (f"seed {seed}", hybrid_program(name, seed, **AHEAD[ahead])) for seed in range(MOST_SEEDS)
    )

    seen = run_all(
        programs, ACTIONS[seeds], least=seeds, push_back_share=0.02,
        events=[*TURNS_AHEAD, *LEFT_AHEAD[ahead]],
    )  # fmt: skip

    # Without overlap, draft tokens leave no tail after their step.
    assert (seen["session_tail_frees"] > 0) == (ahead != "guesses"), seen


@several_seeds
@pytest.mark.parametrize("ahead", AHEAD)
@each_page_size
def test_paged_sessions_keep_to_it_when_steps_run_ahead(
    ahead: str, page_size: int, seeds: int
) -> None:
    programs = (
        (f"{name}, seed {seed}", paged_program(page_size, name, seed, **AHEAD[ahead]))
        for seed in range(MOST_SEEDS)
        for name in ("rows bind", "kv tokens bind")
    )
    # With larger pages a tail seldom begins a page, so that there is nothing to free.
    left = [e for e in LEFT_AHEAD[ahead] if page_size == 1 or e != "session_tail_frees"]

    seen = run_all(
        programs,
        ACTIONS[seeds],
        least=2 * seeds,
        push_back_share=0.02,
        events=[*TURNS_AHEAD, *left],
    )

    if page_size == 1:
        assert (seen["session_tail_frees"] > 0) == (ahead != "guesses"), seen


@several_seeds
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("page_size", [1, 16])
def test_sessions_keep_to_it_with_track_buffers(page_size: int, buffer: str, seeds: int) -> None:
    # One program, or all programs of both kinds; which kind comes first alternates.
    kinds = list(TRACKED)
    if (page_size > 1) == (list(BUFFERS).index(buffer) % 2 > 0):
        kinds.reverse()
    programs = (
        (f"{name}, seed {seed}", tracked_program(page_size, name, buffer, seed))
        for seed in range(MOST_SEEDS)
        for name in kinds
    )

    run_all(
        programs, ACTIONS[seeds], least=1 if seeds == 1 else 2 * seeds, events=(
            "session_turns", "session_restores", "session_closes", "cow_copies", "track_donations",
        ),
    )  # fmt: skip


@several_seeds
@pytest.mark.parametrize("page_size", [1, 16])
def test_sessions_keep_to_it_with_windows(page_size: int, seeds: int) -> None:
    def program(ahead: str, seed: int) -> SessionProgram:
        clock = FakeClock()
        engine = make_window_engine(
            page_size, clock=clock, kv_tokens=24 * max(8, page_size), new_token_ratio=DARING,
            swa_full_tokens_ratio=0.5, **AHEAD.get(ahead, {}),
        )  # fmt: skip
        program = SessionProgram(engine, random.Random(seed), clock, longest_prompt=90)
        program._make_oracle = make_window_engine
        return program

    run_all(
        (
            (f"{ahead}, seed {seed}", program(ahead, seed))
            for seed in range(MOST_SEEDS)
            for ahead in ("neither", "both")
        ),
        ACTIONS[seeds], least=2 * seeds, push_back_share=0.02,
        events=(*TURNS_AHEAD, "session_closes", "swa_releases", "swa_tombstones"),
    )  # fmt: skip


@several_seeds
@pytest.mark.parametrize("ahead", ["neither", *AHEAD])
@pytest.mark.parametrize("tracked", [False, True], ids=["own states", "track buffers"])
def test_turns_among_preempted_requests_keep_to_it(tracked: bool, ahead: str, seeds: int) -> None:
    """Turns have priorities and preempt others, but are retracted only when all requests are."""
    changes: dict[str, Any] = {
        "enable_priority_scheduling": True, "priority_scheduling_preemption_threshold": 3,
        "max_running_requests": 4, **AHEAD.get(ahead, {}),
    }  # fmt: skip

    def program(seed: int) -> SessionProgram:
        clock = FakeClock()
        make = make_tracking_engine if tracked else make_engine
        sizes: dict[str, Any] = {"kv_tokens": 240, "mamba_slots": 24 if tracked else 16}
        engine = make(clock=clock, **sizes, **changes)
        program = SessionProgram(engine, random.Random(seed), clock, longest_prompt=90)
        program.priorities = (None, 0, 5, 30)
        program._make_oracle = make_engine
        return program

    run_all(
        ((f"seed {seed}", program(seed)) for seed in range(MOST_SEEDS)),
        ACTIONS[seeds],
        least=seeds,
        push_back_share=0.02,
        events=("preemptions", "session_retracts", "session_restores", "session_closes"),
    )
