"""The gated delta rule token by token: its definition and the decode step by slot.

Per value head, with state S of shape [K, V]:
``S <- e^g S;  d = beta (v - S'k);  S <- S + k d';  o = S'q``.

Source: Yang et al. 2024, "Gated Delta Networks" (arXiv 2412.06464).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.rows import store_rows


def gated_delta_rule_reference(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the recurrence token by token; slow, but the reference for the other forms.

    Args:
        q, k: [B, T, H, K], already L2-normalised, q already scaled.
        v: [B, T, HV, V]; HV is a multiple of H.
        g: [B, T, HV], log of the decay, at most 0.
        beta: [B, T, HV], write strength in (0, 1).
        state: [B, HV, K, V]; read, not written.

    Returns:
        Output [B, T, HV, V] and the new state, both in the state's dtype, owned by the caller.
    """
    repeats = v.shape[2] // k.shape[2]
    q = q.repeat_interleave(repeats, dim=2).to(state.dtype)
    k = k.repeat_interleave(repeats, dim=2).to(state.dtype)
    output = state.new_empty(v.shape)
    state = state.clone()
    for t in range(v.shape[1]):
        state *= g[:, t, :, None, None].exp()
        read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        delta = beta[:, t, :, None] * (v[:, t] - read)
        state += k[:, t, :, :, None] * delta[:, :, None, :]
        output[:, t] = torch.einsum("bhkv,bhk->bhv", state, q[:, t])
    return output, state


def gdn_gating(a: Tensor, b: Tensor, decay: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gates of new tokens.

    Args:
        a, b: [T, HV], the input projection's outputs for decay and write strength.
        decay: [HV], ``-exp(A_log)``, in the state's dtype.
        dt_bias: [HV], in the state's dtype.

    Returns:
        The log of the decay, at most 0, and the write strength in (0, 1): [T, HV] each, in the
        state's dtype, owned by the caller.
    """
    g = functional.softplus(a.to(decay.dtype) + dt_bias).mul_(decay)
    return g, b.to(decay.dtype).sigmoid()


def gated_delta_rule_update(
    qk: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    slots: Tensor,
    into: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Process one token per request, reading states by slot, writing them in place or elsewhere.

    Args:
        qk: [B, HV, 2, K] in the state's dtype: the query (scaled) and the key of each value head.
        v: [B, HV, V].
        g: [B, HV], log of the decay, at most 0.
        beta: [B, HV], write strength in (0, 1).
        pool: [S, HV, K, V]; rows ``slots`` are read, and overwritten unless ``into`` is given.
        slots: [B] int64.
        into: a pool like ``pool`` and its [B] rows for the new states, which replace ``slots``.

    Returns:
        [B, HV, V] in the state's dtype, owned by the caller.
    """
    batch, heads, _, key_dim = qk.shape
    value_dim = v.shape[2]
    state = pool.index_select(0, slots).view(batch * heads, key_dim, value_dim)
    qk = qk.reshape(batch * heads, 2, key_dim)
    decay = g.exp().view(-1, 1, 1)
    # Both reads use the state before the write: o = e^g S'q + (q.k) d saves a second pass over it.
    reads = torch.bmm(qk, state).mul_(decay)
    delta = (v.reshape(-1, value_dim) - reads[:, 1]).mul_(beta.reshape(-1, 1))
    key = qk[:, 1]
    query_key = torch.linalg.vecdot(qk[:, 0], key).unsqueeze(1)
    state.mul_(decay).addcmul_(key.unsqueeze(2), delta.unsqueeze(1))
    target, rows = (pool, slots) if into is None else into
    store_rows(target, rows, state.view(batch, heads, key_dim, value_dim))
    return torch.addcmul(reads[:, 0], query_key, delta).view(batch, heads, value_dim)
