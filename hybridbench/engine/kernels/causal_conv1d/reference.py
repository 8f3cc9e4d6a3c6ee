"""Depthwise causal convolution over ragged requests, with a window per slot: plain PyTorch.

The window of a request is its last K-1 inputs.  The output of each channel is
``y_t = silu(sum_j w_j * x_{t-K+1+j})``, where the inputs x_t include the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.index_arrays import to_device
from hybridbench.engine.kernels.rows import store_rows


@dataclass(frozen=True)
class ConvPlan:
    """The rows of a ragged step in the buffer ``[window_0 | tokens_0 | window_1 | ...]``.

    All index tensors are int64 on the device of the step.
    """

    source_rows: Tensor
    """[T + (K-1)R]: row of each buffer row in ``[all windows | all tokens]``."""
    tail_rows: Tensor
    """[R*(K-1)]: the last K-1 buffer rows of each request, which become its window."""
    output_starts: np.ndarray[tuple[int], np.dtype[np.int64]]
    """[R]: row of each request's first output; its other outputs follow."""
    track_rows: Tensor | None = None
    """[S*(K-1)]: the K-1 buffer rows before each position whose window is wanted."""

    @classmethod
    def build(
        cls,
        extend_lens: Sequence[int],
        kernel_size: int,
        device: torch.device,
        track_offsets: Sequence[int] | None = None,
    ) -> ConvPlan:
        """Lay out requests with ``extend_lens`` new tokens each (at least one).

        ``track_offsets`` is the number of new tokens after which a copy of each request's window is
        wanted; 0 for none.
        """
        width = kernel_size - 1
        lens = np.asarray(extend_lens, dtype=np.int64)
        ends = np.cumsum(lens + width)
        starts = ends - lens - width
        window = np.arange(width, dtype=np.int64)
        windows_before = width * np.arange(1, len(lens) + 1, dtype=np.int64)
        tokens = np.arange(int(lens.sum()), dtype=np.int64)
        source_rows = np.empty(int(ends[-1]), dtype=np.int64)
        source_rows[(starts[:, None] + window).ravel()] = np.arange(width * len(lens))
        source_rows[tokens + np.repeat(windows_before, lens)] = tokens + width * len(lens)
        track_rows = None
        if track_offsets is not None:
            offsets = np.asarray(track_offsets, dtype=np.int64)
            # The window comes first, so after n tokens the last K-1 rows begin at row n.
            first = (starts + offsets)[offsets > 0]
            track_rows = to_device((first[:, None] + window).ravel(), device)
        return cls(
            source_rows=to_device(source_rows, device),
            # Counted from the end: with fewer than K-1 tokens, part of the old window remains.
            tail_rows=to_device(((ends - width)[:, None] + window).ravel(), device),
            output_starts=starts,
            track_rows=track_rows,
        )


def causal_conv1d_varlen(
    x: Tensor,
    weight: Tensor,
    pool: Tensor,
    slots: Tensor,
    plan: ConvPlan,
    track_slots: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Convolve the new tokens of several requests and store each request's new window.

    Args:
        x: [T, D], requests one after the other.
        weight: [K, D], contiguous; row K-1 multiplies the newest input.
        pool: [S, D, K-1], windows by slot; rows ``slots`` are read and overwritten.
        slots: [R] int64, distinct except for the dump slot.
        plan: built from the lengths of the same requests.
        track_slots: [S] int64, slots for the plan's window copies; None if there are none.
        bias: [D], added before silu.

    Returns:
        [T + (K-1)(R-1), D], silu applied: the outputs of request r start at
        ``plan.output_starts[r]``; the K-1 rows between two requests are meaningless but finite.
    """
    kernel_size, channels = weight.shape
    width = kernel_size - 1
    windows = pool.transpose(1, 2)
    stored = windows.index_select(0, slots).reshape(-1, channels)
    buffer = torch.cat((stored, x)).index_select(0, plan.source_rows)
    tail = buffer.index_select(0, plan.tail_rows).view(-1, width, channels)
    store_rows(pool, slots, tail.transpose(1, 2).contiguous())
    if track_slots is not None and plan.track_rows is not None:
        tracked = buffer.index_select(0, plan.track_rows).view(-1, width, channels)
        store_rows(pool, track_slots, tracked.transpose(1, 2).contiguous())
    rows = buffer.shape[0] - width
    y = buffer[:rows] * weight[0]
    for tap in range(1, kernel_size):
        y.addcmul_(buffer[tap : tap + rows], weight[tap])
    if bias is not None:
        y += bias
    return functional.silu(y, inplace=True)


def causal_conv1d_update(
    x: Tensor,
    weight: Tensor,
    pool: Tensor,
    slots: Tensor,
    into: tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Convolve one token per request, and shift each window by one.

    Args:
        x: [B, D]; request b owns slot ``slots[b]``.
        weight: [K, D], contiguous.
        pool: [S, D, K-1]; rows ``slots`` are read, and overwritten unless ``into`` is given.
        slots: [B] int64.
        into: a pool like ``pool`` and its [B] rows for the new windows, which replace ``slots``.
        bias: [D], added before silu.

    Returns:
        [B, D], silu applied, owned by the caller.
    """
    windows = pool.transpose(1, 2)
    window = torch.cat((windows.index_select(0, slots), x.unsqueeze(1)), dim=1)
    target, rows = (pool, slots) if into is None else into
    store_rows(target, rows, window[:, 1:].transpose(1, 2).contiguous())
    y = (window * weight).sum(dim=1)
    if bias is not None:
        y += bias
    return functional.silu(y, inplace=True)


def causal_conv1d_reference(x: Tensor, weight: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve one request token by token; the reference for both forms above.

    Args:
        x: [T, D]; may be empty.
        weight: [K, D].
        window: [K-1, D], the inputs before ``x``.

    Returns:
        Output [T, D] and the new window [K-1, D].
    """
    inputs = torch.cat((window, x))
    kernel_size = weight.shape[0]
    rows = [
        functional.silu((inputs[t : t + kernel_size] * weight).sum(dim=0))
        for t in range(x.shape[0])
    ]
    output = torch.stack(rows) if rows else x.clone()
    return output, inputs[inputs.shape[0] - kernel_size + 1 :].clone()
