"""Mamba2 in Triton: the decode step in place by slot, and the chunks of a prefill.

A program handles some channels of one head of one request; in a prefill it keeps their state in
registers from chunk to chunk.  Products are as in the gated delta rule.  Source: Dao and Gu 2024,
arXiv 2405.21060.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan

_CHANNELS_PER_BLOCK = 32
# The smallest side of a matrix product in Triton.
_LEAST_BLOCK = 16


def mamba2_state_update(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    bc: Tensor,
    pool: Tensor,
    slots: Tensor,
    into: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """See the reference."""
    requests, heads, head_dim = x.shape
    groups, width = bc.shape[2:]
    target, rows = (pool, slots) if into is None else into
    assert pool[0].is_contiguous()
    assert target[0].is_contiguous()
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if requests:
        _update[(requests, heads, triton.cdiv(head_dim, _CHANNELS_PER_BLOCK))](
            *(x.contiguous(), dt.contiguous(), a, bc.contiguous()),
            *(pool, slots, target, rows, output, pool.stride(0), target.stride(0)),
            HEADS=heads,
            GROUPS=groups,
            HEAD_DIM=head_dim,
            WIDTH=width,
            BLOCK_P=_CHANNELS_PER_BLOCK,
            BLOCK_N=triton.next_power_of_2(width),
        )
    return output


def mamba2_chunk_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    bc: Tensor,
    state: Tensor,
    plan: ChunkPlan,
    snapshots: Tensor | None = None,
) -> Tensor:
    """See the reference."""
    size, heads, head_dim = x.shape[1:]
    groups, width = bc.shape[3:]
    assert state.is_contiguous()
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    scan = plan.scan
    _chunks[(len(scan.counts), heads, triton.cdiv(head_dim, _CHANNELS_PER_BLOCK))](
        *(x.contiguous(), dt.contiguous(), a, bc.contiguous(), state),
        # Without snapshots the plan wants none, and the pointer is not used.
        *(state if snapshots is None else snapshots, scan.starts, scan.counts),
        *(scan.snapshot_chunks, scan.snapshot_rows, output),
        SIZE=size,
        HEADS=heads,
        GROUPS=groups,
        HEAD_DIM=head_dim,
        WIDTH=width,
        BLOCK_C=max(_LEAST_BLOCK, triton.next_power_of_2(size)),
        BLOCK_P=_CHANNELS_PER_BLOCK,
        BLOCK_N=max(_LEAST_BLOCK, triton.next_power_of_2(width)),
        # Prefetching loads would exceed the shared memory at a width of 256.
        num_stages=1,
        num_warps=8,
    )
    return output


@triton.jit
def _update(
    x,
    dt,
    a,
    bc,
    pool,
    slots,
    target,
    rows,
    output,
    pool_stride,
    target_stride,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channel = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    column = tl.arange(0, BLOCK_N)
    in_channel, in_column = channel < HEAD_DIM, column < WIDTH
    in_state = in_channel[:, None] & in_column[None, :]
    place = (head * HEAD_DIM + channel[:, None]) * WIDTH + column[None, :]
    own = request * HEADS + head
    group = request * 2 * GROUPS + head // (HEADS // GROUPS)

    slot = tl.load(slots + request)
    state = tl.load(pool + slot * pool_stride + place, mask=in_state, other=0.0)
    values = tl.load(x + own * HEAD_DIM + channel, mask=in_channel, other=0.0)
    write = tl.load(bc + group * WIDTH + column, mask=in_column, other=0.0)
    read = tl.load(bc + (group + GROUPS) * WIDTH + column, mask=in_column, other=0.0)
    step = tl.load(dt + own)
    state = state * tl.exp(step * tl.load(a + head))
    state += (step * values)[:, None] * write[None, :]
    row = tl.load(rows + request)
    tl.store(target + row * target_stride + place, state, mask=in_state)
    mixed = tl.sum(state * read[None, :], axis=1)
    tl.store(output + own * HEAD_DIM + channel, mixed, mask=in_channel)


@triton.jit
def _chunks(
    x,
    dt,
    a,
    bc,
    states,
    snapshots,
    starts,
    counts,
    snapshot_chunks,
    snapshot_rows,
    output,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rank = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channel = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    column = tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_C)
    in_row, in_channel, in_column = row < SIZE, channel < HEAD_DIM, column < WIDTH
    in_state = in_channel[:, None] & in_column[None, :]
    in_values = in_row[:, None] & in_channel[None, :]
    in_columns = in_row[:, None] & in_column[None, :]
    place = (head * HEAD_DIM + channel[:, None]) * WIDTH + column[None, :]
    state_size = HEADS * HEAD_DIM * WIDTH
    state = tl.load(states + rank * state_size + place, mask=in_state, other=0.0)
    rate = tl.load(a + head)

    for chunk in range(0, tl.load(counts + rank)):
        token = (tl.load(starts + chunk) + rank) * SIZE + row
        step = tl.load(dt + token * HEADS + head, mask=in_row, other=0.0)
        place_x = ((token * HEADS + head) * HEAD_DIM)[:, None] + channel[None, :]
        values = tl.load(x + place_x, mask=in_values, other=0.0)
        group = (token * 2 * GROUPS + head // (HEADS // GROUPS)) * WIDTH
        place_b = group[:, None] + column[None, :]
        write = tl.load(bc + place_b, mask=in_columns, other=0.0)
        read = tl.load(bc + place_b + GROUPS * WIDTH, mask=in_columns, other=0.0)

        total = tl.sum(step * rate, axis=0)
        grown = tl.cumsum(step * rate, axis=0)
        lower = row[:, None] >= row[None, :]
        # Masked before exp, because above the diagonal the exponent is positive.
        decay = tl.exp(tl.where(lower, grown[:, None] - grown[None, :], 0.0)) * step[None, :]
        decay = tl.where(lower, decay, 0.0)
        scores = tl.dot(read, tl.trans(write), input_precision="tf32x3") * decay
        mixed = tl.dot(read, tl.trans(state), input_precision="tf32x3") * tl.exp(grown)[:, None]
        mixed += tl.dot(scores, values, input_precision="tf32x3")
        tl.store(output + place_x, mixed, mask=in_values)

        fading = values * (tl.exp(total - grown) * step)[:, None]
        state = state * tl.exp(total)
        state += tl.dot(tl.trans(fading), write, input_precision="tf32x3")
        if tl.load(snapshot_chunks + rank) == chunk:
            copy = tl.load(snapshot_rows + rank) * state_size + place
            tl.store(snapshots + copy, state, mask=in_state)
    tl.store(states + rank * state_size + place, state, mask=in_state)
