"""The gated delta rule in Triton: gates, the decode step in place by slot, chunks of a prefill.

A program handles some value channels of one head of one request; in a prefill it keeps their state
in registers from chunk to chunk.  A float32 product is the sum of three tf32 products, which keeps
its precision; written out, the code would take a minute to compile.  Source: Yang et al. 2024,
arXiv 2412.06464; the decode step divides the work as fla's ``fused_recurrent_gated_delta_rule``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan

_VALUES_PER_BLOCK = 32
# The smallest side of a matrix product in Triton.
_LEAST_BLOCK = 16


def gdn_gating(a: Tensor, b: Tensor, decay: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """See the reference."""
    tokens, heads = a.shape
    assert a.stride(1) == b.stride(1) == 1, "only tokens may be apart"
    g, beta = (torch.empty(a.shape, dtype=decay.dtype, device=a.device) for _ in range(2))
    if tokens:
        block = triton.next_power_of_2(heads)
        _gating[(tokens,)](
            a, b, decay, dt_bias, g, beta, a.stride(0), b.stride(0), HEADS=heads, BLOCK=block
        )
    return g, beta


@triton.jit
def _gating(
    a,
    b,
    decay,
    dt_bias,
    g,
    beta,
    a_stride,
    b_stride,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK)
    inside = head < HEADS
    rate = tl.load(decay + head, mask=inside, other=0.0)
    bias = tl.load(dt_bias + head, mask=inside, other=0.0)
    step = tl.load(a + token * a_stride + head, mask=inside, other=0.0).to(rate.dtype) + bias
    strength = tl.load(b + token * b_stride + head, mask=inside, other=0.0).to(rate.dtype)
    # log(1 + x) with the digits of x that 1 + x loses (Kahan), on which slow decays depend.
    grown = tl.exp(tl.minimum(step, 20.0))
    sum_ = 1.0 + grown
    exact = sum_ == 1.0
    log1p = tl.where(exact, grown, tl.log(sum_) * (grown / tl.where(exact, 1.0, sum_ - 1.0)))
    softplus = tl.where(step > 20.0, step, log1p)
    tl.store(g + token * HEADS + head, softplus * rate, mask=inside)
    tl.store(beta + token * HEADS + head, 1.0 / (1.0 + tl.exp(-strength)), mask=inside)


def gated_delta_rule_update(
    qk: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    slots: Tensor,
    into: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """See the reference."""
    batch, heads, value_dim = v.shape
    key_dim = qk.shape[3]
    target, rows = (pool, slots) if into is None else into
    assert v.stride()[1:] == (value_dim, 1), "only requests may be apart"
    assert pool[0].is_contiguous()
    assert target[0].is_contiguous()
    output = torch.empty(v.shape, dtype=pool.dtype, device=v.device)
    if batch:
        _update[(batch, heads, triton.cdiv(value_dim, _VALUES_PER_BLOCK))](
            *(qk.contiguous(), v, g.contiguous(), beta.contiguous()),
            *(pool, slots, target, rows, output),
            *(v.stride(0), pool.stride(0), target.stride(0)),
            HEADS=heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            BLOCK_K=triton.next_power_of_2(key_dim),
            BLOCK_V=_VALUES_PER_BLOCK,
        )
    return output


@triton.jit
def _update(
    qk,
    v,
    g,
    beta,
    pool,
    slots,
    target,
    rows,
    output,
    v_stride,
    pool_stride,
    target_stride,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    key = tl.arange(0, BLOCK_K)
    in_value, in_key = value < VALUE_DIM, key < KEY_DIM
    in_state = in_key[:, None] & in_value[None, :]
    place = head * KEY_DIM * VALUE_DIM + key[:, None] * VALUE_DIM + value[None, :]
    gate = request * HEADS + head

    slot = tl.load(slots + request)
    state = tl.load(pool + slot * pool_stride + place, mask=in_state, other=0.0)
    q = tl.load(qk + gate * 2 * KEY_DIM + key, mask=in_key, other=0.0)
    k = tl.load(qk + (gate * 2 + 1) * KEY_DIM + key, mask=in_key, other=0.0)
    new = tl.load(v + request * v_stride + head * VALUE_DIM + value, mask=in_value, other=0.0)

    state = state * tl.exp(tl.load(g + gate))
    known = tl.sum(state * k[:, None], axis=0)
    delta = tl.load(beta + gate) * (new - known)
    state = state + k[:, None] * delta[None, :]
    mixed = tl.sum(state * q[:, None], axis=0)
    row = tl.load(rows + request)
    tl.store(target + row * target_stride + place, state, mask=in_state)
    tl.store(output + gate * VALUE_DIM + value, mixed, mask=in_value)


def chunk_gated_delta_rule(
    qk: Tensor,
    v: Tensor,
    gates: Tensor,
    state: Tensor,
    plan: ChunkPlan,
    snapshots: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the reference."""
    size, heads, value_dim = v.shape[1:]
    key_heads, key_dim = qk.shape[3:]
    assert v.stride()[2:] == (value_dim, 1), "only tokens may be apart"
    assert v.stride(0) == size * v.stride(1), "tokens are evenly apart"
    assert state.is_contiguous()
    output = torch.empty(v.shape, dtype=state.dtype, device=v.device)
    shape = (v.shape[0], heads, size, size)
    inverse, attention = (torch.empty(shape, dtype=state.dtype, device=v.device) for _ in range(2))
    scan = plan.scan
    qk, gates = qk.contiguous(), gates.contiguous()
    sizes = {
        "SIZE": size,
        "HEADS": heads,
        "KEY_HEADS": key_heads,
        "KEY_DIM": key_dim,
        "BLOCK_C": max(_LEAST_BLOCK, triton.next_power_of_2(size)),
        "BLOCK_K": max(_LEAST_BLOCK, triton.next_power_of_2(key_dim)),
    }
    levels = sizes["BLOCK_C"].bit_length() - 1
    _within_chunks[(v.shape[0], heads)](qk, gates, inverse, attention, LEVELS=levels, **sizes)
    _from_chunk_to_chunk[(len(scan.counts), heads, triton.cdiv(value_dim, _VALUES_PER_BLOCK))](
        # Without snapshots the plan wants none, and the pointer is not used.
        *(qk, v, gates, inverse, attention, state, state if snapshots is None else snapshots),
        *(scan.starts, scan.counts, scan.snapshot_chunks, scan.snapshot_rows, output, v.stride(1)),
        VALUE_DIM=value_dim,
        BLOCK_V=_VALUES_PER_BLOCK,
        # Prefetching loads gains nothing here and takes twice the shared memory.
        num_stages=1,
        **sizes,
    )
    return output, state


@triton.jit
def _within_chunks(
    qk,
    gates,
    inverses,
    attentions,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """The part that needs no state, for all chunks at once: ``(I + A)^-1`` and ``(Q K') . D``."""
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.arange(0, BLOCK_C)
    in_row = row < SIZE
    key = tl.arange(0, BLOCK_K)
    in_keys = in_row[:, None] & (key < KEY_DIM)[None, :]
    token = chunk * SIZE + row
    log_decay, beta = _load_gates(gates, token * 2 * HEADS + head, in_row, HEADS)
    place_q = _place_of_queries(token, head, key, HEADS, KEY_HEADS, KEY_DIM)
    q = tl.load(qk + place_q, mask=in_keys, other=0.0)
    k = tl.load(qk + place_q + KEY_HEADS * KEY_DIM, mask=in_keys, other=0.0)

    decay = _decay_within(tl.cumsum(log_decay, axis=0), row)
    place = _place_of_square(chunk * HEADS + head, row, SIZE)
    in_square = in_row[:, None] & in_row[None, :]
    attention = tl.dot(q, tl.trans(k), input_precision="tf32x3") * decay
    tl.store(attentions + place, attention, mask=in_square)
    among_keys = tl.dot(k, tl.trans(k), input_precision="tf32x3") * decay * beta[:, None]
    tl.store(inverses + place, _invert_unit_lower(among_keys, BLOCK_C, LEVELS), mask=in_square)


@triton.jit
def _from_chunk_to_chunk(
    qk,
    v,
    gates,
    inverses,
    attentions,
    states,
    snapshots,
    starts,
    counts,
    snapshot_chunks,
    snapshot_rows,
    output,
    v_stride,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    rank = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    key = tl.arange(0, BLOCK_K)
    row = tl.arange(0, BLOCK_C)
    in_row, in_key, in_value = row < SIZE, key < KEY_DIM, value < VALUE_DIM
    in_state = in_key[:, None] & in_value[None, :]
    in_keys = in_row[:, None] & in_key[None, :]
    in_values = in_row[:, None] & in_value[None, :]
    in_square = in_row[:, None] & in_row[None, :]
    place = (head * KEY_DIM + key[:, None]) * VALUE_DIM + value[None, :]
    state_size = HEADS * KEY_DIM * VALUE_DIM
    state = tl.load(states + rank * state_size + place, mask=in_state, other=0.0)

    for number in range(0, tl.load(counts + rank)):
        chunk = tl.load(starts + number) + rank
        token = chunk * SIZE + row
        log_decay, beta = _load_gates(gates, token * 2 * HEADS + head, in_row, HEADS)
        place_q = _place_of_queries(token, head, key, HEADS, KEY_HEADS, KEY_DIM)
        k = tl.load(qk + place_q + KEY_HEADS * KEY_DIM, mask=in_keys, other=0.0)
        place_v = token[:, None] * v_stride + head * VALUE_DIM + value[None, :]
        new = tl.load(v + place_v, mask=in_values, other=0.0)
        square = _place_of_square(chunk * HEADS + head, row, SIZE)
        inverse = tl.load(inverses + square, mask=in_square, other=0.0)

        total = tl.sum(log_decay, axis=0)
        grown = tl.cumsum(log_decay, axis=0)
        known = tl.dot(k, state, input_precision="tf32x3") * tl.exp(grown)[:, None]
        written = tl.dot(inverse, beta[:, None] * (new - known), input_precision="tf32x3")
        q = tl.load(qk + place_q, mask=in_keys, other=0.0)
        mixed = tl.dot(q, state, input_precision="tf32x3") * tl.exp(grown)[:, None]
        attention = tl.load(attentions + square, mask=in_square, other=0.0)
        mixed += tl.dot(attention, written, input_precision="tf32x3")
        place_o = (token * HEADS + head)[:, None] * VALUE_DIM + value[None, :]
        tl.store(output + place_o, mixed, mask=in_values)

        faded = written * tl.exp(total - grown)[:, None]
        state = state * tl.exp(total)
        state += tl.dot(tl.trans(k), faded, input_precision="tf32x3")
        if tl.load(snapshot_chunks + rank) == number:
            copy = tl.load(snapshot_rows + rank) * state_size + place
            tl.store(snapshots + copy, state, mask=in_state)
    tl.store(states + rank * state_size + place, state, mask=in_state)


@triton.jit
def _load_gates(gates, gate, in_row, HEADS: tl.constexpr):
    """Log decay and write strength of a chunk's rows."""
    log_decay = tl.load(gates + gate, mask=in_row, other=0.0)
    return log_decay, tl.load(gates + gate + HEADS, mask=in_row, other=0.0)


@triton.jit
def _place_of_queries(
    token, head, key, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr
):
    """Offsets of the queries of ``head``; its keys are ``KEY_HEADS * KEY_DIM`` further."""
    key_head = head // (HEADS // KEY_HEADS)
    return (token * 2 * KEY_HEADS + key_head)[:, None] * KEY_DIM + key[None, :]


@triton.jit
def _place_of_square(number, row, SIZE: tl.constexpr):
    return number * SIZE * SIZE + row[:, None] * SIZE + row[None, :]


@triton.jit
def _decay_within(grown, row):
    """[C, C], lower triangular: the decay factor from token j to token i."""
    lower = row[:, None] >= row[None, :]
    # Masked before exp, because above the diagonal the exponent is positive.
    decay = tl.exp(tl.where(lower, grown[:, None] - grown[None, :], 0.0))
    return tl.where(lower, decay, 0.0)


@triton.jit
def _invert_unit_lower(matrix, BLOCK_C: tl.constexpr, LEVELS: tl.constexpr):
    """The inverse of ``I + strictly_lower(matrix)``, by diagonal blocks of 1, 2, 4, ... rows.

    For two diagonal blocks ``X`` and ``Z`` of the inverse, with the block ``Y`` of the matrix below
    ``X`` and left of ``Z``, the corner of the block twice as large is ``-Z Y X``.
    """
    row = tl.arange(0, BLOCK_C)
    inverse = tl.where(row[:, None] == row[None, :], 1.0, 0.0).to(matrix.dtype)
    for level in range(LEVELS):
        rows = 1 << level
        pair = row // (2 * rows)
        is_second = row // rows % 2 == 1
        corner = (pair[:, None] == pair[None, :]) & is_second[:, None] & ~is_second[None, :]
        below = tl.dot(inverse, tl.where(corner, matrix, 0.0), input_precision="tf32x3")
        inverse -= tl.dot(below, inverse, input_precision="tf32x3")
    return inverse
