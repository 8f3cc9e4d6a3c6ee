"""Shared builders: nano models, engines sized for them, and runs until idle."""

from __future__ import annotations

import gc
import os
import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.cuda_graph_runner import GraphRecorder
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent
from hybridbench.engine.memory.storage_controller import StorageIO
from hybridbench.engine.memory.transfers import Transfers
from hybridbench.engine.model_runner import LanguageModel
from hybridbench.engine.models.gpt_oss import GptOssConfig
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig
from hybridbench.engine.models.registry import Model, build_model
from hybridbench.engine.models.rope import Rope
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.speculative.drafter import Drafter
from hybridbench.foundation.clock import Clock, FakeClock
from hybridbench.foundation.engine_config import EngineConfig
from tests.digest_model import DigestModel
from tests.host_transfers import ChosenStorageIO, ChosenTransfers

NANO_MODEL = Qwen3NextConfig(
    vocab_size=48,
    hidden_size=16,
    layer_types=("linear_attention", "full_attention"),
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    num_experts=2,
    num_experts_per_tok=1,
    moe_intermediate_size=8,
    shared_expert_intermediate_size=8,
    dense_layers=frozenset({1}),
    intermediate_size=16,
    rope=Rope(rope_theta=10_000_000.0, partial_rotary_factor=0.5),
)

# The same block without recurrent layers.
ATTENTION_MODEL = replace(NANO_MODEL, layer_types=("full_attention", "full_attention"))

# Layers alternate between a window of eight tokens and full attention, with experts and sinks.
WINDOW_MODEL = GptOssConfig(
    vocab_size=48,
    hidden_size=16,
    layer_types=("sliding_attention", "full_attention"),
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    sliding_window=8,
    num_local_experts=2,
    num_experts_per_tok=1,
    intermediate_size=8,
)

NANO_ENGINE = EngineConfig(
    model="nano",
    dtype="float64",
    max_running_requests=6,
    max_context_len=128,
    kv_tokens=256,
    mamba_slots=16,
    chunked_prefill_size=32,
    max_prefill_tokens=64,
    check_level="busy",
    check_fatal=True,
)


@cache
def nano_model() -> Model:
    """One nano model for all tests; it owns only weights, so engines can share it."""
    return build_model(NANO_MODEL, torch.float64, "cpu", seed=1)


@cache
def attention_model() -> Model:
    """One attention-only model for all tests."""
    return build_model(ATTENTION_MODEL, torch.float64, "cpu", seed=1)


@cache
def window_model() -> Model:
    """One model with sliding windows for all tests."""
    return build_model(WINDOW_MODEL, torch.float64, "cpu", seed=1)


def make_engine(
    *,
    clock: Clock | None = None,
    model: LanguageModel | None = None,
    drafter: Drafter | None = None,
    transfers: Transfers | None = None,
    storage_io: StorageIO | None = None,
    recorder: GraphRecorder | None = None,
    **changes: Any,
) -> Engine:
    """Build an engine sized for the nano model; ``changes`` replace fields of NANO_ENGINE.

    Without a ``model``, the next token is a digest of what the slots hold (DigestModel).
    By default the engine checks all invariants after every step and raises if one is broken.
    With a ``drafter`` it verifies that drafter's tokens.  Copies and storage I/O use no threads,
    because a busy machine can delay a thread by any number of steps.
    """
    if drafter is not None:
        changes["speculative_algorithm"] = "NGRAM"
    config = replace(NANO_ENGINE, **changes)
    model = model or DigestModel(NANO_MODEL)
    return Engine(
        config,
        clock=clock or FakeClock(),
        model=model,
        drafter=drafter,
        transfers=transfers or ChosenTransfers(),
        storage_io=storage_io or ChosenStorageIO(),
        recorder=recorder,
    )


def make_attention_engine(page_size: int = 1, **changes: Any) -> Engine:
    """Build an engine with an attention-only model, which allows any page size."""
    sizes = {"chunked_prefill_size": max(32, page_size), "kv_tokens": max(256, 8 * page_size)}
    model = DigestModel(ATTENTION_MODEL)
    return make_engine(model=model, page_size=page_size, **{**sizes, **changes})


def make_window_engine(page_size: int = 1, **changes: Any) -> Engine:
    """Build an engine with a sliding-window model, whose KV is in two pools."""
    sizes = {
        "chunked_prefill_size": max(32, page_size),
        "kv_tokens": max(256, 8 * page_size),
        "swa_full_tokens_ratio": 0.6,
    }
    model = DigestModel(WINDOW_MODEL)
    return make_engine(model=model, page_size=page_size, **{**sizes, **changes})


def make_tracking_engine(page_size: int = 1, **changes: Any) -> Engine:
    """Build a hybrid engine with track buffers, which allow any page size.

    By default states are saved at multiples of 16 tokens or of the page size.
    """
    grid = max(16, page_size)
    usual = {
        "chunked_prefill_size": max(32, page_size),
        "kv_tokens": max(256, 8 * page_size),
        "mamba_scheduler_strategy": "extra_buffer",
        "mamba_cache_chunk_size": grid,
        "mamba_track_interval": grid,
    }
    return make_engine(page_size=page_size, **{**usual, **changes})


def make_req(rid: str = "r", prompt: list[int] | None = None, max_new_tokens: int = 4) -> Req:
    """A waiting request that holds nothing."""
    return Req(rid, prompt or [1, 2, 3, 4], SamplingParams(max_new_tokens=max_new_tokens))


def tree_nodes() -> list[TreeNode]:
    """Return all live tree nodes, of any tree."""
    return [thing for thing in gc.get_objects() if type(thing) is TreeNode]


def run_to_idle(engine: Engine, most_steps: int = 2000) -> list[EngineEvent]:
    """Step until the engine has no work; return the events of all steps.

    Raises:
        AssertionError: the engine still has work after ``most_steps``.
    """
    events: list[EngineEvent] = []
    for _ in range(most_steps):
        if not engine.has_work:
            return events
        events += engine.step()
    raise AssertionError(f"the engine still has work after {most_steps} steps")


def chat(engine: Engine, conversations: int, seed: int = 3) -> None:
    """Run three-turn conversations over two system prompts, with more prefixes than state slots."""
    rng = random.Random(seed)
    system = [[rng.randrange(48) for _ in range(16)] for _ in range(2)]
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    histories = [list(system[i % 2]) for i in range(conversations)]
    for _ in range(3):
        for index, history in enumerate(histories):
            history += [rng.randrange(48) for _ in range(5)]
            engine.submit(f"{seed}-{len(history)}-{index}", history, params)
            run_to_idle(engine)


# No branch tells pages of 64 tokens from those of 16.
each_page_size = pytest.mark.parametrize(
    "page_size", [1, 16, pytest.param(64, marks=pytest.mark.slow)]
)


# `make test` audits the first step and then every eighth, `make test-deep` every step.  What is
# lost stays lost, and the end of every run is always audited.
AUDITED_STEPS = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 8


class Audits:
    """Says after which steps of a run ``assert_nothing_lost`` is worth its time."""

    def __init__(self) -> None:
        self._steps = 0

    def are_due(self) -> bool:
        """Count a step, and return whether to audit after it."""
        self._steps += 1
        return self._steps % AUDITED_STEPS == 1 % AUDITED_STEPS


def assert_nothing_lost(engine: Engine) -> None:
    """Check that holders and ledger agree on every slot, and that the totals balance."""
    assert engine.audit() == []
    for pool, stats in engine.pool_stats().items():
        assert stats.residual == 0, (pool, stats)
        assert stats.waiting_held == 0, (pool, stats)


def assert_idle_and_clean(engine: Engine) -> None:
    """Check that the engine is idle, no request holds a slot or a lock, and the tree is sound."""
    assert engine.is_idle
    assert engine.check_invariants(idle=True) == []
    assert_nothing_lost(engine)
    for pool, stats in engine.pool_stats().items():
        assert stats.in_flight == 0, (pool, stats)
        assert stats.protected == 0, (pool, stats)
