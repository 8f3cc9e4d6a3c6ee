"""Build vLLM's scheduler from a configuration, with the sizes of a model but no model."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch

from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.released.adapter import VOCAB_SIZE, kept_beside_kv, refuse, sliding_window

# Releases with the one interface that this adapter knows.
RELEASES: Final = (
    "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0",
    "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0",
    "0.33.0",
)  # fmt: skip
# vLLM's smallest block.
_BLOCK_SIZE: Final = 16
_UTILS: Final = "vllm.v1.core.kv_cache_utils"


def build_scheduler(config: EngineConfig) -> tuple[Any, Callable[..., Any]]:
    """Build the release's ``Scheduler``, and the hash function of its requests' blocks.

    Only the model's kinds of layers matter: one group of full attention and, if the model has such
    layers, one of sliding windows or of recurrent states.

    Raises:
        ConfigError: ``config`` has an unsupported setting.
    """
    _refuse(config)
    kind = kept_beside_kv(config)
    interface: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    utils: Any = importlib.import_module(_UTILS)
    settings = _settings(config, has_states=kind == "states")
    blocks = settings.cache_config.num_gpu_blocks
    groups = [
        interface.KVCacheGroupSpec([f"layer{number}"], spec)
        for number, spec in enumerate(_specs(config, kind, interface))
    ]
    kept = interface.KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    block_size, hash_block_size = utils.resolve_kv_cache_block_sizes(kept, settings)
    manager: Any = importlib.import_module("vllm.v1.structured_output")
    module: Any = importlib.import_module("vllm.v1.core.sched.scheduler")
    sizes = {"block_size": block_size, "hash_block_size": hash_block_size}
    scheduler = module.Scheduler(
        vllm_config=settings,
        kv_cache_config=kept,
        structured_output_manager=manager.StructuredOutputManager(settings),
        log_stats=True,
        **_known(module.Scheduler.__init__, sizes),
    )
    hashing: Any = importlib.import_module("vllm.utils.hashing")
    hash_of = hashing.get_hash_fn_by_name(settings.cache_config.prefix_caching_hash_algo)
    utils.init_none_hash(hash_of)
    return scheduler, utils.get_request_block_hasher(hash_block_size, hash_of)


class _Model(SimpleNamespace):
    """Stands in for the model's configuration; attributes that it lacks are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _settings(config: EngineConfig, *, has_states: bool) -> Any:
    """The release's ``VllmConfig``."""
    module: Any = importlib.import_module("vllm.config")
    budget = config.chunked_prefill_size or config.max_prefill_tokens
    scheduling = {
        "max_model_len": config.max_context_len,
        "is_encoder_decoder": False,
        "max_num_batched_tokens": max(budget, config.max_running_requests),
        "max_num_seqs": config.max_running_requests,
        "policy": "priority" if config.enable_priority_scheduling else "fcfs",
        "enable_chunked_prefill": True,
        "async_scheduling": False,
    }
    block_size = _block_size(config)
    caching = {
        "block_size": block_size,
        "enable_prefix_caching": True,
        "mamba_cache_mode": "align" if has_states else "none",
    }
    settings = module.VllmConfig(
        scheduler_config=module.SchedulerConfig(**_known(module.SchedulerConfig, scheduling)),
        cache_config=module.CacheConfig(**_known(module.CacheConfig, caching)),
    )
    # One block is a placeholder.
    settings.cache_config.num_gpu_blocks = config.kv_tokens // block_size + 1
    # Set afterwards: the constructor would look for a checkpoint.
    settings.model_config = _Model(
        max_model_len=config.max_context_len,
        runner_type="generate",
        skip_tokenizer_init=True,
        architectures=(),
        vocab_size=VOCAB_SIZE,
        get_vocab_size=lambda: VOCAB_SIZE,
    )
    return settings


def _block_size(config: EngineConfig) -> int:
    return max(config.page_size, _BLOCK_SIZE)


def _specs(config: EngineConfig, kind: str, interface: Any) -> list[Any]:
    """Return one spec for each kind of layer that the model has, with the smallest contents."""
    size = {"block_size": _block_size(config)}
    attention = {
        **size,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": torch.float32,
        "use_mla": False,
    }
    full, windows, states = (
        interface.FullAttentionSpec,
        interface.SlidingWindowSpec,
        interface.MambaSpec,
    )
    found = [full(**_known(full, attention))]
    if kind == "windows":
        attention["sliding_window"] = sliding_window(config)
        found.append(windows(**_known(windows, attention)))
    if kind == "states":
        contents = {"shapes": ((1,),), "dtypes": (torch.float32,), "mamba_cache_mode": "align"}
        found.append(states(**_known(states, {**size, **contents})))
    return found


def _known(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return those ``arguments`` that this release's ``function`` takes."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in known}


def _refuse(config: EngineConfig) -> None:
    """Refuse settings that cannot be driven.

    Raises:
        ConfigError: names the first unsupported setting.
    """
    refuse(
        {
            "engine.speculative_algorithm": config.speculative_algorithm is not None,
            "engine.enable_overlap_schedule": config.enable_overlap_schedule,
            "engine.hicache.ratio": config.hicache.ratio > 0,
            "engine.enable_kv_cache_events": config.enable_kv_cache_events,
            "engine.cache": config.cache not in {"auto", "radix", "swa"},
            "engine.schedule_policy": config.schedule_policy != "fcfs",
            "engine.eviction_policy": config.eviction_policy != "lru",
            "engine.max_queued_requests": config.max_queued_requests is not None,
            "engine.req_waiting_timeout": config.req_waiting_timeout_s is not None,
            "device": config.device != "cpu",
        }
    )
