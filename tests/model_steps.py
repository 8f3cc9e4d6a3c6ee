"""Run a model without a scheduler: pools, shuffled slots, hand-made batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hybridbench.engine.forward_batch import ForwardBatch, ForwardMode
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import MambaPool, MambaState
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig
from hybridbench.engine.models.registry import Model
from hybridbench.engine.models.rope import Rope

NANO_MODEL = Qwen3NextConfig(
    vocab_size=48,
    hidden_size=16,
    layer_types=("linear_attention", "full_attention", "linear_attention"),
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_head_dim=8,
    linear_value_head_dim=6,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    shared_expert_intermediate_size=12,
    rope=Rope(rope_theta=10_000_000.0, partial_rotary_factor=0.5),
)


def make_pools(
    config: ModelConfig,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    kv_tokens: int = 1024,
    mamba_slots: int = 16,
) -> HybridLinearKVPool:
    """Make a KV pool and a state pool for a model with this configuration."""
    states = None
    if config.linear_layer_ids:
        states = MambaPool(mamba_slots, config.cache_params, config.linear_layer_ids, device, dtype)
    return HybridLinearKVPool(
        kv_tokens,
        dtype,
        1,
        config.num_key_value_heads,
        config.head_dim,
        config.kv_layer_ids,
        device,
        states,
    )


@dataclass
class Running:
    """One request: its state slot, and the KV slots of the tokens computed so far."""

    slot: int
    kv_slots: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.kv_slots)


class Stepper:
    """A model with pools whose unused slots are NaN, so that reading one is detected."""

    def __init__(self, model: Model, *, seed: int = 0, poison: bool = True) -> None:
        self.model = model
        self.kv_pool = make_pools(model.config, model.dtype, model.device)
        rng = np.random.default_rng(seed)
        self._free_kv: list[int] = (rng.permutation(self.kv_pool.size) + 1).tolist()
        slots = 16
        if self.kv_pool.mamba_pool is not None:
            self.states = self.kv_pool.mamba_pool
            slots = self.states.size
        self._free_slots: list[int] = (rng.permutation(slots) + 1).tolist()
        if poison:
            for tensor in self.all_tensors():
                tensor.fill_(float("nan"))

    def all_tensors(self) -> list[Tensor]:
        """Every tensor of the pools."""
        kv = self.kv_pool.full_kv_pool
        tensors = [*kv.k_buffer, *kv.v_buffer]
        if self.kv_pool.mamba_pool is not None:
            tensors += [*self.states.mamba_cache.conv, self.states.mamba_cache.temporal]
        return tensors

    def start(self) -> Running:
        """Start a request without tokens and with a cleared state slot."""
        slot = self._free_slots.pop()
        if self.kv_pool.mamba_pool is not None:
            self.states.clear_slots(slot)
        return Running(slot)

    def fork(self, parent: Running) -> Running:
        """Start a request that shares ``parent``'s KV and has a copy of its state."""
        slot = self._free_slots.pop()
        if self.kv_pool.mamba_pool is not None:
            self.states.copy_from(parent.slot, slot)
        return Running(slot, list(parent.kv_slots))

    def extend(self, requests: Sequence[Running], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Prefill ``tokens`` of each request in one batch; return logits [B, vocab]."""
        return self.model.forward(self.batch("extend", requests, tokens), self.kv_pool)

    def decode(self, requests: Sequence[Running], tokens: Sequence[int]) -> Tensor:
        """Decode one more token for each request; return logits [B, vocab]."""
        batch = self.batch("decode", requests, [[token] for token in tokens])
        return self.model.forward(batch, self.kv_pool)

    def batch(
        self, mode: ForwardMode, requests: Sequence[Running], tokens: Sequence[Sequence[int]]
    ) -> ForwardBatch:
        """Take KV slots for the new tokens and return the step's batch."""
        prefix_lens = [request.length for request in requests]
        for request, new in zip(requests, tokens, strict=True):
            request.kv_slots += [self._free_kv.pop() for _ in new]
        return lay_out(
            mode,
            tokens,
            prefix_lens,
            [request.kv_slots for request in requests],
            [request.slot for request in requests],
        )

    def layer_state(self, layer_id: int, request: Running) -> tuple[Tensor, Tensor]:
        """Return conv window [D, K-1] and recurrent state [HV, K, V] of one layer."""
        views: MambaState = self.states.mamba2_layer_cache(layer_id)
        return views.conv[0][request.slot], views.temporal[request.slot]


def lay_out(
    mode: ForwardMode,
    tokens: Sequence[Sequence[int]],
    prefix_lens: Sequence[int],
    kv_slots: Sequence[Sequence[int]],
    mamba_slots: Sequence[int],
) -> ForwardBatch:
    """Make a forward batch from plain lists; ``kv_slots`` cover prefix and new tokens."""
    seq_lens = [p + len(new) for p, new in zip(prefix_lens, tokens, strict=True)]
    spans = list(zip(prefix_lens, seq_lens, strict=True))
    return ForwardBatch(
        mode=mode,
        input_ids=_flat(tokens),
        positions=_flat([range(begin, end) for begin, end in spans]),
        extend_lens=[len(new) for new in tokens],
        prefix_lens=list(prefix_lens),
        seq_lens=seq_lens,
        out_cache_loc=_flat([s[b:e] for s, (b, e) in zip(kv_slots, spans, strict=True)]),
        kv_indices=_flat(kv_slots),
        mamba_indices=np.array(mamba_slots, dtype=np.int64),
    )


def _flat(parts: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.array(part, dtype=np.int64) for part in parts])
