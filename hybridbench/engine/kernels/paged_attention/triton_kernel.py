"""Grouped-query attention over keys and values stored by slot: online softmax in Triton.

A program handles the query heads that share a key head, so that it reads each key once for all of
them.  In a decode step it serves one request, in a prefill a tile of one request's new tokens.
Products are in the queries' dtype, sums in at least float32.
Source: Milakov and Gimelshein 2018, arXiv 1805.02867 (online softmax); the work is divided as in
SGLang's ``decode_attention``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan

_KEYS_PER_BLOCK = 32
# Rows and keys of a prefill's products on tensor cores; a row is one query head of one token.
_ROWS_PER_TILE = 128
_KEYS_PER_TILE = 64
# Wider heads take half as many keys: the shared memory of an A100 holds no more.
_WIDE_HEAD = 128
# Rows in single or double precision, which tensor cores do not multiply exactly.
_PRECISE_ROWS_PER_TILE = 32
# The smallest side of a matrix product in Triton.
_LEAST_BLOCK = 16


def decode_attention(
    q: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    plan: DecodePlan,
    sinks: Tensor | None = None,
) -> Tensor:
    """See the reference."""
    batch, heads, head_dim = q.shape
    key_heads = key_buffer.shape[1]
    q = q.contiguous()
    output = torch.empty_like(q)
    _decode[(batch, key_heads)](
        q,
        key_buffer,
        value_buffer,
        q if sinks is None else sinks,
        plan.starts,
        plan.lens,
        plan.slots,
        output,
        HAS_SINKS=sinks is not None,
        SCALE=head_dim**-0.5,
        KEY_HEADS=key_heads,
        GROUP=heads // key_heads,
        HEAD_DIM=head_dim,
        BLOCK_G=_block(heads // key_heads),
        BLOCK_D=_block(head_dim),
        BLOCK_N=_KEYS_PER_BLOCK,
        SUM=_sum_type(q.dtype),
    )
    return output


def extend_attention(
    q: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    plan: ExtendPlan,
    sinks: Tensor | None = None,
) -> Tensor:
    """See the reference."""
    _, heads, head_dim = q.shape
    key_heads = key_buffer.shape[1]
    q = q.contiguous()
    output = torch.empty_like(q)
    half = q.dtype.itemsize == 2
    group = triton.next_power_of_2(heads // key_heads)
    size = max((_ROWS_PER_TILE if half else _PRECISE_ROWS_PER_TILE) // group, 1)
    tiles = plan.tiles(size)
    if len(tiles.requests):
        _extend[(len(tiles.requests), key_heads)](
            *(q, key_buffer, value_buffer, q if sinks is None else sinks),
            *(tiles.requests, tiles.begins, tiles.spans, tiles.slots, output),
            HAS_SINKS=sinks is not None,
            WINDOW=plan.window or 0,
            SCALE=head_dim**-0.5,
            KEY_HEADS=key_heads,
            GROUP=heads // key_heads,
            HEAD_DIM=head_dim,
            TOKENS=size,
            BLOCK_G=group,
            BLOCK_D=_block(head_dim),
            BLOCK_N=_KEYS_PER_TILE if half and head_dim <= _WIDE_HEAD else _KEYS_PER_BLOCK,
            SUM=_sum_type(q.dtype),
            num_warps=8 if half else 4,
            num_stages=2,
        )
    return output


def _block(size: int) -> int:
    return max(_LEAST_BLOCK, 1 << (size - 1).bit_length())


def _sum_type(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32


@triton.jit
def _decode(
    q,
    key_buffer,
    value_buffer,
    sinks,
    starts,
    lens,
    slots,
    output,
    HAS_SINKS: tl.constexpr,
    SCALE: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SUM: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    start = tl.load(starts + request)
    length = tl.load(lens + request)
    member = tl.arange(0, BLOCK_G)
    dim = tl.arange(0, BLOCK_D)
    head = key_head * GROUP + member
    in_dim = dim < HEAD_DIM
    in_group = member < GROUP
    in_query = in_group[:, None] & in_dim[None, :]
    place_q = (request * KEY_HEADS * GROUP + head)[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(q + place_q, mask=in_query, other=0.0)

    peak = tl.full([BLOCK_G], float("-inf"), dtype=SUM)
    whole = tl.zeros([BLOCK_G], dtype=SUM)
    if HAS_SINKS:
        # A sink is a key without a value.
        peak = tl.load(sinks + head, mask=in_group, other=0.0).to(SUM)
        whole += 1.0
    mixed = tl.zeros([BLOCK_G, BLOCK_D], dtype=SUM)
    for first in range(0, length, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        seen = (position < length)[None, :] & in_group[:, None]
        peak, whole, mixed = _attend(
            *(query, key_buffer, value_buffer, slots + start, position, length, key_head, seen),
            *(peak, whole, mixed, True, SCALE, KEY_HEADS, HEAD_DIM, BLOCK_D),
        )
    _store_mixed(output + place_q, mixed, whole, in_query)


@triton.jit
def _extend(
    q,
    key_buffer,
    value_buffer,
    sinks,
    requests,
    begins,
    spans,
    slots,
    output,
    HAS_SINKS: tl.constexpr,
    WINDOW: tl.constexpr,
    SCALE: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SUM: tl.constexpr,
):
    tile, key_head = tl.program_id(0), tl.program_id(1)
    span, begin = spans + 4 * tl.load(requests + tile), tl.load(begins + tile)
    first, count = tl.load(span), tl.load(span + 1)
    prefix_len, start = tl.load(span + 2), tl.load(span + 3)
    # A row is one query head of one token.
    row = tl.arange(0, TOKENS * BLOCK_G)
    token = begin + row // BLOCK_G
    member = row % BLOCK_G
    head = key_head * GROUP + member
    dim = tl.arange(0, BLOCK_D)
    in_query = ((token < count) & (member < GROUP))[:, None] & (dim < HEAD_DIM)[None, :]
    place_q = ((first + token) * KEY_HEADS * GROUP + head)[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(q + place_q, mask=in_query, other=0.0)
    peak = tl.full([TOKENS * BLOCK_G], float("-inf"), dtype=SUM)
    whole = tl.zeros([TOKENS * BLOCK_G], dtype=SUM)
    if HAS_SINKS:
        peak = tl.load(sinks + head, mask=member < GROUP, other=0.0).to(SUM)
        whole += 1.0
    mixed = tl.zeros([TOKENS * BLOCK_G, BLOCK_D], dtype=SUM)
    own = prefix_len + token
    visible = prefix_len + tl.minimum(begin + TOKENS, count)
    hidden = begin * 0
    # The end of the whole blocks that the first query sees; all other queries see these too.
    seen_by_all = (prefix_len + begin + 1) // BLOCK_N * BLOCK_N
    if WINDOW:
        # The first query of a tile sees the furthest back.
        hidden = tl.maximum(prefix_len + begin + 1 - WINDOW, 0)
        seen_by_all = hidden
    for first_key in range(hidden, seen_by_all, BLOCK_N):
        position = first_key + tl.arange(0, BLOCK_N)
        peak, whole, mixed = _attend(
            *(query, key_buffer, value_buffer, slots + start, position, visible, key_head, None),
            *(peak, whole, mixed, False, SCALE, KEY_HEADS, HEAD_DIM, BLOCK_D),
        )
    for first_key in range(seen_by_all, visible, BLOCK_N):
        position = first_key + tl.arange(0, BLOCK_N)
        seen = position[None, :] <= own[:, None]
        if WINDOW:
            seen = seen & (position[None, :] > own[:, None] - WINDOW)
        peak, whole, mixed = _attend(
            *(query, key_buffer, value_buffer, slots + start, position, visible, key_head, seen),
            *(peak, whole, mixed, True, SCALE, KEY_HEADS, HEAD_DIM, BLOCK_D),
        )
    _store_mixed(output + place_q, mixed, whole, in_query)


@triton.jit
def _attend(
    query,
    key_buffer,
    value_buffer,
    slots,
    position,
    end,
    key_head,
    seen,
    peak,
    whole,
    mixed,
    MASKED: tl.constexpr,
    SCALE: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Add the keys at ``position``; if MASKED, only those before ``end`` that are ``seen``.

    ``mixed / whole`` is the attention output so far; ``peak``, the largest score, is subtracted
    from all scores.
    """
    dim = tl.arange(0, BLOCK_D)
    inside = position < end
    slot = tl.load(slots + position, mask=inside, other=0)
    place = (slot * KEY_HEADS + key_head)[:, None] * HEAD_DIM + dim[None, :]
    in_keys = (dim < HEAD_DIM)[None, :]
    if MASKED:
        in_keys = in_keys & inside[:, None]
    keys = tl.load(key_buffer + place, mask=in_keys, other=0.0)
    values = tl.load(value_buffer + place, mask=in_keys, other=0.0)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * SCALE
    if MASKED:
        scores = tl.where(seen & inside[None, :], scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    # A query that has not seen a key has no peak; an anchor of 0 keeps its shares at 0, not NaN.
    anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrunk = tl.exp(peak - anchor)
    shares = tl.exp(scores - anchor[:, None])
    added = tl.dot(shares.to(values.dtype), values, input_precision="ieee")
    return new_peak, whole * shrunk + tl.sum(shares, axis=1), mixed * shrunk[:, None] + added


@triton.jit
def _store_mixed(output, mixed, whole, inside):
    # Padding rows of a tile have seen no keys.
    tl.store(output, mixed / tl.where(whole == 0.0, 1.0, whole)[:, None], mask=inside)
