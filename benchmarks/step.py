"""Measure the bookkeeping of a decode step: batching, allocation, processing results, events.

A stub model answers at once, and the forward time that the engine measures is subtracted, so that
only bookkeeping remains.  Its cost must depend only on the batch, not on the size of the pools or
the number of requests served before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from torch import Tensor

from hybridbench.engine.engine import Engine
from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig
from hybridbench.engine.models.rope import Rope
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig, NewTokenRatio

BATCH = 32
PROMPT_TOKENS = 64
_OUTPUT_TOKENS = 384
_SETTLE_STEPS = 8  # until the batch decodes as a whole

# One layer of each kind and tiny heads, so that a pool of a million tokens takes tens of megabytes.
_MODEL = Qwen3NextConfig(
    vocab_size=64,
    hidden_size=16,
    layer_types=("linear_attention", "full_attention"),
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=4,
    linear_num_key_heads=1,
    linear_num_value_heads=1,
    linear_key_head_dim=4,
    linear_value_head_dim=4,
    num_experts=2,
    num_experts_per_tok=1,
    moe_intermediate_size=8,
    shared_expert_intermediate_size=8,
    dense_layers=frozenset({1}),
    intermediate_size=16,
    rope=Rope(rope_theta=10_000_000.0, partial_rotary_factor=0.5),
)


@dataclass(frozen=True)
class StepCostRow:
    """Bookkeeping of a decode step of 32 requests; medians over steps.

    Attributes:
        kv_tokens: size of the KV pool; there is one state slot per 128 of them.
        served: number of requests served before.
        us_per_token: microseconds of a step outside the model, divided by its 32 tokens.
        check_us_per_step: microseconds for checking every pool after a step.
    """

    kv_tokens: int
    served: int
    us_per_token: float
    check_us_per_step: float


class _InstantModel:
    """Answers token 1 to everything."""

    config = _MODEL

    def __init__(self) -> None:
        self._logits = torch.zeros(BATCH, _MODEL.vocab_size)
        self._logits[:, 1] = 1.0

    def forward(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Tensor:
        del kv_pool
        return self._logits[: batch.batch_size]


def bench_step(
    kv_tokens: Sequence[int] = (32_768, 131_072, 1_048_576),
    served: Sequence[int] = (0, 2_000),
    steps: int = 200,
) -> list[StepCostRow]:
    """Time ``steps`` decode steps of 32 requests, for each pool size and each number ``served``."""
    rows = []
    for size in kv_tokens:
        engine = _engine(size)
        for age in served:
            _serve(engine, age - engine.counters.finishes)
            before = engine.counters.finishes
            _fill(engine)
            bookkeeping_us, check_us = _timed(engine, steps)
            rows.append(StepCostRow(size, before, bookkeeping_us / BATCH, check_us))
            engine.abort_all()
            engine.step()
    return rows


def _engine(kv_tokens: int) -> Engine:
    config = EngineConfig(
        model="instant",
        max_running_requests=BATCH,
        max_context_len=PROMPT_TOKENS + _OUTPUT_TOKENS,
        kv_tokens=kv_tokens,
        mamba_slots=kv_tokens // 128,
        chunked_prefill_size=None,
        max_prefill_tokens=BATCH * PROMPT_TOKENS,
        new_token_ratio=NewTokenRatio(init=1.0, min=1.0),
        check_level="off",
    )
    return Engine(config, model=_InstantModel())


def _serve(engine: Engine, requests: int) -> None:
    """Serve requests that share prefixes, to fill the tree and shuffle the free lists."""
    params = SamplingParams(max_new_tokens=4)
    for first in range(0, max(0, requests), BATCH):
        for number in range(first, first + BATCH):
            engine.submit(f"served-{number}", _prompt(number), params)
        while engine.has_work:
            engine.step()


def _fill(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=_OUTPUT_TOKENS)
    for number in range(BATCH):
        engine.submit(f"timed-{number}", _prompt(10**6 + number), params)
    for _ in range(_SETTLE_STEPS):
        engine.step()
    assert len(engine.scheduler.running) == BATCH, "the batch did not fit"


def _prompt(number: int) -> list[int]:
    """A prompt whose first half is one of eight prefixes, and whose second half is unique."""
    half = PROMPT_TOKENS // 2
    shared = [(number % 8 + i) % 48 for i in range(half)]
    own = [number // 48**i % 48 for i in range(4)]
    return [*shared, *own, *range(half - len(own))]


def _timed(engine: Engine, steps: int) -> tuple[float, float]:
    """Median microseconds of a step outside the model, and of a check of every pool."""
    assert steps + _SETTLE_STEPS < _OUTPUT_TOKENS, "the requests would end"
    step_us, check_us = [], []
    for _ in range(steps):
        forward_s = engine.timings()["forward_s"]
        start = time.perf_counter()
        engine.step()
        wall_s = time.perf_counter() - start
        step_us.append(1e6 * (wall_s - (engine.timings()["forward_s"] - forward_s)))
        start = time.perf_counter()
        found = engine.check_invariants(idle=False)
        check_us.append(1e6 * (time.perf_counter() - start))
        assert not found, found
    return statistics.median(step_us), statistics.median(check_us)


def main(
    steps: Annotated[
        int, typer.Option(min=10, max=350, help="Timed decode steps of each row.")
    ] = 200,
) -> None:
    """A decode step without the model, in new and used pools of several sizes.

    The batch has 32 requests; used pools have served 2,000 requests before.  The last column is the
    time that checking every pool adds to a step.
    """
    typer.echo(f"decode steps of {BATCH} requests, medians over {steps} steps, one thread")
    typer.echo(f"{'KV tokens':>10} {'served before':>14} {'us/token':>9} {'us/check':>9}")
    for row in bench_step(steps=steps):
        typer.echo(
            f"{row.kv_tokens:10} {row.served:14} {row.us_per_token:9.2f} "
            f"{row.check_us_per_step:9.1f}"
        )
