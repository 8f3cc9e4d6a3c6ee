"""Grouped-query attention over keys and values kept by slot: online softmax in Triton.

One program holds the queries that share a key head, so that each key is read once for all of them.
Source: Milakov and Gimelshein 2018, arXiv 1805.02867 (online softmax); the split of the work is
that of SGLang's ``decode_attention``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridbench.kernels.paged_attention.reference import DecodePlan

_KEYS_PER_BLOCK = 32
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
        plan.rows.starts,
        plan.rows.lens,
        plan.rows.slots,
        output,
        HAS_SINKS=sinks is not None,
        SCALE=head_dim**-0.5,
        KEY_HEADS=key_heads,
        GROUP=heads // key_heads,
        HEAD_DIM=head_dim,
        BLOCK_G=_block(heads // key_heads),
        BLOCK_D=_block(head_dim),
        BLOCK_N=_KEYS_PER_BLOCK,
        **_arithmetic(q.dtype),
    )
    return output


def _block(size: int) -> int:
    return max(_LEAST_BLOCK, 1 << (size - 1).bit_length())


def _arithmetic(dtype: torch.dtype) -> dict[str, object]:
    """In which type to add up, and how to multiply: tf32 keeps all the bits of half precision."""
    if dtype == torch.float64:
        return {"SUM": tl.float64, "PRECISION": "ieee"}
    return {"SUM": tl.float32, "PRECISION": "ieee" if dtype == torch.float32 else "tf32"}


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
    PRECISION: tl.constexpr,
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
    query = tl.load(q + place_q, mask=in_query, other=0.0).to(SUM)

    peak = tl.full([BLOCK_G], float("-inf"), dtype=SUM)
    whole = tl.zeros([BLOCK_G], dtype=SUM)
    if HAS_SINKS:
        # A sink is a key that brings no value.
        peak = tl.load(sinks + head, mask=in_group, other=0.0).to(SUM)
        whole += 1.0
    mixed = tl.zeros([BLOCK_G, BLOCK_D], dtype=SUM)
    for first in range(0, length, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        seen = position < length
        slot = tl.load(slots + start + position, mask=seen, other=0)
        place = (slot * KEY_HEADS + key_head)[:, None] * HEAD_DIM + dim[None, :]
        in_keys = seen[:, None] & in_dim[None, :]
        keys = tl.load(key_buffer + place, mask=in_keys, other=0.0).to(SUM)
        values = tl.load(value_buffer + place, mask=in_keys, other=0.0).to(SUM)
        scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION) * SCALE
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        shrunk = tl.exp(peak - new_peak)
        shares = tl.exp(scores - new_peak[:, None])
        whole = whole * shrunk + tl.sum(shares, axis=1)
        mixed = mixed * shrunk[:, None] + tl.dot(shares, values, input_precision=PRECISION)
        peak = new_peak
    tl.store(output + place_q, mixed / whole[:, None], mask=in_query)
