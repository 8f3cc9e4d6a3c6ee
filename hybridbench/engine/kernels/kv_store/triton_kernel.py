"""Store the keys and values of new tokens by slot: one program per token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def store_kv(key_buffer: Tensor, value_buffer: Tensor, loc: Tensor, k: Tensor, v: Tensor) -> None:
    """See the reference."""
    tokens, heads, head_dim = k.shape
    assert k.stride()[1:] == v.stride()[1:] == (head_dim, 1), "only tokens may be apart"
    if tokens == 0:
        return
    width = heads * head_dim
    _store[(tokens,)](
        key_buffer,
        value_buffer,
        loc,
        k,
        v,
        k.stride(0),
        v.stride(0),
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
    )


@triton.jit
def _store(
    key_buffer,
    value_buffer,
    loc,
    k,
    v,
    k_stride,
    v_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(loc + token)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    key = tl.load(k + token * k_stride + column, mask=inside)
    value = tl.load(v + token * v_stride + column, mask=inside)
    tl.store(key_buffer + slot * WIDTH + column, key, mask=inside)
    tl.store(value_buffer + slot * WIDTH + column, value, mask=inside)
