"""The gated delta rule in Triton: gates, the in-place decode step by slot, chunks of a prefill.

In a decode step, a program handles some value channels of one head of one request.  A prefill runs
three kernels.  The first computes, for all chunks in parallel, what each chunk reads and writes
apart from the state before it.  The second computes the states chunk by chunk, some value channels
per program.  The third computes the outputs, again for all chunks in parallel.  Tokens are read and
written in the layouts of the convolution and the model, states by slot.
Source: Yang et al. 2024, arXiv 2412.06464; the work is divided as in fla's
``fused_recurrent_gated_delta_rule`` and ``chunk_gated_delta_rule``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.triton_chunks import rows_of_chunk
from hybridbench.engine.kernels.triton_products import LEAST_BLOCK, product, sum_of, term_of

_VALUES_PER_BLOCK = 32


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
    # Kahan's log1p keeps the digits of x that 1 + x loses; slow decays depend on them.
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
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    slots: Tensor,
    plan: ChunkPlan,
    track_slots: Tensor | None = None,
) -> Tensor:
    """See the reference.

    Segments of chunks run one after another and pass the state on through the pool, to bound
    memory.  With 32 heads and 128 keys and values, the intermediate results of one chunk of 64
    tokens take 4 MiB, and those of a whole prefill of 8,192 tokens would take 512 MiB.
    """
    tokens, heads = g.shape
    (key_heads, key_dim), value_dim = qk.shape[2:], v.shape[2]
    assert qk.stride()[1:] == (key_heads * key_dim, key_dim, 1), (
        "only rows may have gaps between them"
    )
    assert v.stride()[1:] == (value_dim, 1), "only rows may have gaps between them"
    assert pool[0].is_contiguous()
    output = torch.empty((tokens, heads, value_dim), dtype=pool.dtype, device=v.device)
    size = plan.chunk_size
    chunks = max(segment.chunks for segment in plan.segments)
    reads = pool.new_empty(chunks, heads, size, key_dim)
    # Holds what the tokens would write with a state of 0 before their chunk; the second kernel
    # replaces it with what they do write.
    writes = pool.new_empty(chunks, heads, size, value_dim)
    states = pool.new_empty(chunks, heads, key_dim, value_dim)
    strides = (tokens, qk.stride(0), v.stride(0))
    shape = {"SIZE": size, "HEADS": heads, "KEY_HEADS": key_heads}
    shape |= {"KEY_DIM": key_dim, "VALUE_DIM": value_dim, "TERM": term_of(v), "SUM": sum_of(pool)}
    shape |= {"BLOCK_C": max(LEAST_BLOCK, triton.next_power_of_2(size))}
    block_k, block_v = (
        max(LEAST_BLOCK, triton.next_power_of_2(width)) for width in (key_dim, value_dim)
    )
    levels = (shape["BLOCK_C"] // 16).bit_length() - 1
    # Compiled for sm_90, larger blocks would spill registers.  In the second kernel, so would
    # prefetched loads and blocks of fewer than 64 keys, the rows of a warp group's product.
    small, wide, keys = min(32, block_v), min(64, block_v), min(32, block_k)
    g, beta = g.contiguous(), beta.contiguous()
    for segment in plan.segments:
        scan, places = segment.scan, slice(segment.begin * size, None)
        inputs = (qk, v, g, beta, plan.conv_rows[places], plan.gate_rows[places])
        _within_chunks[(segment.chunks, heads)](
            *inputs, reads, writes, *strides, **shape, BLOCK_K=keys, BLOCK_V=small, LEVELS=levels
        )
        _from_chunk_to_chunk[(len(scan.counts), heads, triton.cdiv(value_dim, small))](
            *(*inputs, reads, writes, pool, slots, states, scan.starts, scan.counts),
            # Without ``track_slots`` the plan has no snapshots, and this pointer is never read.
            *(slots if track_slots is None else track_slots, scan.snapshot_chunks),
            *(scan.snapshot_rows, *strides, pool.stride(0)),
            **shape,
            BLOCK_K=min(64, block_k),
            BLOCK_V=small,
            num_stages=1,
        )
        _outputs[(segment.chunks, heads, triton.cdiv(value_dim, wide))](
            *inputs, writes, states, output, *strides, **shape, BLOCK_K=keys, BLOCK_V=wide
        )
    return output


@triton.jit
def _within_chunks(
    qk,
    v,
    g,
    beta,
    conv_rows,
    gate_rows,
    reads,
    writes,
    tokens,
    qk_stride,
    v_stride,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TERM: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Compute W, which reads the state before a chunk, and U, the writes if that state is 0."""
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.arange(0, BLOCK_C)
    token, source, in_row = rows_of_chunk(conv_rows, gate_rows, chunk, row, tokens, SIZE)
    strength = tl.load(beta + token * HEADS + head, mask=in_row, other=0.0)
    grown = tl.cumsum(tl.load(g + token * HEADS + head, mask=in_row, other=0.0), axis=0)
    keys = qk + source[:, None] * qk_stride + (KEY_HEADS + head // (HEADS // KEY_HEADS)) * KEY_DIM
    among_keys = tl.zeros([BLOCK_C, BLOCK_C], dtype=SUM)
    for begin in range(0, KEY_DIM, BLOCK_K):
        key = begin + tl.arange(0, BLOCK_K)[None, :]
        k = tl.load(keys + key, mask=in_row[:, None] & (key < KEY_DIM), other=0.0)
        among_keys += product(k, tl.trans(k), TERM, SUM)
    among_keys *= _decay_within(grown, row) * strength[:, None]
    inverse = _invert_unit_lower(among_keys, BLOCK_C, LEVELS) * strength[None, :]

    own = ((chunk * HEADS + head) * SIZE + row)[:, None]
    in_place = (row < SIZE)[:, None]
    for begin in range(0, VALUE_DIM, BLOCK_V):
        value = begin + tl.arange(0, BLOCK_V)[None, :]
        place = v + source[:, None] * v_stride + head * VALUE_DIM + value
        new = tl.load(place, mask=in_row[:, None] & (value < VALUE_DIM), other=0.0)
        written = product(inverse, new, TERM, SUM)
        tl.store(writes + own * VALUE_DIM + value, written, mask=in_place & (value < VALUE_DIM))
    inverse *= tl.exp(grown)[None, :]
    for begin in range(0, KEY_DIM, BLOCK_K):
        key = begin + tl.arange(0, BLOCK_K)[None, :]
        k = tl.load(keys + key, mask=in_row[:, None] & (key < KEY_DIM), other=0.0)
        read = product(inverse, k, TERM, SUM)
        tl.store(reads + own * KEY_DIM + key, read, mask=in_place & (key < KEY_DIM))


@triton.jit
def _from_chunk_to_chunk(
    qk,
    v,
    g,
    beta,
    conv_rows,
    gate_rows,
    reads,
    writes,
    pool,
    slots,
    states,
    starts,
    counts,
    track_slots,
    snapshot_chunks,
    snapshot_rows,
    tokens,
    qk_stride,
    v_stride,
    pool_stride,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TERM: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Compute the state before each chunk of a request, and what the chunk's tokens write to it."""
    rank = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    row = tl.arange(0, BLOCK_C)
    in_writes = (row < SIZE)[:, None] & (value < VALUE_DIM)[None, :]
    size = KEY_DIM * VALUE_DIM
    slot = pool + tl.load(slots + rank) * pool_stride + head * size
    # Split into blocks of keys: there are not enough registers for products with all of them.
    state = _load_state(slot, value, KEY_DIM, VALUE_DIM, BLOCK_K)
    wanted = tl.load(snapshot_chunks + rank)
    for index in range(0, tl.load(counts + rank)):
        chunk = tl.load(starts + index) + rank
        token, source, in_row = rows_of_chunk(conv_rows, gate_rows, chunk, row, tokens, SIZE)
        log_decay = tl.load(g + token * HEADS + head, mask=in_row, other=0.0)
        total = tl.sum(log_decay, axis=0)
        own = chunk * HEADS + head
        write_place = writes + own * SIZE * VALUE_DIM + row[:, None] * VALUE_DIM + value[None, :]
        written = tl.load(write_place, mask=in_writes, other=0.0)
        _store_state(states + own * size, state, value, KEY_DIM, VALUE_DIM, BLOCK_K)
        for block in tl.static_range(0, len(state)):
            key = (block * BLOCK_K + tl.arange(0, BLOCK_K))[None, :]
            in_reads = (row < SIZE)[:, None] & (key < KEY_DIM)
            read_place = reads + own * SIZE * KEY_DIM + row[:, None] * KEY_DIM + key
            read = tl.load(read_place, mask=in_reads, other=0.0)
            written -= product(read, state[block], TERM, SUM)
        tl.store(write_place, written, mask=in_writes)
        keys = qk + source[:, None] * qk_stride
        keys += (KEY_HEADS + head // (HEADS // KEY_HEADS)) * KEY_DIM
        faded = written * tl.exp(total - tl.cumsum(log_decay, axis=0))[:, None]
        after = ()
        for block in tl.static_range(0, len(state)):
            key = (block * BLOCK_K + tl.arange(0, BLOCK_K))[None, :]
            k = tl.load(keys + key, mask=in_row[:, None] & (key < KEY_DIM), other=0.0)
            added = product(tl.trans(k), faded, TERM, SUM)
            after += (state[block] * tl.exp(total) + added,)  # type: ignore[assignment]
        state = after
        if wanted == index:
            copy = tl.load(track_slots + tl.load(snapshot_rows + rank))
            copied = pool + copy * pool_stride + head * size
            _store_state(copied, state, value, KEY_DIM, VALUE_DIM, BLOCK_K)
    _store_state(slot, state, value, KEY_DIM, VALUE_DIM, BLOCK_K)


@triton.jit
def _place_in_state(
    begin, value, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Return the offsets of a block of keys and values in a head's state, and their mask."""
    key = begin + tl.arange(0, BLOCK_K)
    inside = (key < KEY_DIM)[:, None] & (value < VALUE_DIM)[None, :]
    return key[:, None] * VALUE_DIM + value[None, :], inside


@triton.jit
def _load_state(
    source, value, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_K: tl.constexpr
):
    state = ()
    for begin in tl.static_range(0, KEY_DIM, BLOCK_K):
        place, inside = _place_in_state(begin, value, KEY_DIM, VALUE_DIM, BLOCK_K)
        block = tl.load(source + place, mask=inside, other=0.0)
        state += (block,)  # type: ignore[assignment]
    return state


@triton.jit
def _store_state(
    target, state, value, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_K: tl.constexpr
):
    for block in tl.static_range(0, len(state)):
        place, inside = _place_in_state(block * BLOCK_K, value, KEY_DIM, VALUE_DIM, BLOCK_K)
        tl.store(target + place, state[block], mask=inside)


@triton.jit
def _outputs(
    qk,
    v,
    g,
    beta,
    conv_rows,
    gate_rows,
    writes,
    states,
    output,
    tokens,
    qk_stride,
    v_stride,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TERM: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Compute what a chunk's tokens read from the state before it and from each other's writes."""
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = (tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V))[None, :]
    row = tl.arange(0, BLOCK_C)
    token, source, in_row = rows_of_chunk(conv_rows, gate_rows, chunk, row, tokens, SIZE)
    grown = tl.cumsum(tl.load(g + token * HEADS + head, mask=in_row, other=0.0), axis=0)
    queries = qk + source[:, None] * qk_stride + head // (HEADS // KEY_HEADS) * KEY_DIM
    own = chunk * HEADS + head
    scores = tl.zeros([BLOCK_C, BLOCK_C], dtype=SUM)
    mixed = tl.zeros([BLOCK_C, BLOCK_V], dtype=SUM)
    for begin in range(0, KEY_DIM, BLOCK_K):
        key = begin + tl.arange(0, BLOCK_K)
        in_keys = in_row[:, None] & (key < KEY_DIM)[None, :]
        q = tl.load(queries + key[None, :], mask=in_keys, other=0.0)
        k = tl.load(queries + KEY_HEADS * KEY_DIM + key[None, :], mask=in_keys, other=0.0)
        place = (own * KEY_DIM + key[:, None]) * VALUE_DIM + value
        in_state = (key < KEY_DIM)[:, None] & (value < VALUE_DIM)
        state = tl.load(states + place, mask=in_state, other=0.0)
        scores += product(q, tl.trans(k), TERM, SUM)
        mixed += product(q, state, TERM, SUM)
    scores *= _decay_within(grown, row)
    place = (own * SIZE + row)[:, None] * VALUE_DIM + value
    in_values = in_row[:, None] & (value < VALUE_DIM)
    written = tl.load(writes + place, mask=in_values, other=0.0)
    mixed = mixed * tl.exp(grown)[:, None] + product(scores, written, TERM, SUM)
    place = (token * HEADS + head)[:, None] * VALUE_DIM + value
    tl.store(output + place, mixed, mask=in_values)


@triton.jit
def _decay_within(grown, row):
    """Return the decay factors from token j to token i: [C, C], lower triangular."""
    lower = row[:, None] >= row[None, :]
    # Masked before exp, because above the diagonal the exponent is positive.
    decay = tl.exp(tl.where(lower, grown[:, None] - grown[None, :], 0.0))
    return tl.where(lower, decay, 0.0)


@triton.jit
def _invert_unit_lower(matrix, BLOCK_C: tl.constexpr, LEVELS: tl.constexpr):
    """Return the inverse of ``I + strictly_lower(matrix)``.

    Forward substitution inverts all diagonal blocks of 16 rows in parallel.  Each level then merges
    neighbouring diagonal blocks ``X`` and ``Z`` of the inverse.  With ``Y`` the block of the matrix
    below ``X`` and left of ``Z``, the same block of the inverse is ``-Z Y X``.
    """
    row = tl.arange(0, BLOCK_C)
    in_block = row[:, None] // 16 == row[None, :] // 16
    inverse = tl.where(row[:, None] == row[None, :], 1.0, 0.0).to(matrix.dtype)
    for index in range(1, 16):
        is_row = (row % 16 == index)[:, None] & in_block
        # Each column has a single entry in these rows, so the sum picks it.
        weight = tl.sum(tl.where(is_row & (row[:, None] > row[None, :]), matrix, 0.0), axis=0)
        known = tl.sum(weight[:, None] * inverse, axis=0)
        inverse -= tl.where(is_row, known[None, :], 0.0)
    for level in range(LEVELS):
        rows = 16 << level
        pair = row // (2 * rows)
        is_second = row // rows % 2 == 1
        corner = (pair[:, None] == pair[None, :]) & is_second[:, None] & ~is_second[None, :]
        below = tl.dot(inverse, tl.where(corner, matrix, 0.0), input_precision="tf32x3")
        inverse -= tl.dot(below, inverse, input_precision="tf32x3")
    return inverse
