"""Mamba2's recurrence token by token: ``S <- e^{dt A} S + dt x B'``, ``y = S C``.

Groups of heads share B and C.  Source: Dao and Gu 2024, arXiv 2405.21060.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridbench.engine.kernels.rows import store_rows


def mamba2_reference(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over one request; the reference for the other forms.

    Args:
        x: [T, H, P]; may be empty.
        dt: [T, H], at least 0.
        a: [H], below 0.
        b, c: [T, G, N]; H is a multiple of G.
        state: [H, P, N].

    Returns:
        Output [T, H, P] in the state's dtype, and the new state.
    """
    repeats = x.shape[1] // b.shape[1]
    output = state.new_empty(x.shape)
    for t in range(x.shape[0]):
        write, read = (row[t].repeat_interleave(repeats, dim=0) for row in (b, c))
        decay = (dt[t] * a).exp()
        added = torch.einsum("h,hp,hn->hpn", dt[t], x[t], write)
        state = decay[:, None, None] * state + added
        output[t] = torch.einsum("hpn,hn->hp", state, read)
    return output, state


def mamba2_state_update(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    bc: Tensor,
    pool: Tensor,
    slots: Tensor,
    into: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Process one token per request, reading states by slot, writing them in place or elsewhere.

    Args:
        x: [R, H, P] in the state's dtype.
        dt: [R, H], at least 0.
        a: [H], below 0.
        bc: [R, 2, G, N], B (written) above C (read).
        pool: [S, H, P, N]; rows ``slots`` are read, and overwritten unless ``into`` is given.
        slots: [R] int64.
        into: a pool like ``pool`` and its [R] rows for the new states, which replace ``slots``.

    Returns:
        [R, H, P] in the state's dtype, owned by the caller.
    """
    requests, heads, head_dim = x.shape
    groups, size = bc.shape[2:]
    state = pool.index_select(0, slots)
    shape = (requests, groups, heads // groups, head_dim, size)
    write, read = bc.unbind(1)
    state.mul_((dt * a).exp_()[:, :, None, None])
    scaled = (x * dt.unsqueeze(2)).view(*shape[:-1], 1)
    state.view(shape).addcmul_(scaled, write[:, :, None, None])
    target, rows = (pool, slots) if into is None else into
    store_rows(target, rows, state)
    # [R*G, H/G * P, N] times [R*G, N, 1]: one product reads for all heads of a group.
    rows_of_group = state.view(requests * groups, heads // groups * head_dim, size)
    return torch.bmm(rows_of_group, read.reshape(-1, size, 1)).view(requests, heads, head_dim)
