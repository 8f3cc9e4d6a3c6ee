"""Compute the memory a model and its pools need, and pool sizes that fit into free memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import torch

from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.presets import PRESETS
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError
from hybridbench.foundation.units import format_bytes, format_count, format_percent

# The rest is for activations, for Python, and for the memory growth that a run measures.
MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of one model in one dtype."""

    parameters: int
    weight_bytes: int
    state_bytes_per_slot: int
    """0 without recurrent layers."""
    kv_bytes_per_token: int
    swa_bytes_per_token: int
    """The part of ``kv_bytes_per_token`` for sliding layers."""
    sliding_window: int

    @classmethod
    def of(cls, config: ModelConfig, dtype: torch.dtype = torch.float32) -> ModelSizes:
        parameters = sum(map(math.prod, config.tensors().values()))
        return cls(
            parameters=parameters,
            weight_bytes=parameters * dtype.itemsize,
            state_bytes_per_slot=config.state_bytes_per_slot(dtype),
            kv_bytes_per_token=config.kv_bytes_per_token(dtype),
            swa_bytes_per_token=config.kv_bytes_per_token(dtype)
            * len(config.swa_layer_ids)
            // max(1, len(config.kv_layer_ids)),
            sliding_window=config.sliding_window,
        )

    def room_beside_weights(self, free_bytes: int) -> int:
        """Return the bytes available to the pools."""
        return max(0, int(free_bytes * MEMORY_SHARE) - self.weight_bytes)


def described(config: ModelConfig, dtype: torch.dtype) -> str:
    """Describe a model: its family, size, kinds of layers, and bytes of states and KV."""
    sizes = ModelSizes.of(config, dtype)
    parts = [f"{config.model_type}, {format_count(sizes.parameters)} parameters"]
    for kind, count in Counter(config.layer_types).items():
        seen = f" ({config.sliding_window} tokens)" if kind == "sliding_attention" else ""
        parts.append(f"{count} {kind}{seen}")
    memory = (
        (sizes.state_bytes_per_slot, "a state slot"),
        (sizes.kv_bytes_per_token, "of KV a token"),
    )
    parts += [f"{format_bytes(size)} {what}" for size, what in memory if size]
    return ", ".join(parts)


def pools_that_fit(config: EngineConfig, sizes: ModelSizes, free_bytes: int) -> EngineConfig | None:
    """Return ``config`` with both pools reduced by the same ratio if they do not fit.

    The KV pools keep room for at least one request of full length.  None if even that does not fit
    together with the states of one request with a prefix hit.
    """
    state, kv = float(sizes.state_bytes_per_slot), float(sizes.kv_bytes_per_token)
    page = config.page_size
    request_tokens = page * (1 + math.ceil(config.max_context_len / page))
    sliding = sizes.swa_bytes_per_token > 0
    if sliding and config.keeps_windows_only(sliding=True):
        # Sliding layers have their own pool, which holds this share of the tokens.
        share = config.swa_full_tokens_ratio
        kv -= (1.0 - share) * sizes.swa_bytes_per_token
        least_swa = config.least_swa_tokens(sizes.sliding_window)
        request_tokens = max(request_tokens, page * math.ceil((least_swa + page) / share / page))
    if config.device == "cpu":
        # The host tier's pools and the storage behind it use the same memory.
        kv *= 1.0 + config.hicache.ratio + config.hicache_storage.ratio
        state *= 1.0 + config.hicache.ratio
    # The dump slot and the draft buffers for a verify step's states.
    apart = 1 + config.longest_chain * config.max_running_requests
    room = sizes.room_beside_weights(free_bytes) - apart * state
    wanted = config.mamba_slots * state + config.kv_tokens * kv
    if wanted <= room:
        return config
    least_tokens = min(config.kv_tokens, request_tokens)
    tokens = max(least_tokens, int(config.kv_tokens * room / wanted) // page * page)
    slots = config.mamba_slots
    if state:
        slots = min(slots, int((room - tokens * kv) // state))
    if tokens * kv + slots * state > room or slots < config.least_mamba_slots:
        return None
    return replace(config, mamba_slots=slots, kv_tokens=tokens)


def fit_to_memory(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, free_bytes: int
) -> EngineConfig:
    """Return ``config`` with pools that fit beside the model's weights.

    Raises:
        ConfigError: even the smallest pools do not fit; names a preset that would, of the same
            family if possible, and suggests bfloat16 if that would make the model fit.
    """
    sizes = ModelSizes.of(model, dtype)
    fitting = pools_that_fit(config, sizes, free_bytes)
    if fitting is not None:
        return fitting
    others = {name: ModelSizes.of(preset, dtype) for name, preset in PRESETS.items()}
    smaller = [name for name, other in others.items() if pools_that_fit(config, other, free_bytes)]
    alike = [name for name in smaller if _family(PRESETS[name]) == _family(model)]
    largest = max(alike or smaller, key=lambda name: others[name].parameters, default=None)
    state = sizes.state_bytes_per_slot
    halved = ModelSizes.of(model, torch.bfloat16)
    or_halved = pools_that_fit(config, halved, free_bytes)
    raise ConfigError(
        f"engine: {config.model} does not fit: its weights take {format_bytes(sizes.weight_bytes)}"
        f"{f' and each state slot {format_bytes(state)}' if state else ''}, but "
        f"{format_bytes(free_bytes)} are free, of which {format_percent(MEMORY_SHARE)} may be "
        f"used; {largest or 'no preset'} would fit"
        f"{', and so would this model with --dtype bfloat16' if or_halved else ''}."
    )


def _family(model: ModelConfig) -> str:
    """Return a model's family, without its ``_moe`` or ``_text``: qwen3_5 for qwen3_5_moe_text."""
    return model.model_type.removesuffix("_text").removesuffix("_moe")
