"""Build the parts of an engine from its configuration: model, pools, allocators, prefix cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch

from hybridbench.engine.cache.base import BasePrefixCache, CacheInitParams
from hybridbench.engine.cache.chunk_cache import ChunkCache, SWAChunkCache
from hybridbench.engine.cache.hi_mamba_radix_cache import HiMambaRadixCache
from hybridbench.engine.cache.hi_unified_radix_cache import HiUnifiedRadixCache
from hybridbench.engine.cache.hiradix_cache import HiRadixCache
from hybridbench.engine.cache.host_part import HostStates
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.cache.host_window import HostWindows
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.storage_tier import StorageRules
from hybridbench.engine.cache.swa_radix_cache import SWARadixCache
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache
from hybridbench.engine.cuda_graph_runner import (
    CudaGraphRecorder,
    CudaGraphRunner,
    GraphRecorder,
)
from hybridbench.engine.kernels.dispatch import DEVICE_TYPES, REFERENCE, Kernels, kernels_for
from hybridbench.engine.memory.extra_pools import StatePool, WindowPool
from hybridbench.engine.memory.hicache_controller import HiCacheController
from hybridbench.engine.memory.hicache_storage import (
    HiCacheMemory,
    HiCacheStorage,
    UnreliableStorage,
)
from hybridbench.engine.memory.host_pool import MambaPoolHost, MHATokenToKVPoolHost, host_size
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool, ReqToTokenPool
from hybridbench.engine.memory.storage_controller import (
    StorageController,
    StorageIO,
    ThreadedStorageIO,
)
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from hybridbench.engine.memory.swa_pool import SWAKVPool
from hybridbench.engine.memory.transfers import SideStreamTransfers, ThreadedTransfers, Transfers
from hybridbench.engine.model_runner import LanguageModel, ModelRunner
from hybridbench.engine.models.causal_lm import CausalLM
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.registry import build_model, load_model, resolve_model
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.timings import EngineTimings
from hybridbench.engine.sessions.streaming_session import StreamingSession
from hybridbench.foundation.clock import Clock
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError

KVAllocator: TypeAlias = TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class EngineParts:
    """The parts that ``Engine`` connects."""

    model_config: ModelConfig
    pools: Pools
    runner: ModelRunner
    note: str  # a sentence about the choice of model, for a run to print, or ""


class _BesideSteps(NamedTuple):
    """The workers of the host tier, and the clock for its time-outs."""

    transfers: Transfers
    storage_io: StorageIO
    clock: Clock


def assemble(  # noqa: PLR0913 - replacements for the engine's own parts
    config: EngineConfig,
    model: LanguageModel | None,
    clock: Clock,
    kernels: Kernels | None = None,
    transfers: Transfers | None = None,
    storage_io: StorageIO | None = None,
    recorder: GraphRecorder | None = None,
) -> EngineParts:
    """Build everything that ``config`` names, or use ``model`` instead of the one it names.

    ``clock`` measures the engine's times.  The last four arguments replace default parts:
    ``kernels`` the device's kernels, ``transfers`` the thread that copies between device and host,
    ``storage_io`` the threads that access the storage, ``recorder`` the device's CUDA graphs.

    Raises:
        ConfigError: the device is missing, or the model's name, files or sizes are invalid.
    """
    dtype = dtype_of(config.dtype)
    device = device_of(config.device)
    kernels = kernels or kernels_for(device)
    note = ""
    if model is None:
        model, note = model_of(config, kernels)
    if config.cache == "auto":
        config = replace(config, cache="swa" if model.config.swa_layer_ids else "radix")
    check_against_model(config, model.config)
    mamba_pool = _mamba_pool(config, model.config, dtype, device, kernels)
    kv_pool = _kv_pool(config, model.config, mamba_pool, dtype, kernels)
    allocator = _kv_allocator(config, kv_pool)
    rows = _rows(config, mamba_pool)
    beside = _BesideSteps(
        transfers or _transfers(config, device),
        storage_io or ThreadedStorageIO(config.hicache_storage.page_time_s),
        clock,
    )
    tree_cache = _prefix_cache(config, model.config, rows, allocator, beside)
    return EngineParts(
        model_config=model.config,
        pools=Pools(
            rows,
            allocator,
            tree_cache,
            StreamingSession(tree_cache),
            model.config.sliding_window if tree_cache.supports_swa() else 0,
            EngineTimings(clock.monotonic_s, clock.thread_cpu_s),
        ),
        runner=ModelRunner(model, kv_pool, _graphs(config, model, kv_pool, recorder)),
        note=note,
    )


def model_of(config: EngineConfig, kernels: Kernels) -> tuple[LanguageModel, str]:
    """Build or load the model that ``config`` names; return it with the note that a run prints.

    Raises:
        ConfigError: the device is missing, or the model's name or files are invalid.
    """
    dtype, device = dtype_of(config.dtype), device_of(config.device)
    resolved = resolve_model(config.model, device)
    if resolved.path is None:
        model = build_model(resolved.config, dtype, device, config.seed, kernels)
        return model, resolved.note
    return load_model(resolved.path, dtype, device, kernels), resolved.note


def _mamba_pool(
    config: EngineConfig,
    model_config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels,
) -> MambaPool | None:
    """Build the state pool; None for a model without recurrent layers."""
    layer_ids = model_config.linear_layer_ids
    if not layer_ids:
        return None
    return MambaPool(
        config.mamba_slots,
        model_config.cache_params,
        layer_ids,
        device,
        dtype,
        spec_state_size=config.max_running_requests,
        speculative_num_draft_tokens=config.longest_chain or None,
        kernels=kernels,
    )


def _kv_pool(
    config: EngineConfig,
    model_config: ModelConfig,
    mamba_pool: MambaPool | None,
    dtype: torch.dtype,
    kernels: Kernels,
) -> HybridLinearKVPool:
    heads, head_dim = model_config.num_key_value_heads, model_config.head_dim
    layers, windows = model_config.kv_layer_ids, model_config.swa_layer_ids
    if config.keeps_windows_only(sliding=bool(windows)):
        return SWAKVPool(
            config.kv_tokens,
            config.swa_tokens,
            config.page_size,
            dtype,
            heads,
            head_dim,
            swa_attention_layer_ids=windows,
            full_attention_layer_ids=[layer for layer in layers if layer not in windows],
            device=config.device,
            kernels=kernels,
        )
    return HybridLinearKVPool(
        config.kv_tokens,
        dtype,
        config.page_size,
        heads,
        head_dim,
        full_attention_layer_ids=layers,
        device=config.device,
        mamba_pool=mamba_pool,
        kernels=kernels,
    )


def _kv_allocator(config: EngineConfig, kv_pool: HybridLinearKVPool) -> KVAllocator:
    # Indices stay on the host, whatever the device; the model copies them once per step.
    if isinstance(kv_pool, SWAKVPool):
        return SWATokenToKVPoolAllocator(
            config.kv_tokens,
            config.swa_tokens,
            config.page_size,
            kv_pool.dtype,
            "cpu",
            kv_pool,
            check_owners=config.check_owners,
        )
    if config.page_size == 1:
        return TokenToKVPoolAllocator(
            config.kv_tokens, kv_pool.dtype, "cpu", kv_pool, check_owners=config.check_owners
        )
    return PagedTokenToKVPoolAllocator(
        config.kv_tokens,
        config.page_size,
        kv_pool.dtype,
        "cpu",
        kv_pool,
        check_owners=config.check_owners,
    )


def _rows(config: EngineConfig, mamba_pool: MambaPool | None) -> ReqToTokenPool:
    rows, context_len = config.max_running_requests, config.max_context_len
    if mamba_pool is None:
        return ReqToTokenPool(rows, context_len, "cpu", check_owners=config.check_owners)
    return HybridReqToTokenPool(
        rows,
        mamba_pool.size,
        context_len,
        "cpu",
        mamba_pool,
        enable_mamba_extra_buffer=config.tracks_states,
        enable_mamba_extra_buffer_lazy=config.mamba_scheduler_strategy == "extra_buffer_lazy",
        enable_overlap_schedule=config.enable_overlap_schedule,
        check_owners=config.check_owners,
    )


def _transfers(config: EngineConfig, device: torch.device) -> Transfers:
    least_s = config.hicache.copy_time_s
    if device.type == "cuda":
        return SideStreamTransfers(device, least_s)
    return ThreadedTransfers(least_s)


def _prefix_cache(
    config: EngineConfig,
    model_config: ModelConfig,
    rows: ReqToTokenPool,
    allocator: KVAllocator,
    beside: _BesideSteps,
) -> BasePrefixCache:
    disable = config.cache in {"chunk", "swa_chunk"}
    params = CacheInitParams(
        rows,
        allocator,
        config.page_size,
        disable,
        eviction_policy=config.eviction_policy,
        state_refresh=config.state_refresh,
        enable_kv_cache_events=config.enable_kv_cache_events,
        enable_mamba_extra_buffer=config.tracks_states,
        mamba_cache_chunk_size=config.cache_chunk_size,
        sliding_window_size=model_config.sliding_window,
    )
    if config.hicache.ratio:
        return _hierarchical_cache(config, params, allocator, beside)
    if config.cache == "unified":
        return UnifiedRadixCache(params)
    if isinstance(allocator, SWATokenToKVPoolAllocator):
        return SWAChunkCache(params) if disable else SWARadixCache(params)
    if disable:
        return ChunkCache(params)
    return MambaRadixCache(params) if isinstance(rows, HybridReqToTokenPool) else RadixCache(params)


def _hierarchical_cache(
    config: EngineConfig, params: CacheInitParams, allocator: KVAllocator, beside: _BesideSteps
) -> HostTier:
    pool = allocator.get_kvcache()
    assert pool is not None
    ratio, write_policy = config.hicache.ratio, config.hicache.write_policy
    size = host_size(config.kv_tokens, ratio, config.page_size)
    host = MHATokenToKVPoolHost(pool, size, check_owners=config.check_owners)
    controller = HiCacheController(allocator, host, beside.transfers)
    rows = params.req_to_token_pool
    states = _host_states(config, rows) if isinstance(rows, HybridReqToTokenPool) else None
    if config.cache == "unified":
        windows = _host_windows(config, params, allocator)
        parts = [part for part in (windows, states) if part is not None]
        return HiUnifiedRadixCache(params, controller, parts, write_policy)
    if states is not None:
        return HiMambaRadixCache(params, controller, states, write_policy)
    return HiRadixCache(
        params,
        controller,
        write_policy,
        _storage_controller(config, host, beside.storage_io),
        _storage_rules(config, beside.clock),
    )


def _host_states(config: EngineConfig, rows: HybridReqToTokenPool) -> HostStates:
    slots = host_size(config.mamba_slots, config.hicache.ratio, 1)
    host = MambaPoolHost(rows.mamba_pool, slots, check_owners=config.check_owners)
    return HostStates(StatePool(rows.mamba_allocator, rows.mamba_pool, host))


def _host_windows(
    config: EngineConfig, params: CacheInitParams, allocator: KVAllocator
) -> HostWindows | None:
    pool = allocator.get_kvcache()
    if not (isinstance(allocator, SWATokenToKVPoolAllocator) and isinstance(pool, SWAKVPool)):
        return None
    size = host_size(config.swa_tokens, config.hicache.ratio, config.page_size)
    host = MHATokenToKVPoolHost(pool.swa_kv_pool, size, check_owners=config.check_owners)
    return HostWindows(WindowPool(allocator, host), params.sliding_window_size)


def _storage_controller(
    config: EngineConfig, host: MHATokenToKVPoolHost, storage_io: StorageIO
) -> StorageController | None:
    """Build the storage controller; None if the configuration has no storage."""
    settings, page_size = config.hicache_storage, config.page_size
    if not settings.ratio:
        return None
    pages = host_size(config.kv_tokens, settings.ratio, page_size) // page_size
    storage: HiCacheStorage = HiCacheMemory(host.rows, pages, page_size)
    if settings.error_rate:
        storage = UnreliableStorage(storage, settings.error_rate, config.seed)
    return StorageController(host, storage, page_size, storage_io, settings.prefetch_threshold)


def _storage_rules(config: EngineConfig, clock: Clock) -> StorageRules:
    settings = config.hicache_storage
    return StorageRules(settings.prefetch_policy, settings.prefetch_timeout_s, clock.monotonic_s)


def check_against_model(config: EngineConfig, model_config: ModelConfig) -> None:
    """Refuse settings that do not fit the model.

    Raises:
        ConfigError: describes the first such setting, in one sentence.
    """
    if model_config.linear_layer_ids:
        _check_states(config)
    if config.keeps_windows_only(sliding=bool(model_config.swa_layer_ids)):
        _check_windows(config, model_config)
    if config.eviction_policy != "lru" and not _orders_leaves(config, model_config):
        raise ConfigError(
            f"engine: eviction_policy is {config.eviction_policy}; set it to lru, or cache to "
            "unified, because a tree with states or sliding windows of its own evicts by lru only."
        )
    if config.hicache.ratio and config.cache not in {"radix", "unified"}:
        raise ConfigError(
            f"engine: hicache needs cache radix or unified, not {config.cache}; "
            "set cache to one of these, or hicache.ratio to 0."
        )
    if config.hicache_storage.ratio and config.cache != "radix":
        raise ConfigError(
            f"engine: hicache_storage needs cache radix, not {config.cache}; set cache to radix, "
            "or hicache_storage.ratio to 0."
        )
    if config.hicache_storage.ratio and model_config.linear_layer_ids:
        raise ConfigError(
            f"engine: hicache_storage.ratio is {config.hicache_storage.ratio}; set it to 0, "
            "because this model has recurrent layers, whose states the storage does not keep."
        )
    if config.max_context_len > model_config.max_position_embeddings:
        raise ConfigError(
            f"engine: max_context_len is {config.max_context_len}; set it to at most "
            f"{model_config.max_position_embeddings}, the positions that this model supports."
        )


def _graphs(
    config: EngineConfig,
    model: LanguageModel,
    kv_pool: HybridLinearKVPool,
    recorder: GraphRecorder | None,
) -> CudaGraphRunner | None:
    """Record the graphs for decode steps; None if they are disabled."""
    largest = min(config.cuda_graph_max_bs, config.max_running_requests)
    if not largest:
        return None
    device = device_of(config.device)
    if recorder is None:
        if device.type != "cuda":
            raise ConfigError(
                f"engine: cuda_graph_max_bs is {config.cuda_graph_max_bs}, but device is "
                f"'{device}', which does not support CUDA graphs; set it to 0."
            )
        if kernels_for(device) is REFERENCE:
            raise ConfigError(
                f"engine: cuda_graph_max_bs is {config.cuda_graph_max_bs}, but Triton is not "
                "installed, and the kernels without it cannot be recorded; set it to 0."
            )
        recorder = CudaGraphRecorder(device)
    assert isinstance(model, CausalLM), "the models of the registry can be recorded"
    return CudaGraphRunner(model, kv_pool, recorder, largest, config.max_context_len)


def _orders_leaves(config: EngineConfig, model_config: ModelConfig) -> bool:
    """Whether this engine's cache evicts leaves in the order of the eviction policy."""
    has_parts = bool(model_config.linear_layer_ids) or config.keeps_windows_only(
        sliding=bool(model_config.swa_layer_ids)
    )
    return config.cache == "unified" or not has_parts


def _check_states(config: EngineConfig) -> None:
    if config.page_size != 1 and config.mamba_scheduler_strategy == "no_buffer":
        raise ConfigError(
            f"engine: page_size is {config.page_size}; set it to 1 or mamba_scheduler_strategy to "
            "extra_buffer, because this model has recurrent layers, whose states are shared after "
            "any token and not only after pages."
        )
    least = config.least_mamba_slots
    if config.tracks_states and config.mamba_slots < least:
        raise ConfigError(
            f"engine: mamba_slots is {config.mamba_slots}; one request that hits needs {least} "
            f"with mamba_scheduler_strategy {config.mamba_scheduler_strategy}."
        )


def _check_windows(config: EngineConfig, model_config: ModelConfig) -> None:
    if not model_config.swa_layer_ids:
        raise ConfigError(
            f"engine: cache is {config.cache!r}, but this model has no sliding windows; "
            f'use "radix" or "chunk".'
        )
    least = config.least_swa_tokens(model_config.sliding_window)
    if config.swa_tokens < least:
        raise ConfigError(
            f"engine: swa_full_tokens_ratio {config.swa_full_tokens_ratio} leaves "
            f"{config.swa_tokens} tokens for the window pool (KV of sliding-window layers); one "
            f"request needs {least}."
        )


def dtype_of(name: str) -> torch.dtype:
    """The configured data type of weights, KV and activations."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise ConfigError(f"engine: dtype is {name!r}; it must be one of {', '.join(_DTYPES)}.")
    return dtype


def device_of(name: str) -> torch.device:
    """The configured device; a CUDA device becomes the current one."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in DEVICE_TYPES:
        raise ConfigError(f"engine: device is {name!r}; write {' or '.join(DEVICE_TYPES)}.")
    if device.type == "cuda":
        _use_cuda(device)
    return device


def _use_cuda(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise ConfigError(f"engine: device is '{device}', but this machine has no CUDA; use cpu.")
    if device.index is not None:
        if device.index >= torch.cuda.device_count():
            raise ConfigError(
                f"engine: device is '{device}', but this machine has "
                f"{torch.cuda.device_count()} CUDA devices, numbered from 0."
            )
        # Triton launches on the current device, not on that of the tensors.
        torch.cuda.set_device(device)
