"""Depthwise causal convolution in Triton, with a window per slot."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridbench.engine.kernels.causal_conv1d.reference import ConvPlan

_CHANNELS_PER_BLOCK = 128
# Neighbouring outputs share all but one of their inputs; a tile reads each input once.
_ROWS_PER_BLOCK = 16


def causal_conv1d_update(
    x: Tensor,
    weight: Tensor,
    pool: Tensor,
    slots: Tensor,
    into: tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """See the reference."""
    batch, channels = x.shape
    target, rows = (pool, slots) if into is None else into
    assert x.stride(1) == 1
    assert pool[0].is_contiguous()
    assert target[0].is_contiguous()
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if batch:
        _update[(batch, triton.cdiv(channels, _CHANNELS_PER_BLOCK))](
            *(x, weight, pool, slots, target, rows, weight if bias is None else bias, output),
            *(x.stride(0), pool.stride(0), target.stride(0)),
            HAS_BIAS=bias is not None,
            CHANNELS=channels,
            **_shape(weight),
        )
    return output


def causal_conv1d_varlen(
    x: Tensor,
    weight: Tensor,
    pool: Tensor,
    slots: Tensor,
    plan: ConvPlan,
    track_slots: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """See the reference."""
    channels, width = x.shape[1], weight.shape[0] - 1
    assert x.stride(1) == 1
    assert pool[0].is_contiguous()
    output = x.new_empty(len(plan.source_rows) - width, channels)
    blocks = triton.cdiv(channels, _CHANNELS_PER_BLOCK)
    sources = (x, pool, slots, plan.source_rows, x.stride(0), pool.stride(0), len(slots) * width)
    shape = {"CHANNELS": channels, **_shape(weight)}
    _outputs[(triton.cdiv(len(output), _ROWS_PER_BLOCK), blocks)](
        *sources,
        *(weight, weight if bias is None else bias, output, len(output)),
        HAS_BIAS=bias is not None,
        BLOCK_R=_ROWS_PER_BLOCK,
        **shape,
    )
    # The last call must come last: it overwrites the windows that all calls read.
    if track_slots is not None and plan.track_rows is not None and len(track_slots):
        _store_windows[(len(track_slots), blocks)](*sources, plan.track_rows, track_slots, **shape)
    _store_windows[(len(slots), blocks)](*sources, plan.tail_rows, slots, **shape)
    return output


def _shape(weight: Tensor) -> dict[str, object]:
    taps = weight.shape[0]
    return {
        "TAPS": taps,
        "BLOCK_T": triton.next_power_of_2(taps),
        "BLOCK_C": _CHANNELS_PER_BLOCK,
        "SUM": tl.float64 if weight.dtype == torch.float64 else tl.float32,
    }


@triton.jit
def _update(
    x,
    weight,
    pool,
    slots,
    target,
    rows,
    bias,
    output,
    x_stride,
    pool_stride,
    target_stride,
    HAS_BIAS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    SUM: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    tap = tl.arange(0, BLOCK_T)[:, None]
    in_channel = (channel < CHANNELS)[None, :]
    in_window = (tap < TAPS - 1) & in_channel
    is_new = (tap == TAPS - 1) & in_channel
    slot = tl.load(slots + request)
    window = channel[None, :] * (TAPS - 1) + tap
    old = tl.load(pool + slot * pool_stride + window, mask=in_window, other=0.0)
    new = tl.load(x + request * x_stride + channel[None, :] + tap * 0, mask=is_new, other=0.0)
    inputs = tl.where(is_new, new, old)
    # The window shifts by one in place, so all reads must precede the first write.
    tl.debug_barrier()
    row = tl.load(rows + request)
    kept = (tap >= 1) & (tap < TAPS) & in_channel
    tl.store(target + row * target_stride + window - 1, inputs, mask=kept)
    mixed = _convolve(inputs, weight, bias, channel, HAS_BIAS, CHANNELS, TAPS, BLOCK_T, SUM)
    tl.store(output + request * CHANNELS + channel, mixed, mask=channel < CHANNELS)


@triton.jit
def _outputs(
    x,
    pool,
    slots,
    source_rows,
    x_stride,
    pool_stride,
    window_rows,
    weight,
    bias,
    output,
    rows,
    HAS_BIAS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    SUM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_row, in_channel = row < rows, channel < CHANNELS
    mixed = tl.zeros([BLOCK_R, BLOCK_C], dtype=SUM)
    for tap in tl.static_range(TAPS):
        source = tl.load(source_rows + row + tap, mask=in_row, other=0)
        inputs = _inputs(
            source, in_row, channel, x, pool, slots, x_stride, pool_stride, window_rows,
            CHANNELS, TAPS,
        )  # fmt: skip
        factor = tl.load(weight + tap * CHANNELS + channel, mask=in_channel, other=0.0)
        mixed += inputs.to(SUM) * factor.to(SUM)[None, :]
    mixed = _activated(mixed, bias, channel[None, :], HAS_BIAS, CHANNELS, SUM)
    place = row[:, None] * CHANNELS + channel[None, :]
    tl.store(output + place, mixed, mask=in_row[:, None] & in_channel[None, :])


@triton.jit
def _store_windows(
    x,
    pool,
    slots,
    source_rows,
    x_stride,
    pool_stride,
    window_rows,
    kept_rows,
    kept_slots,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    SUM: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    tap = tl.arange(0, BLOCK_T)
    in_window = tap < TAPS - 1
    kept = tl.load(kept_rows + index * (TAPS - 1) + tap, mask=in_window, other=0)
    source = tl.load(source_rows + kept, mask=in_window, other=0)
    inputs = _inputs(
        source, in_window, channel, x, pool, slots, x_stride, pool_stride, window_rows,
        CHANNELS, TAPS,
    )  # fmt: skip
    # A request with few tokens keeps part of its window, so all reads must precede the first write.
    tl.debug_barrier()
    slot = tl.load(kept_slots + index)
    place = channel[None, :] * (TAPS - 1) + tap[:, None]
    inside = in_window[:, None] & (channel < CHANNELS)[None, :]
    tl.store(pool + slot * pool_stride + place, inputs, mask=inside)


@triton.jit
def _inputs(
    source,
    wanted,
    channel,
    x,
    pool,
    slots,
    x_stride,
    pool_stride,
    window_rows,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
):
    """Load rows ``source`` of [all windows | all tokens] as a tile of rows by channels."""
    in_channel = (channel < CHANNELS)[None, :]
    from_pool = wanted & (source < window_rows)
    from_x = wanted & (source >= window_rows)
    token = tl.where(from_x, source - window_rows, 0)
    place = token[:, None] * x_stride + channel[None, :]
    inputs = tl.load(x + place, mask=from_x[:, None] & in_channel, other=0.0)
    # Few tiles contain the start of a request; the others skip these loads, never contiguous.
    if tl.max(from_pool.to(tl.int32), axis=0) > 0:
        slot = tl.load(slots + source // (TAPS - 1), mask=from_pool, other=0)
        place = slot[:, None] * pool_stride + channel[None, :] * (TAPS - 1)
        place += (source % (TAPS - 1))[:, None]
        old = tl.load(pool + place, mask=from_pool[:, None] & in_channel, other=0.0)
        inputs = tl.where(from_pool[:, None], old.to(inputs.dtype), inputs)
    return inputs


@triton.jit
def _convolve(
    inputs,
    weight,
    bias,
    channel,
    HAS_BIAS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SUM: tl.constexpr,
):
    """Return ``silu(sum_j w_j * x_j + bias)`` for a tile of taps by channels."""
    tap = tl.arange(0, BLOCK_T)[:, None]
    inside = (tap < TAPS) & (channel < CHANNELS)[None, :]
    taps = tl.load(weight + tap * CHANNELS + channel[None, :], mask=inside, other=0.0)
    mixed = tl.sum(inputs.to(SUM) * taps.to(SUM), axis=0)
    return _activated(mixed, bias, channel, HAS_BIAS, CHANNELS, SUM)


@triton.jit
def _activated(
    mixed, bias, channel, HAS_BIAS: tl.constexpr, CHANNELS: tl.constexpr, SUM: tl.constexpr
):
    """Return ``silu(mixed + bias)``."""
    if HAS_BIAS:
        mixed += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(SUM)
    return mixed / (1.0 + tl.exp(-mixed))
