"""Compare the whole engine with transformers ``generate``: same weights and prompts, in one run.

Transformers has no prefix cache between calls, so it computes all 112 prompt tokens; the engine
reuses 64 of them from its tree.  The ratio includes this advantage, because users get it as well.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from hybridbench.engine.engine import Engine
from hybridbench.engine.models.export import write_checkpoint
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.weights import RandomWeights
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import UsageError

MODEL = "qwen3-next-tiny"
REQUESTS = 32
CACHED_TOKENS = 64
NEW_TOKENS = 48
OUTPUT_TOKENS = 16


@dataclass(frozen=True)
class EngineBench:
    """Seconds for 32 requests, round by round."""

    engine_s: tuple[float, ...]
    transformers_s: tuple[float, ...]
    same_tokens: float  # share of output tokens that agree (float32; ties may break differently)

    @property
    def ratios(self) -> list[float]:
        """Transformers' time divided by ours, pair by pair; above 1, the engine is faster."""
        return [
            theirs / ours for ours, theirs in zip(self.engine_s, self.transformers_s, strict=True)
        ]

    @property
    def ratio(self) -> float:
        """Median of the paired ratios."""
        return statistics.median(self.ratios)

    @property
    def requests_per_s(self) -> float:
        """The engine's requests per second in the median round."""
        return REQUESTS / statistics.median(self.engine_s)


def run(rounds: int = 9) -> EngineBench:
    """Measure ``rounds`` pairs in alternating order, after one warm-up pair.

    Raises:
        UsageError: transformers is not installed.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = PRESETS[MODEL]
        weights = RandomWeights(config, seed=0, device=torch.device("cpu"))
        write_checkpoint(config, weights, Path(folder))
        theirs = _transformers(folder)
        ours = _engine(folder)
    prompts = _prompts(rounds + 1)
    outputs = _agreement(ours(prompts[0]), theirs(prompts[0]))
    engine_s, transformers_s = [], []
    for index, batch in enumerate(prompts[1:]):
        if index % 2 == 0:
            engine_s.append(_timed(ours, batch))
            transformers_s.append(_timed(theirs, batch))
        else:
            transformers_s.append(_timed(theirs, batch))
            engine_s.append(_timed(ours, batch))
    return EngineBench(tuple(engine_s), tuple(transformers_s), outputs)


def _prompts(batches: int) -> list[list[list[int]]]:
    """Return batches of 32 prompts that share one prefix and nothing else."""
    rng = np.random.default_rng(0)
    vocab_size = PRESETS[MODEL].vocab_size
    shared = rng.integers(0, vocab_size, CACHED_TOKENS).tolist()
    return [
        [shared + rng.integers(0, vocab_size, NEW_TOKENS).tolist() for _ in range(REQUESTS)]
        for _ in range(batches)
    ]


def _engine(checkpoint: str) -> Callable[[list[list[int]]], list[list[int]]]:
    engine = Engine(
        EngineConfig(
            model=checkpoint,
            max_running_requests=REQUESTS,
            max_context_len=256,
            kv_tokens=16384,
            mamba_slots=256,
            # Fixed, so that figures stay comparable if the default, chosen for soaks, changes.
            chunked_prefill_size=512,
        )
    )
    params = SamplingParams(max_new_tokens=OUTPUT_TOKENS, ignore_eos=True)
    # A prefix can be reused only if the tree has a state at its end.
    prefix = _prompts(1)[0][0][:CACHED_TOKENS]
    engine.generate([prefix], SamplingParams(max_new_tokens=1, ignore_eos=True))
    return lambda prompts: engine.generate(prompts, params)


def _transformers(checkpoint: str) -> Callable[[list[list[int]]], list[list[int]]]:
    try:
        from transformers import Qwen3NextForCausalLM
        from transformers.utils import logging
    except ImportError as error:
        raise UsageError(
            "It compares with transformers, which is not installed; "
            "`make install-test` or `pip install 'hybridbench[test]'` brings it."
        ) from error
    # It would warn that its CPU path is plain PyTorch, but that is intended here.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # ``Any``, because its annotations contradict its mix-ins; it is only called with tensors.
    model: Any = Qwen3NextForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model.eval()

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        input_ids = torch.tensor(prompts)
        with torch.inference_mode():
            sequences = model.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=OUTPUT_TOKENS,
                min_new_tokens=OUTPUT_TOKENS,
                do_sample=False,
                pad_token_id=0,
            )
        outputs: list[list[int]] = sequences[:, input_ids.shape[1] :].tolist()
        return outputs

    return generate


def _agreement(ours: list[list[int]], theirs: list[list[int]]) -> float:
    pairs = [(a, b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def _timed(
    generate: Callable[[list[list[int]]], list[list[int]]], prompts: list[list[int]]
) -> float:
    start_s = time.perf_counter()
    generate(prompts)
    return time.perf_counter() - start_s


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Measured pairs, in alternating order.")] = 9,
) -> None:
    """The engine compared with transformers' `generate`: same weights and prompts, one thread.

    32 requests of 64 cached + 48 new prompt tokens and 16 output tokens.
    """
    result = run(rounds)
    shape = f"{CACHED_TOKENS} cached + {NEW_TOKENS} new + {OUTPUT_TOKENS} out"
    typer.echo(f"{MODEL}, {REQUESTS} requests of {shape} tokens, 1 thread")
    typer.echo(f"engine          {_spread_ms(result.engine_s)}  {result.requests_per_s:.0f} req/s")
    typer.echo(f"transformers    {_spread_ms(result.transformers_s)}")
    ratios = sorted(result.ratios)
    typer.echo(f"ratio           {result.ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    typer.echo(f"same tokens     {100 * result.same_tokens:.1f}% (float32, greedy)")


def _spread_ms(times_s: tuple[float, ...]) -> str:
    ordered = sorted(1000 * t for t in times_s)
    middle = ordered[len(ordered) // 2]
    return f"{middle:7.1f} ms ({ordered[0]:.1f} to {ordered[-1]:.1f})"
