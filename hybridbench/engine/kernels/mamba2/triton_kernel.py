"""Mamba2 in Triton: the in-place decode step by slot, and the chunks of a prefill.

In a decode step, a program handles some channels of one head of one request.  A prefill processes
all chunks in parallel, except for one sequential pass that computes the states between chunks from
each chunk's contribution.  Tokens are read and written in the layouts of the convolution and the
model, states by slot.  Source: Dao and Gu 2024, arXiv 2405.21060, section 7.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.triton_chunks import rows_of_chunk
from hybridbench.engine.kernels.triton_products import LEAST_BLOCK, product, sum_of, term_of

_CHANNELS_PER_BLOCK = 32
_NUMBERS_PER_BLOCK = 1024


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
    d: Tensor,
    bc: Tensor,
    pool: Tensor,
    slots: Tensor,
    plan: ChunkPlan,
    track_slots: Tensor | None = None,
) -> Tensor:
    """See the reference."""
    tokens, heads = dt.shape
    head_dim, (groups, width) = x.shape[2], bc.shape[2:]
    assert x.stride()[1:] == (head_dim, 1), "only rows may have gaps between them"
    assert bc.stride()[1:] == (groups * width, width, 1), "only rows may have gaps between them"
    assert pool[0].is_contiguous()
    output = torch.empty((tokens, heads, head_dim), dtype=dt.dtype, device=dt.device)
    chunks, size, scan = sum(plan.alive), plan.chunk_size, plan.scan
    # Holds what each chunk adds to the state; ``_states_before`` replaces it with the state before.
    states = pool.new_empty(chunks, heads, head_dim, width)
    fades = pool.new_empty(chunks, heads)
    inputs = (x, dt.contiguous(), a, bc, plan.conv_rows, plan.gate_rows)
    strides = (tokens, x.stride(0), bc.stride(0))
    shape = {"SIZE": size, "HEADS": heads, "GROUPS": groups, "HEAD_DIM": head_dim, "WIDTH": width}
    shape |= {"TERM": term_of(x), "SUM": sum_of(pool)}
    blocks = {
        "BLOCK_C": max(LEAST_BLOCK, triton.next_power_of_2(size)),
        # Compiled for sm_90, twice as many columns at a time would spill registers.
        "BLOCK_P": min(64, max(LEAST_BLOCK, triton.next_power_of_2(head_dim))),
        "BLOCK_N": min(32, max(LEAST_BLOCK, triton.next_power_of_2(width))),
    }
    over_channels = triton.cdiv(head_dim, blocks["BLOCK_P"])
    over_columns = triton.cdiv(width, blocks["BLOCK_N"])
    _added[(chunks, heads, over_channels * over_columns)](
        *inputs, states, fades, *strides, **shape, **blocks
    )
    numbers = heads * head_dim * width
    _states_before[(len(slots), triton.cdiv(numbers, _NUMBERS_PER_BLOCK))](
        *(pool, slots, states, fades, scan.starts, scan.counts),
        # Without ``track_slots`` the plan has no snapshots, and this pointer is never read.
        *(slots if track_slots is None else track_slots, scan.snapshot_chunks, scan.snapshot_rows),
        pool.stride(0),
        HEADS=heads,
        NUMBERS_OF_HEAD=head_dim * width,
        BLOCK=_NUMBERS_PER_BLOCK,
    )
    _outputs[(chunks, heads, over_channels)](
        *inputs, d, states, output, *strides, **shape, **blocks
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
def _added(
    x,
    dt,
    a,
    bc,
    conv_rows,
    gate_rows,
    states,
    fades,
    tokens,
    x_stride,
    bc_stride,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TERM: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute what a chunk adds to the state, and the factor by which the old state decays."""
    over_columns: tl.constexpr = (WIDTH + BLOCK_N - 1) // BLOCK_N
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channel = tl.program_id(2) // over_columns * BLOCK_P + tl.arange(0, BLOCK_P)
    column = tl.program_id(2) % over_columns * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_C)
    in_column, in_channel = column < WIDTH, channel < HEAD_DIM
    token, source, in_row = rows_of_chunk(conv_rows, gate_rows, chunk, row, tokens, SIZE)
    step, grown, total = _decay(dt, a, token, head, in_row, HEADS)
    place = source[:, None] * x_stride + head * HEAD_DIM + channel[None, :]
    values = tl.load(x + place, mask=in_row[:, None] & in_channel[None, :], other=0.0)
    place = source[:, None] * bc_stride + head // (HEADS // GROUPS) * WIDTH + column[None, :]
    write = tl.load(bc + place, mask=in_row[:, None] & in_column[None, :], other=0.0)
    fading = values.to(SUM) * (tl.exp(total - grown) * step)[:, None]
    added = product(tl.trans(fading), write, TERM, SUM)
    own = chunk * HEADS + head
    place = (own * HEAD_DIM + channel[:, None]) * WIDTH + column[None, :]
    tl.store(states + place, added, mask=in_channel[:, None] & in_column[None, :])
    if tl.program_id(2) == 0:
        tl.store(fades + own, tl.exp(total))


@triton.jit
def _states_before(
    pool,
    slots,
    states,
    fades,
    starts,
    counts,
    track_slots,
    snapshot_chunks,
    snapshot_rows,
    pool_stride,
    HEADS: tl.constexpr,
    NUMBERS_OF_HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Replace each chunk's contribution with the state before it, chunk by chunk of a request."""
    rank = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = number < HEADS * NUMBERS_OF_HEAD
    size = HEADS * NUMBERS_OF_HEAD
    head = tl.minimum(number // NUMBERS_OF_HEAD, HEADS - 1)
    slot = tl.load(slots + rank)
    state = tl.load(pool + slot * pool_stride + number, mask=inside, other=0.0)
    wanted = tl.load(snapshot_chunks + rank)
    for index in range(0, tl.load(counts + rank)):
        chunk = tl.load(starts + index) + rank
        place = states + chunk * size + number
        added = tl.load(place, mask=inside, other=0.0)
        tl.store(place, state, mask=inside)
        state = state * tl.load(fades + chunk * HEADS + head) + added
        if wanted == index:
            copy = tl.load(track_slots + tl.load(snapshot_rows + rank))
            tl.store(pool + copy * pool_stride + number, state, mask=inside)
    tl.store(pool + slot * pool_stride + number, state, mask=inside)


@triton.jit
def _outputs(
    x,
    dt,
    a,
    bc,
    conv_rows,
    gate_rows,
    d,
    states,
    output,
    tokens,
    x_stride,
    bc_stride,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TERM: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute what a chunk's tokens read from the state before it and from each other."""
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channel = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = tl.arange(0, BLOCK_C)
    in_channel = channel < HEAD_DIM
    token, source, in_row = rows_of_chunk(conv_rows, gate_rows, chunk, row, tokens, SIZE)
    step, grown, _ = _decay(dt, a, token, head, in_row, HEADS)
    group = source[:, None] * bc_stride + head // (HEADS // GROUPS) * WIDTH
    own = ((chunk * HEADS + head) * HEAD_DIM + channel[:, None]) * WIDTH
    scores = tl.zeros([BLOCK_C, BLOCK_C], dtype=SUM)
    mixed = tl.zeros([BLOCK_C, BLOCK_P], dtype=SUM)
    for begin in range(0, WIDTH, BLOCK_N):
        column = begin + tl.arange(0, BLOCK_N)[None, :]
        in_columns = in_row[:, None] & (column < WIDTH)
        in_state = in_channel[:, None] & (column < WIDTH)
        write = tl.load(bc + group + column, mask=in_columns, other=0.0)
        read = tl.load(bc + group + GROUPS * WIDTH + column, mask=in_columns, other=0.0)
        state = tl.load(states + own + column, mask=in_state, other=0.0)
        scores += product(read, tl.trans(write), TERM, SUM)
        mixed += product(read, tl.trans(state), TERM, SUM)
    lower = row[:, None] >= row[None, :]
    # Masked before exp, because above the diagonal the exponent is positive.
    decay = tl.exp(tl.where(lower, grown[:, None] - grown[None, :], 0.0)) * step[None, :]
    scores *= tl.where(lower, decay, 0.0)
    place = source[:, None] * x_stride + head * HEAD_DIM + channel[None, :]
    in_values = in_row[:, None] & in_channel[None, :]
    values = tl.load(x + place, mask=in_values, other=0.0)
    mixed = mixed * tl.exp(grown)[:, None] + product(scores, values, TERM, SUM)
    mixed += values.to(SUM) * tl.load(d + head)
    place = (token * HEADS + head)[:, None] * HEAD_DIM + channel[None, :]
    tl.store(output + place, mixed, mask=in_values)


@triton.jit
def _decay(dt, a, token, head, in_row, HEADS: tl.constexpr):
    """Return a chunk's steps (dt), the log decay up to each, and the total log decay."""
    step = tl.load(dt + token * HEADS + head, mask=in_row, other=0.0)
    rates = step * tl.load(a + head)
    return step, tl.cumsum(rates, axis=0), tl.sum(rates, axis=0)
