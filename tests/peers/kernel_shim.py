"""The calls of fla's, mamba_ssm's and SGLang's kernels, implemented with hybridbench's kernels.

The shim converts the tokens of several requests to chunks and back, leaves out rows with
PAD_SLOT_ID, and does around a kernel what the models here do (bias, D, z, dt_bias).  Weights are
transposed, and pools are copied in and out, because theirs need not be contiguous.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.causal_conv1d.reference import ConvPlan
from hybridbench.engine.kernels.dispatch import REFERENCE, Kernels
from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan

PAD_SLOT_ID = -1


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    pad_slot_id: int = PAD_SLOT_ID,
    kernels: Kernels = REFERENCE,
) -> Tensor:
    """x: (batch, dim); conv_state: (lines, dim, width - 1), updated; weight: (dim, width)."""
    used, slots = _used(conv_state_indices, len(x), pad_slot_id)
    pool = conv_state.contiguous()
    out = torch.zeros_like(x)
    taps = weight.t().contiguous()
    out[used] = kernels.causal_conv1d_update(x[used], taps, pool, slots, None, bias)
    conv_state.copy_(pool)
    return out


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor,
    has_initial_state: Tensor,
    pad_slot_id: int = PAD_SLOT_ID,
    kernels: Kernels = REFERENCE,
) -> Tensor:
    """x: (dim, cu_seq_len); padding requests come last, and their columns are 0."""
    used, slots = _used(cache_indices, len(cache_indices), pad_slot_id)
    lens = query_start_loc.diff()[used].tolist()
    pool = conv_states.contiguous()
    pool[slots[~has_initial_state[used]]] = 0
    rows, taps = x[:, : sum(lens)].t().contiguous(), weight.t().contiguous()
    plan = ConvPlan.build(lens, weight.shape[1], x.device)
    y = kernels.causal_conv1d_varlen(rows, taps, pool, slots, plan, None, bias)
    conv_states.copy_(pool)
    starts = zip(plan.output_starts.tolist(), lens, strict=True)
    out = torch.zeros_like(x)
    out[:, : sum(lens)] = torch.cat([y[start : start + n] for start, n in starts]).t()
    return out


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor | None,
    dt_bias: Tensor,
    state_batch_indices: Tensor,
    pad_slot_id: int = PAD_SLOT_ID,
    kernels: Kernels = REFERENCE,
) -> Tensor:
    """state: (lines, heads, dim, dstate), updated; dt, A, D, dt_bias: one number per head."""
    used, slots = _used(state_batch_indices, len(x), pad_slot_id)
    step = functional.softplus(dt[used].to(state.dtype) + dt_bias)
    bc = torch.stack((B, C), dim=1)[used].to(state.dtype)
    inputs = x[used].to(state.dtype)
    y = kernels.mamba2_state_update(inputs, step, A, bc, state, slots, None)
    y = y + inputs * D[:, None]
    out = torch.zeros_like(x)
    out[used] = (y if z is None else y * functional.silu(z[used])).to(x.dtype)
    return out


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    kernels: Kernels = REFERENCE,
) -> tuple[Tensor, Tensor]:
    """q, k: (1, T, heads, K), any dtype; returns the output in v's dtype and the final states."""
    if use_qk_l2norm_in_kernel:
        q, k = (functional.normalize(x.float(), dim=-1) for x in (q, k))
    dtype = initial_state.dtype
    qk = torch.stack((q * (scale or q.shape[-1] ** -0.5), k), dim=2)[0].to(dtype)
    starts = cu_seqlens[:-1].to(torch.int64).numpy().astype(np.int64)
    plan = ChunkPlan.build(cu_seqlens.diff().tolist(), starts, q.device)
    state = initial_state.clone()
    rows = kernels.chunk_gated_delta_rule(
        qk, v[0], g[0].to(dtype), beta[0].to(dtype), state, plan.order, plan, None
    )
    return rows.to(v.dtype).unsqueeze(0), state


def fused_recurrent_gated_delta_rule_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    kernels: Kernels = REFERENCE,
) -> Tensor:
    """q, k: (batch, heads, K), one token each; updates the states at the indices; -1 is padding."""
    used, slots = _used(initial_state_indices, len(v), PAD_SLOT_ID)
    dtype = initial_state_source.dtype
    qk = torch.stack((q * q.shape[-1] ** -0.5, k), dim=2)[used].to(dtype)
    qk = qk.repeat_interleave(v.shape[1] // q.shape[1], dim=1)
    out = torch.zeros_like(v)
    arguments = (v[used].to(dtype), g[used].to(dtype), beta[used].to(dtype))
    out[used] = kernels.gated_delta_rule_update(
        qk, *arguments, initial_state_source, slots, None
    ).to(v.dtype)
    return out


def _used(indices: Tensor | None, rows: int, pad_slot_id: int) -> tuple[Tensor, Tensor]:
    """Return the indices of rows without padding, and their slots."""
    if indices is None:
        indices = torch.arange(rows)
    used = torch.nonzero(indices != pad_slot_id).flatten()
    return used, indices[used].to(torch.int64)
