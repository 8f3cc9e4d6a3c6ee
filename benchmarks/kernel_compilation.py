"""Compile every Triton kernel for a GPU, without needing one, and report its resource usage.

The arguments have the shapes of life-size models but no memory; nothing is launched.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from hybridbench.engine.kernels.causal_conv1d.reference import ConvPlan
from hybridbench.engine.kernels.dispatch import triton_kernels
from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.moe.reference import swiglu
from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan
from hybridbench.foundation.errors import ErrorCode, UsageError

TARGETS: Final[Mapping[str, int]] = {"sm_80": 80, "sm_90": 90}
"""Compute capabilities: A100, and H100 or H200."""
_DEVICE: Final = torch.device("meta")
_HALF: Final = torch.bfloat16
_REQUESTS: Final = 64
_SLOTS: Final = 4 * _REQUESTS
_KV_SLOTS: Final = 2**16
_PREFILLS: Final = (512,) * 16
"""New tokens per request of a prefill step; each has as many cached tokens."""
_SPILLS: Final = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS: Final = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class CompiledKernel:
    """GPU resources that one program of a kernel uses, according to Triton and ptxas."""

    name: str
    warps: int
    registers: int
    """Per thread."""
    shared_bytes: int
    spilled_bytes: int
    """Bytes written to memory and read back for lack of registers."""


@contextmanager
def compiling(capability: int) -> Iterator[list[CompiledKernel]]:
    """In this context, launching a Triton kernel only compiles it and appends it to the list.

    Raises:
        UsageError: Triton is not installed, or interprets kernels in this process.
    """
    if find_spec("triton") is None:
        raise UsageError("Triton is not installed here, so no kernel can be compiled.")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    if triton.knobs.runtime.interpret:
        raise UsageError("Triton compiles nothing while it interprets; unset TRITON_INTERPRET.")

    class NoDevice:
        """A driver that does nothing but name a target."""

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return device

    compiled: list[CompiledKernel] = []
    run = JITFunction.run

    def compile_only(kernel: object, *args: object, **kwargs: object) -> object:
        log = io.StringIO()
        with redirect_stdout(log):
            result = run(kernel, *args, **{**kwargs, "warmup": True})
        if log.getvalue():  # empty if the kernel has been compiled before
            facts = result.metadata
            compiled.append(
                compiled_kernel(facts.name, facts.num_warps, facts.shared, log.getvalue())
            )
        return result

    driver.set_active(NoDevice())
    with tempfile.TemporaryDirectory() as folder, triton.knobs.nvidia.scope():
        triton.knobs.nvidia.dump_ptxas_log = True
        with triton.knobs.cache.scope():
            # A fresh cache, because a cached kernel would have no log.
            triton.knobs.cache.dir = folder
            JITFunction.run = compile_only
            try:
                yield compiled
            finally:
                JITFunction.run = run


def compiled_kernel(name: str, warps: int, shared_bytes: int, log: str) -> CompiledKernel:
    """Return the resources that ``log`` (from ``ptxas -v``) gives for a kernel and its callees."""
    return CompiledKernel(
        name=name,
        warps=warps,
        registers=max(int(count) for count in _REGISTERS.findall(log)),
        shared_bytes=shared_bytes,
        spilled_bytes=sum(int(stored) + int(read) for stored, read in _SPILLS.findall(log)),
    )


def compilation_lines(target: str) -> Iterator[str]:
    """Compile every kernel of the dispatch table for one of ``TARGETS``; yield a table's lines.

    Raises:
        UsageError: there is no such target, or Triton cannot compile in this process.
    """
    if target not in TARGETS:
        raise UsageError(
            f": {target!r} is neither {' nor '.join(TARGETS)}",
            code=ErrorCode.UNKNOWN_NAME,
            option="--compile-for",
        )
    with compiling(TARGETS[target]) as compiled:
        yield (
            f"{'operation':26}{'shapes of':12}{'kernel':22}{'warps':>6}{'registers':>11}"
            f"{'shared bytes':>14}{'spilled bytes':>15}"
        )
        table = vars(triton_kernels())
        for operation, model, arguments in life_size_calls():
            compiled.clear()
            table[operation](*arguments)
            for each in compiled:
                yield (
                    f"{operation:26}{model:12}{each.name:22}{each.warps:6}{each.registers:11}"
                    f"{each.shared_bytes:14,}{each.spilled_bytes:15,}"
                )


def life_size_calls() -> Iterator[tuple[str, str, Sequence[object]]]:
    """Yield operations with arguments of decode steps (64 requests) and prefills (8,192 tokens).

    The shapes are those of `qwen3-next-1b`, `nemotron-h-1b` and `gpt-oss`.
    """
    yield from _attention("qwen3-next", heads=16, key_heads=2, head_dim=256)
    yield from _attention("gpt-oss", heads=64, key_heads=8, head_dim=64, window=128, sinks=True)
    yield from _experts("qwen3-next", experts=16, top_k=4, hidden=2048, width=512)
    yield from _experts("gpt-oss", experts=32, top_k=4, hidden=2880, width=2880, biases=True)
    yield from _delta_rule(key_heads=16, heads=32, dim=128)
    yield from _mamba2(heads=128, head_dim=64, groups=8, width=128)
    yield from _convolution("qwen3-next", channels=8192, bias=False)
    yield from _convolution("nemotron-h", channels=10_240, bias=True)


_Calls = Iterator[tuple[str, str, Sequence[object]]]


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=_DEVICE)


def _half(*shape: int) -> Tensor:
    return _empty(*shape, dtype=_HALF)


def _indices(count: int) -> Tensor:
    return _empty(count, dtype=torch.int64)


def _attention(
    model: str,
    *,
    heads: int,
    key_heads: int,
    head_dim: int,
    window: int | None = None,
    sinks: bool = False,
) -> _Calls:
    tokens = sum(_PREFILLS)
    slots = np.arange(2 * tokens, dtype=np.int64)
    pool = [_half(_KV_SLOTS, key_heads, head_dim) for _ in range(2)]
    new = [_half(tokens, key_heads, head_dim) for _ in range(2)]
    sink = _half(heads) if sinks else None
    lens = [2 * tokens // _REQUESTS] * _REQUESTS
    decode = DecodePlan.build(lens, slots, _HALF, _DEVICE, window)
    extend = ExtendPlan.build(_PREFILLS, _PREFILLS, slots, _DEVICE, window)
    yield "store_kv", model, [*pool, _indices(tokens), *new]
    yield "decode_attention", model, [_half(_REQUESTS, heads, head_dim), *pool, decode, sink]
    yield "extend_attention", model, [_half(tokens, heads, head_dim), *pool, extend, sink]


def _experts(
    model: str, *, experts: int, top_k: int, hidden: int, width: int, biases: bool = False
) -> _Calls:
    added = (_half(experts, 2 * width), _half(experts, hidden)) if biases else None
    matrices = [_half(experts, 2 * width, hidden), _half(experts, width, hidden)]
    for tokens in (_REQUESTS, sum(_PREFILLS)):
        chosen = _empty(tokens, top_k, dtype=torch.int64)
        rows = [_half(tokens, hidden), _half(tokens, top_k), chosen]
        yield "route", model, [_empty(tokens, experts), top_k, True]
        yield "experts_sorted", model, [*rows, *matrices, added, swiglu]


def _delta_rule(*, key_heads: int, heads: int, dim: int) -> _Calls:
    model, tokens = "qwen3-next", sum(_PREFILLS)
    decays = [_empty(heads) for _ in range(2)]
    yield "gdn_gating", model, [*(_half(tokens, heads) for _ in range(2)), *decays]
    state = _empty(_SLOTS, heads, dim, dim)
    gates = [_empty(_REQUESTS, heads) for _ in range(2)]
    qkv = [_empty(_REQUESTS, heads, 2, dim), _empty(_REQUESTS, heads, dim)]
    yield "gated_delta_rule_update", model, [*qkv, *gates, state, _indices(_REQUESTS), None]
    plan, snapshots = _chunks()
    channels = 2 * key_heads * dim
    v = _half(tokens, channels + heads * dim)[:, channels:].view(-1, heads, dim)
    arguments = [_empty(tokens, 2, key_heads, dim), v]
    arguments += [*(_empty(tokens, heads) for _ in range(2)), state, _indices(len(_PREFILLS))]
    yield "chunk_gated_delta_rule", model, [*arguments, plan, _indices(snapshots)]
    layers = _empty(_SLOTS, 6, heads, dim, dim)
    yield "copy_states", model, [[layers], _indices(_REQUESTS), [layers], _indices(_REQUESTS)]


def _mamba2(*, heads: int, head_dim: int, groups: int, width: int) -> _Calls:
    model, a = "nemotron-h", _empty(heads)
    state = _empty(_SLOTS, heads, head_dim, width)
    arguments = [_empty(_REQUESTS, heads, head_dim), _empty(_REQUESTS, heads), a]
    arguments += [_empty(_REQUESTS, 2, groups, width), state, _indices(_REQUESTS)]
    yield "mamba2_state_update", model, [*arguments, None]
    plan, snapshots = _chunks()
    tokens, channels = sum(_PREFILLS), heads * head_dim
    mixed = _half(tokens, channels + 2 * groups * width)
    x = mixed[:, :channels].view(-1, heads, head_dim)
    bc = mixed[:, channels:].view(-1, 2, groups, width)
    arguments = [x, _empty(tokens, heads), a, a, bc, state, _indices(len(_PREFILLS))]
    yield "mamba2_chunk_scan", model, [*arguments, plan, _indices(snapshots)]


def _chunks() -> tuple[ChunkPlan, int]:
    """Return a chunk plan and its number of snapshots."""
    starts = np.cumsum(_PREFILLS) - _PREFILLS[0]
    plan = ChunkPlan.build(_PREFILLS, starts, _DEVICE, track_offsets=_PREFILLS)
    return plan, plan.snapshot_count


def _convolution(model: str, *, channels: int, bias: bool, taps: int = 4) -> _Calls:
    pool, weight = _half(_SLOTS, channels, taps - 1), _half(taps, channels)
    added = _half(channels) if bias else None
    x, slots = _half(_REQUESTS, channels), _indices(_REQUESTS)
    yield "causal_conv1d_update", model, [x, weight, pool, slots, None, added]
    plan = ConvPlan.build(_PREFILLS, taps, _DEVICE, _PREFILLS)
    x, slots = _half(sum(_PREFILLS), channels), _indices(len(_PREFILLS))
    yield "causal_conv1d_varlen", model, [x, weight, pool, slots, plan, slots, added]
