"""Replacements for the model, sockets and process groups of SGLang's scheduler."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError
from hybridbench.released.adapter import VOCAB_SIZE, kept_beside_kv, refuse, sliding_window
from hybridbench.released.sglang.generations import Generation
from hybridbench.released.sglang.pages import prepare_paged

_GROUPS: Final = (
    "get_tp_group", "get_attention_tp_group", "get_attention_cp_group", "get_pp_group",
    "get_world_group",
)  # fmt: skip
_MANAGERS: Final = "sglang.srt.managers"
_MEMORY: Final = "sglang.srt.mem_cache"
# Steps between two frees of the slots that a request's window has passed; with 1, some releases
# free nothing.
_FREES_EVERY: Final = 2


def build_scheduler(
    config: EngineConfig,
    generation: Generation,
    take_output: Callable[[Any], None],
    retract_every: int,
) -> Any:
    """Build the release's ``Scheduler`` with the pools of ``config``.

    Args:
        config: pools, limits and policies; of the model, only its kinds of layers matter.
        generation: the release's interfaces.
        take_output: receives every message that the scheduler sends.
        retract_every: steps between retractions that the release's test switch causes; 0 for none.

    Raises:
        ConfigError: ``config`` has an unsupported setting, or the release has no such cache.
    """
    kind = kept_beside_kv(config)
    _refuse(config, kind)
    if config.cache == "unified" and generation.unified_tree == "absent":
        raise ConfigError("engine.cache: this release of sglang has no unified tree.")
    # SGLang logs a line for each retraction and each session.
    logging.getLogger("sglang").setLevel(logging.ERROR)
    _set_switches(config, generation)
    arguments = _arguments(config)
    module: Any = importlib.import_module(f"{_MANAGERS}.scheduler")
    batch: Any = importlib.import_module(f"{_MANAGERS}.schedule_batch")
    batch.get_tensor_model_parallel_rank = lambda: 0
    group = _Absent(rank=0, rank_in_group=0, first_rank=0, world_size=1, ranks=[0])
    group.is_first_rank = group.is_last_rank = True
    for name in _GROUPS:
        setattr(module, name, lambda: group)
    _set_groups(group)
    module.get_resolved_model_impl = lambda _: None
    # Later releases build the cache, and still later ones the process groups, in other modules.
    if "kv_cache_builder" in vars(module):
        module.kv_cache_builder.get_resolved_model_impl = lambda _: None
    if "bootstrap" in vars(module):
        module.bootstrap.init_parallel_runtime = lambda **_: None
        module.bootstrap.init_layer_runtime = lambda **_: None
    module.TEST_RETRACT = retract_every > 0
    module.TEST_RETRACT_INTERVAL = retract_every or 1
    worker = _Worker(config, kind, module.GenerationBatchResult)
    driven = _driven(module.Scheduler, config, worker, take_output)
    named = inspect.signature(module.Scheduler.__init__).parameters
    ranks: dict[str, int | None] = {
        name: None if name == "dp_rank" else 0
        for name in named
        if name.endswith("_rank") or name == "gpu_id"
    }
    return driven(arguments, _Absent(nccl_port=0), **ranks)


class _Absent(SimpleNamespace):
    """Has the given attributes; all others are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Unpinned(TorchFunctionMode):
    """Prevents memory from being pinned, which PyTorch refuses to do without a device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        others = {name: one for name, one in (kwargs or {}).items() if name != "pin_memory"}
        return func(*args, **others)


class _Worker:
    """Replaces the model's worker: owns the pools, and draws random tokens for a step."""

    weight_load_time = 0.0
    graph_time_usage = graph_memory_usage = None

    def __init__(self, config: EngineConfig, kind: str, result: Callable[..., Any]) -> None:
        self.checkpoint = _checkpoint(kind)
        self._config = config
        self._result = result
        self._random = torch.Generator().manual_seed(config.seed)
        self._pools = _rows(config, kind), _kv(config, kind)
        self.is_hybrid_swa = kind == "windows"
        self.sliding_window_size = sliding_window(config)
        self.model_config = _Absent(use_ngram_embedding=False)
        has_states = object() if kind == "states" else None
        rows, kv = self._pools
        self.model_runner = _Absent(
            hybrid_gdn_config=has_states,
            memory_pool_config=object(),
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=kv,
            token_to_kv_pool=_Absent(),
            prewarm_sampling=lambda: None,
            ngram_embedding_manager=_Absent(prepare_for_forward=lambda batch, **_: batch),
            device="cpu",
            forward_stream=torch.cpu.Stream(),
            model_config=_Absent(hf_config=self.checkpoint),
        )

    def get_worker_info(self) -> tuple[Any, ...]:
        config = self._config
        longest = config.max_request_len
        return (
            config.kv_tokens, config.max_prefill_tokens, config.max_running_requests,
            config.max_queued_requests, longest + 1, longest, config.seed, "cpu",
            torch.cpu.Stream(), config.max_running_requests, config.max_context_len,
            config.kv_tokens,
        )  # fmt: skip

    def get_memory_pool(self) -> tuple[Any, Any]:
        return self._pools

    def get_tokens_per_layer_info(self) -> tuple[int, int]:
        return self._config.kv_tokens, self._config.swa_tokens

    def get_pad_input_ids_func(self) -> None:
        """None: prompts have no images."""

    def init_attention_backends(self) -> None:
        """Do nothing: there is no model."""

    init_cuda_graphs = init_attention_backends

    def forward_batch_generation(self, batch: Any, **_: Any) -> Any:
        tokens = torch.randint(VOCAB_SIZE, (len(batch.seq_lens),), generator=self._random)
        return self._result(
            logits_output=_Absent(), next_token_ids=tokens, can_run_cuda_graph=False
        )


def _driven(
    scheduler: Any, config: EngineConfig, worker: _Worker, take_output: Callable[[Any], None]
) -> Any:
    """The release's class, without its connections to other processes."""

    class Sink:
        def send_output(self, message: Any, received: Any = None) -> None:
            take_output(message)

    class Scheduler(scheduler):  # type: ignore[misc]
        def init_model_config(self) -> None:
            self.dllm_config = None
            self.model_config = _Absent(
                is_generation=True,
                is_multimodal=False,
                is_encoder_decoder=False,
                is_matryoshka=False,
                vocab_size=VOCAB_SIZE,
                context_len=config.max_context_len,
                hf_config=worker.checkpoint,
            )

        def init_ipc_channels(self, port_args: Any) -> None:
            sink = Sink()
            self.send_to_tokenizer = self.send_to_detokenizer = sink
            self.ipc_channels = _Absent(send_to_tokenizer=sink, send_to_detokenizer=sink)
            self.recv_from_tokenizer = self.recv_from_rpc = None
            self.idle_sleeper = self.load_snapshot_writer = None

        def init_moe_gemm_config(self) -> None:
            self.require_mlp_sync = False

        def init_mamba_backend(self) -> None:
            """Do nothing: no kernel runs."""

        def init_tp_model_worker(self) -> None:
            self.tp_worker = worker

        def init_watch_dog_memory_saver_input_blocker(self) -> None:
            self.offload_tags: set[str] = set()
            self.memory_saver_adapter = self.recv_skipper = self.input_blocker = None

    return Scheduler


def _set_groups(group: _Absent) -> None:
    """Use ``group``, of one member, as every process group in the context of later releases."""
    try:
        parallel = importlib.import_module("sglang.srt.runtime_context").get_parallel()
    except ModuleNotFoundError:
        return
    values = {"rank": 0, "size": 1, "group": group}
    for name, one in vars(type(parallel)).items():
        kind = name.rpartition("_")[2]
        if isinstance(one, property) and kind in values:
            # The public method for this overrides only within a ``with`` block.
            parallel._overrides[name] = values[kind]


def _arguments(config: EngineConfig) -> Any:
    """Build the release's server arguments, without those that it does not have yet."""
    module: Any = importlib.import_module("sglang.srt.server_args")
    known = inspect.signature(module.ServerArgs).parameters
    wanted = {
        # With this name, the release does not look for a checkpoint.
        "model_path": "dummy",
        "device": "cpu",
        "skip_tokenizer_init": True,
        "disable_overlap_schedule": not config.enable_overlap_schedule,
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "enable_streaming_session": config.cache != "chunk",
        "disable_radix_cache": config.cache == "chunk",
        "page_size": config.page_size,
        "chunked_prefill_size": config.chunked_prefill_size or -1,
        "max_prefill_tokens": config.max_prefill_tokens,
        "schedule_policy": config.schedule_policy,
        "radix_eviction_policy": config.eviction_policy,
        "enable_priority_scheduling": config.enable_priority_scheduling,
        "schedule_low_priority_values_first": config.schedule_low_priority_values_first,
        "priority_scheduling_preemption_threshold": (
            config.priority_scheduling_preemption_threshold
        ),
        "disable_priority_preemption": config.disable_priority_preemption,
        "mamba_track_interval": config.mamba_track_interval,
        # The same setting: the first name is used up to 0.5.15, the second one after.
        "mamba_scheduler_strategy": config.mamba_scheduler_strategy,
        "mamba_radix_cache_strategy": config.mamba_scheduler_strategy,
    }
    arguments = module.ServerArgs(**{name: v for name, v in wanted.items() if name in known})
    # Otherwise a property would read it from a model's configuration.
    arguments._mamba_cache_chunk_size = config.cache_chunk_size
    module.set_global_server_args_for_scheduler(arguments)
    return arguments


def _set_switches(config: EngineConfig, generation: Generation) -> None:
    """Apply settings that the release reads only from its environment."""
    switches: Any = importlib.import_module("sglang.srt.environ").envs
    ratio = config.new_token_ratio
    switches.SGLANG_INIT_NEW_TOKEN_RATIO.set(ratio.init)
    switches.SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR.set(ratio.min / ratio.init)
    switches.SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS.set(ratio.decay_steps)
    if config.req_waiting_timeout_s is not None:
        switches.SGLANG_REQ_WAITING_TIMEOUT.set(config.req_waiting_timeout_s)
    # The default is to free windows only once in 128 tokens, or once per window.
    window, names = sliding_window(config), dir(switches)
    if window and "SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER" in names:
        switches.SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER.set(_FREES_EVERY / window)
    elif "SGLANG_SWA_EVICTION_INTERVAL" in names:
        switches.SGLANG_SWA_EVICTION_INTERVAL.set(_FREES_EVERY)
    if config.cache == "unified" and generation.unified_tree == "switch":
        switches.SGLANG_ENABLE_UNIFIED_RADIX_TREE.set(True)
    # The nodes of the core in Rust, the default from 0.5.21 on, cannot be seen from Python.
    if "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND" in names:
        core = switches.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND
        if not core.is_set():
            core.set("python")


def _checkpoint(kind: str) -> Any:
    """The configuration of a model of ``kind``, by which later releases choose a tree."""
    if kind == "states":
        return importlib.import_module("sglang.srt.configs.qwen3_next").Qwen3NextConfig()
    config = _Absent()
    config.get_text_config = lambda: config
    return config


def _refuse(config: EngineConfig, kind: str) -> None:
    """Refuse settings that cannot be driven.

    Raises:
        ConfigError: names the first unsupported setting, or a pool that is too small.
    """
    lazy = config.mamba_scheduler_strategy == "extra_buffer_lazy"
    # The release's trees cut states at page boundaries only if the states come from track buffers.
    cannot_cut = kind == "states" and config.page_size > 1 and not config.tracks_states
    wanted = {
        "engine.speculative_algorithm": config.speculative_algorithm is not None,
        "engine.hicache.ratio": config.hicache.ratio > 0,
        "engine.mamba_scheduler_strategy": lazy,
        "pools.page_size": cannot_cut,
        "engine.enable_kv_cache_events": config.enable_kv_cache_events,
        "engine.state_refresh": config.state_refresh == "used",
        "engine.cache": config.cache in {"chunk", "swa_chunk"},
        "device": config.device != "cpu",
    }
    refuse(wanted)
    # Without a free slot for an admitted request, the release's scheduler ends; its servers derive
    # the number of running requests from the number of slots.
    each = 1 + config.tracks_states * (1 + config.enable_overlap_schedule)
    needed = each * config.max_running_requests
    if kind == "states" and config.mamba_slots < needed:
        taken = f"{each}, track buffers included" if config.tracks_states else "one"
        raise ConfigError(
            f"pools.mamba_slots: {config.mamba_slots}, but a running request takes {taken}: at "
            f"least {needed} for engine.max_running_requests of {config.max_running_requests}."
        )


def _rows(config: EngineConfig, kind: str) -> Any:
    module: Any = importlib.import_module(f"{_MEMORY}.memory_pool")
    common = {
        "size": config.max_running_requests,
        "max_context_len": config.max_context_len,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    if kind != "states":
        return module.ReqToTokenPool(**common)
    shapes: Any = importlib.import_module("sglang.srt.configs.mamba_utils")
    # The contents of the states are never used.
    shape = shapes.Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=2, n_groups=1, num_heads=1, head_dim=2, state_size=2,
        conv_kernel=2,
    )  # fmt: skip
    of_states = {
        "mamba_size": config.mamba_slots,
        "mamba_spec_state_size": config.max_running_requests,
        "cache_params": shapes.Mamba2CacheParams(shape=shape, layers=[0]),
        "mamba_layer_ids": [0],
        "enable_mamba_extra_buffer": config.tracks_states,
        "speculative_num_draft_tokens": None,
        "enable_overlap_schedule": config.enable_overlap_schedule,
    }
    pool = module.HybridReqToTokenPool
    known = inspect.signature(pool.__init__).parameters
    return pool(**common, **{name: v for name, v in of_states.items() if name in known})


def _kv(config: EngineConfig, kind: str) -> Any:
    allocators: Any = importlib.import_module(f"{_MEMORY}.allocator")
    if config.page_size > 1:
        prepare_paged(allocators.PagedTokenToKVPoolAllocator)
    if kind != "windows":
        if config.page_size > 1:
            return allocators.PagedTokenToKVPoolAllocator(
                config.kv_tokens, config.page_size, torch.float32, "cpu", None, False
            )
        return allocators.TokenToKVPoolAllocator(
            config.kv_tokens, torch.float32, "cpu", None, False
        )
    pools: Any = importlib.import_module(f"{_MEMORY}.swa_memory_pool")
    # Earlier releases define the allocator beside the pool.
    if "SWATokenToKVPoolAllocator" not in vars(pools):
        module = importlib.import_module(f"{_MEMORY}.allocator.swa")
    else:
        module = pools
    common = {"page_size": config.page_size, "dtype": torch.float32, "device": "cpu"}
    sizes = {"size": config.kv_tokens, "size_swa": config.swa_tokens}
    # The contents of the pools are never used.
    of_layers = {
        "head_num": 1,
        "head_dim": 1,
        "swa_attention_layer_ids": [0],
        "full_attention_layer_ids": [1],
        "enable_kvcache_transpose": False,
    }
    known = inspect.signature(pools.SWAKVPool.__init__).parameters
    kept = {name: value for name, value in of_layers.items() if name in known}
    pool = pools.SWAKVPool(**sizes, **common, **kept)
    return module.SWATokenToKVPoolAllocator(**sizes, **common, kvcache=pool, need_sort=False)
