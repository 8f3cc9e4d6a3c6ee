"""The gated delta rule in Triton: gates, and the decode step in place by slot.

Source: Yang et al. 2024, arXiv 2412.06464; fla's ``fused_recurrent_gated_delta_rule`` divides the
work the same way, a program for some value channels of one head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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
    # log(1 + x) with the digits of x that 1 + x has not (Kahan); slow decays live in them.
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
