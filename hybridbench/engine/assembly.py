"""From a configuration to the parts of an engine: model, pools, allocators, prefix cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridbench.engine.cache.base import BasePrefixCache, CacheInitParams
from hybridbench.engine.cache.chunk_cache import ChunkCache
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.config import EngineConfig
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.memory.pages import TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.engine.model_runner import LanguageModel, ModelRunner
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.registry import build_model, load_model, resolve_model
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.errors import ConfigError

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class EngineParts:
    """What the facade puts to work."""

    model_config: ModelConfig
    pools: Pools
    runner: ModelRunner
    note: str  # one sentence about the choice of model that a run should print, or nothing


def assemble(config: EngineConfig, model: LanguageModel | None) -> EngineParts:
    """Build everything ``config`` asks for; ``model`` stands in for the one it names.

    Raises:
        ConfigError: the device is missing, or the model's name, files or sizes cannot be.
    """
    dtype = _dtype_of(config.dtype)
    device = _device_of(config.device)
    note = ""
    if model is None:
        model, note = _model_of(config, dtype, device)
    _check_against_model(config, model.config)
    mamba_pool = MambaPool(
        config.mamba_slots,
        model.config.cache_params,
        model.config.linear_layer_ids,
        device,
        dtype,
    )
    kv_pool = HybridLinearKVPool(
        size=config.kv_tokens,
        dtype=dtype,
        page_size=config.page_size,
        head_num=model.config.num_key_value_heads,
        head_dim=model.config.head_dim,
        full_attention_layer_ids=model.config.full_attention_layer_ids,
        device=device,
        mamba_pool=mamba_pool,
    )
    # Indices are host numbers wherever the tensors live; the model moves them once per step.
    allocator = TokenToKVPoolAllocator(config.kv_tokens, dtype, "cpu", kv_pool)
    req_to_token_pool = HybridReqToTokenPool(
        size=config.max_running_requests,
        mamba_size=config.mamba_slots,
        max_context_len=config.max_context_len,
        device="cpu",
        mamba_pool=mamba_pool,
    )
    params = CacheInitParams(
        req_to_token_pool=req_to_token_pool,
        token_to_kv_pool_allocator=allocator,
        page_size=config.page_size,
        disable=config.cache == "chunk",
    )
    tree_cache: BasePrefixCache
    tree_cache = ChunkCache(params) if config.cache == "chunk" else MambaRadixCache(params)
    return EngineParts(
        model_config=model.config,
        pools=Pools(req_to_token_pool, allocator, tree_cache),
        runner=ModelRunner(model, kv_pool),
        note=note,
    )


def _model_of(
    config: EngineConfig, dtype: torch.dtype, device: torch.device
) -> tuple[LanguageModel, str]:
    resolved = resolve_model(config.model, device)
    if resolved.path is None:
        return build_model(resolved.config, dtype, device, config.seed), resolved.note
    return load_model(resolved.path, dtype, device).model, resolved.note


def _check_against_model(config: EngineConfig, model_config: ModelConfig) -> None:
    if config.page_size != 1:
        raise ConfigError(
            f"engine: page_size is {config.page_size}; a hybrid model's cache works with page "
            "size 1."
        )
    if config.max_context_len > model_config.max_position_embeddings:
        raise ConfigError(
            f"engine: max_context_len is {config.max_context_len}; the model knows "
            f"{model_config.max_position_embeddings} positions."
        )


def _dtype_of(name: str) -> torch.dtype:
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise ConfigError(f"engine: dtype is {name!r}; it must be one of {', '.join(_DTYPES)}.")
    return dtype


def _device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"engine: device is {name!r}; write cpu or cuda.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"engine: device is {name!r}, but this machine has no CUDA; use cpu.")
    return device
