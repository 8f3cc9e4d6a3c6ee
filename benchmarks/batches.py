"""Batches of requests with one shared prefix, for the benchmarks of kernels and of decode steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hybridbench.engine.assembly import device_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig


@dataclass(frozen=True)
class Traffic:
    """Batches of requests with one shared prefix."""

    requests: int
    cached_tokens: int
    new_tokens: int
    output_tokens: int
    prefill_tokens: int
    """Maximum per step."""
    dtype: str
    models: tuple[str, ...]
    """Presets that together use every operation."""


TRAFFIC: Final[Mapping[str, Traffic]] = {
    # The same traffic as `python -m benchmarks engine`.
    "cpu": Traffic(32, 64, 48, 16, 512, "float32", ("qwen3-next-tiny", "nemotron-h-tiny")),
    # States and KV have realistic sizes.
    "cuda": Traffic(64, 512, 512, 16, 8192, "bfloat16", ("qwen3-next-1b", "nemotron-h-1b")),
}
"""The traffic for each type of device."""


def default_models(device: str) -> tuple[str, ...]:
    """Return presets that together use every operation, of sizes suited to the device.

    Raises:
        ConfigError: there is no such device here.
    """
    return TRAFFIC[device_of(device).type].models


class Batches:
    """An engine, and the batches of requests to submit to it."""

    def __init__(
        self,
        model: str,
        device: str,
        traffic: Traffic,
        build: Callable[[EngineConfig], Engine] = Engine,
        **changes: Any,
    ) -> None:
        """``changes`` override engine settings; ``build`` makes the engine from the result."""
        self.traffic = traffic
        length = traffic.cached_tokens + traffic.new_tokens + traffic.output_tokens
        self.engine = build(
            EngineConfig(
                model=model,
                device=device,
                dtype=traffic.dtype,
                max_running_requests=traffic.requests,
                max_context_len=2 * length,
                kv_tokens=2 * traffic.requests * length,
                mamba_slots=4 * traffic.requests,
                chunked_prefill_size=traffic.prefill_tokens,
                max_prefill_tokens=traffic.prefill_tokens,
                **changes,
            )
        )
        self._random = np.random.default_rng(0)
        self._prefix = self._tokens(traffic.cached_tokens)
        # A prefix can be reused only if the tree has a state at its end.
        self.engine.generate([self._prefix], SamplingParams(max_new_tokens=1, ignore_eos=True))
        self._served = 0

    def submit(self) -> None:
        """Submit a batch of requests that share only the prefix with earlier ones."""
        traffic = self.traffic
        params = SamplingParams(max_new_tokens=traffic.output_tokens, ignore_eos=True)
        for number in range(self._served, self._served + traffic.requests):
            prompt = [*self._prefix, *self._tokens(traffic.new_tokens)]
            self.engine.submit(f"bench-{number}", prompt, params)
        self._served += traffic.requests

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = self._random.integers(
            0, self.engine.model_config.vocab_size, count
        ).tolist()
        return tokens
