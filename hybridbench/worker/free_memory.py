"""Size the pools as the profile requests, or smaller if the free memory does not suffice."""

from __future__ import annotations

import torch

from hybridbench.engine.assembly import device_of, dtype_of
from hybridbench.engine.models.registry import resolve_model
from hybridbench.engine.models.sizes import fit_to_memory
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.units import format_bytes
from hybridbench.sampling.headroom import memory_headroom


def fit_pools(config: EngineConfig) -> tuple[EngineConfig, str]:
    """Return the configuration to build, and a sentence if its pools are smaller than requested.

    Raises:
        ConfigError: the model does not exist, or does not fit even with the smallest pools.
    """
    free_bytes = _free_bytes(device_of(config.device))
    if free_bytes is None:
        return config, ""
    model = resolve_model(config.model, config.device).config
    fitting = fit_to_memory(config, model, dtype_of(config.dtype), free_bytes)
    if fitting == config:
        return config, ""
    return fitting, (
        f"mamba_slots is {fitting.mamba_slots} instead of {config.mamba_slots}, kv_tokens "
        f"{fitting.kv_tokens} instead of {config.kv_tokens}: {format_bytes(free_bytes)} are free"
    )


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    room = memory_headroom()
    return None if room is None else room.left_bytes
