"""Decoding with recorded graphs gives the tokens of an engine that records and reuses nothing.

Batches of up to four requests replay a recording and larger ones do not, so that both ways
alternate on the same slots.  The models are real, in float64.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch.nn import functional

from hybridbench.engine.models.step import DecodeInputs
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import HiCache, HiCacheStorage, NewTokenRatio
from tests.builders import (
    NANO_MODEL,
    assert_idle_and_clean,
    attention_model,
    make_engine,
    nano_model,
    window_model,
)
from tests.drafters import HalfRightDrafter
from tests.engine_programs import EngineProgram
from tests.graph_recorder import EagerRecorder
from tests.host_transfers import ChosenStorageIO, ChosenTransfers
from tests.session_programs import SessionProgram

GRAPHS: dict[str, Any] = {"cuda_graph_max_bs": 4, "max_running_requests": 6}
DARING = NewTokenRatio(init=0.3, min=0.0, decay_steps=1)
TRACKING: dict[str, Any] = {
    "mamba_scheduler_strategy": "extra_buffer",
    "mamba_cache_chunk_size": 16,
    "mamba_track_interval": 16,
    "mamba_slots": 26,
}
ENGINES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "hybrid": (nano_model, {"mamba_slots": 14, "kv_tokens": 190, "new_token_ratio": DARING}),
    "hybrid, unified tree, overlapped": (
        nano_model,
        {"cache": "unified", "mamba_slots": 20, "enable_overlap_schedule": True},
    ),
    "hybrid, track buffers in pages, overlapped": (
        nano_model,
        {**TRACKING, "page_size": 16, "kv_tokens": 384, "enable_overlap_schedule": True},
    ),
    "attention in pages": (attention_model, {"page_size": 16, "kv_tokens": 320}),
    "attention with storage": (
        attention_model,
        {
            "kv_tokens": 180,
            "hicache": HiCache(ratio=0.5),
            "hicache_storage": HiCacheStorage(ratio=6.0, prefetch_threshold=4),
        },
    ),
    "windows in pages, overlapped": (
        window_model,
        {
            "page_size": 4,
            "kv_tokens": 240,
            "swa_full_tokens_ratio": 0.7,
            "enable_overlap_schedule": True,
        },
    ),
    "hybrid with a host tier": (
        nano_model,
        {"mamba_slots": 14, "kv_tokens": 180, "hicache": HiCache(ratio=1.5)},
    ),
    "hybrid with drafts": (
        nano_model,
        {
            "mamba_slots": 20,
            "drafter": HalfRightDrafter(NANO_MODEL.vocab_size),
            "speculative_num_draft_tokens": 3,
        },
    ),
}

# Events that the engine of each name must produce.
EVENTS = {
    "attention with storage": ("storage_prefetched_tokens",),
    "hybrid with a host tier": ("host_load_backs",),
    "hybrid with drafts": ("drafts_accepted", "draft_tails"),
}


def make_program(name: str, seed: int, *, sessions: bool = False) -> EngineProgram:
    make_model, changes = ENGINES[name]
    model, clock = make_model(), FakeClock()
    # Copies and storage take a fixed number of polls, so that a program is deterministic.
    paced: dict[str, Any] = {"recorder": EagerRecorder(), "transfers": ChosenTransfers()}
    if "hicache_storage" in changes:
        paced["storage_io"] = ChosenStorageIO()
    engine = make_engine(clock=clock, model=model, **{**GRAPHS, **paced, **changes})
    assert engine.graphs_note == (
        "decode steps of up to 4 requests replay CUDA graphs, whose memory pool takes 3.00 KiB"
    )
    oracle = partial(make_engine, model=model)
    if sessions:
        program: EngineProgram = SessionProgram(engine, random.Random(seed), clock, 60)
        program._make_oracle = oracle
    else:
        program = EngineProgram(engine, random.Random(seed), longest_output=14, make_oracle=oracle)
    return program


def assert_same_tokens(program: EngineProgram, actions: int) -> None:
    program.run(actions)
    program.compare_with_oracle()
    assert program.engine.flush_cache()
    assert_idle_and_clean(program.engine)


@pytest.mark.parametrize("name", ENGINES)
def test_recorded_steps_give_the_tokens_of_the_engine_without_reuse(name: str) -> None:
    program = make_program(name, seed=7)

    # A prefetch from the storage is rare.
    assert_same_tokens(program, 250 if "storage" in name else 80)

    counters = program.engine.counters
    assert 0 < counters.graph_replays < counters.decode_steps
    assert all(getattr(counters, event) > 0 for event in EVENTS.get(name, ()))


def test_recorded_steps_of_sessions_do_as_well() -> None:
    program = make_program("hybrid", seed=11, sessions=True)

    assert_same_tokens(program, 100)

    assert program.engine.counters.session_restores > 0
    assert program.engine.counters.graph_replays > 0


def _pad_in_a_live_slot(self: DecodeInputs, size: int) -> DecodeInputs:
    padded = _healthy_padded(self, size)
    padded.slots[self.rows.shape[1] :] = self.slots[0]
    return padded


def _slots_one_place_late(self: DecodeInputs, size: int) -> DecodeInputs:
    padded = _healthy_padded(self, size)
    return DecodeInputs(padded.rows, functional.pad(padded.kv_indices, (1, 0))[:-1])


_healthy_padded = DecodeInputs.padded


@pytest.mark.parametrize("padded", [_pad_in_a_live_slot, _slots_one_place_late])
def test_the_law_sees_inputs_that_are_not_the_step_s(
    padded: Callable[[DecodeInputs, int], DecodeInputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecodeInputs, "padded", padded)

    with pytest.raises(AssertionError):
        assert_same_tokens(make_program("hybrid", seed=7), 140)
