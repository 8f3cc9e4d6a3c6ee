"""Mamba2 over whole chunks, for prefills in plain PyTorch.

Inside a chunk of C tokens, with G = cumsum(dt A) and D_ij = e^{G_i - G_j} dt_j for i >= j:
``Y = ((C B') . D) X + (C e^G) S'``, and ``S <- e^{G_C} S + (X dt e^{G_C-G})' B`` from chunk to
chunk.  Chunks and snapshots are laid out by the gated delta rule's plan.  Padding has a dt of 0,
so it neither writes nor decays.

Source: Dao and Gu 2024, arXiv 2405.21060, section 6.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.rows import store_rows


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
    """Process all new tokens of several requests, in chunks.

    Args:
        x: [rows, H, P]; ``plan.conv_rows`` is the row of each chunk place.
        dt: [T, H] in the state's dtype, at least 0.
        a: [H], below 0.
        d: [H], weight of a token's own x in its output.
        bc: [rows, 2, G, N], B (written) above C (read); H is a multiple of G.
        pool: [S, H, P, N]; rows ``slots`` are read and overwritten.
        slots: [R] int64, in the order of the plan.
        plan: the layout.
        track_slots: [S] int64, slots for the plan's snapshots, in the order of the requests.
            None if there are none.

    Returns:
        [T, H, P] in the state's dtype, owned by the caller.
    """
    state = pool.index_select(0, slots)
    snapshots = None
    if track_slots is not None:
        snapshots = state.new_empty(len(track_slots), *state.shape[1:])
    places = (-1, plan.chunk_size)
    x, bc = (part.index_select(0, plan.conv_rows).to(state.dtype) for part in (x, bc))
    # One row of zeros after the tokens serves all padding.
    steps = functional.pad(dt, (0, 0, 0, 1)).index_select(0, plan.gate_rows)
    output = _scan(
        x.view(*places, *x.shape[1:]),
        steps.view(*places, dt.shape[1]),
        a,
        bc.view(*places, *bc.shape[1:]),
        state,
        plan,
        snapshots,
    )
    store_rows(pool, slots, state)
    if snapshots is not None and track_slots is not None:
        store_rows(pool, track_slots, snapshots)
    output = output.reshape(x.shape).addcmul_(x, d[:, None])
    return output.index_select(0, plan.output_rows)


def _scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    bc: Tensor,
    state: Tensor,
    plan: ChunkPlan,
    snapshots: Tensor | None,
) -> Tensor:
    """Return the outputs [M, C, H, P]; overwrite ``state`` and fill ``snapshots``."""
    chunks, size, heads, head_dim = x.shape
    groups, width = bc.shape[3:]
    repeats = heads // groups
    # [M, H, C]
    steps = dt.transpose(1, 2)
    log_decay = (steps * a[:, None]).cumsum(dim=-1)
    # Masked before exp, because above the diagonal the exponent is positive.
    decay = (log_decay.unsqueeze(3) - log_decay.unsqueeze(2)).tril_().exp_().tril_()
    decay.mul_(steps.unsqueeze(2))
    # [M, G, C, N]
    write, read = bc.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
    scores = torch.matmul(read, write.transpose(2, 3)).unsqueeze(2)
    attention = decay.view(chunks, groups, repeats, size, size).mul_(scores)
    attention = attention.view(chunks, heads, size, size)
    values = x.transpose(1, 2).contiguous()
    output = torch.matmul(attention, values)
    grown = log_decay.exp()
    last = (log_decay[..., -1:] - log_decay).exp_().mul_(steps)
    # [M, G, H/G * P, C]: one product writes for all heads of a group.
    written = (values * last.unsqueeze(3)).transpose(2, 3).reshape(chunks, groups, -1, size)
    written = torch.matmul(written, write).view(chunks, heads, head_dim, width)
    start = 0
    for j, count in enumerate(plan.alive):
        part = slice(start, start + count)
        start += count
        current = state[:count]
        rows = current.view(count, groups, repeats * head_dim, width).transpose(2, 3)
        seen = torch.matmul(read[part], rows).view(count, groups, size, repeats, head_dim)
        seen = seen.permute(0, 1, 3, 2, 4).reshape(count, heads, size, head_dim)
        output[part].addcmul_(seen, grown[part].unsqueeze(3))
        current.mul_(grown[part, :, -1, None, None]).add_(written[part])
        wanted = plan.snapshots.get(j)
        if wanted is not None and snapshots is not None:
            snapshots.index_copy_(0, wanted.places, current.index_select(0, wanted.ranks))
    return output.transpose(1, 2)
