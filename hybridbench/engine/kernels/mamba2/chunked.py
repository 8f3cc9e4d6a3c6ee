"""Mamba2 over whole chunks, for prefills in plain PyTorch.

Inside a chunk of C tokens, with G = cumsum(dt A) and D_ij = e^{G_i - G_j} dt_j for i >= j:
``Y = ((C B') . D) X + (C e^G) S'``, and ``S <- e^{G_C} S + (X dt e^{G_C-G})' B`` from chunk to
chunk.  The plan of the gated delta rule lays out chunks and snapshots; a dt of 0 in
padding neither writes nor decays.

Source: Dao and Gu 2024, arXiv 2405.21060, section 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan


def mamba2_chunk_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    bc: Tensor,
    state: Tensor,
    plan: ChunkPlan,
    snapshots: Tensor | None = None,
) -> Tensor:
    """Process all new tokens of several requests, in chunks.

    Args:
        x: [M, C, H, P] in the state's dtype, laid out by the plan.
        dt: [M, C, H], at least 0; 0 in padding.
        a: [H], below 0.
        bc: [M, C, 2, G, N], B (written) above C (read); H is a multiple of G.
        state: [R, H, P, N], in the order of the plan; overwritten with the final states.
        plan: the layout.
        snapshots: [S, H, P, N]; filled with the states that the plan wants, in the order of the
            requests.  None if there are none.

    Returns:
        [M, C, H, P] in the state's dtype, owned by the caller.
    """
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
    # [M, G, H/G * P, C]: the heads of a group write with one product.
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
