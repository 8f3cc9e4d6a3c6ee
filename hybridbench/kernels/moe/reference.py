"""Routed experts with a gated-linear unit each: two forms of one operation, in plain PyTorch.

``sum_e w_te * down_e(silu(gate_e x_t) * up_e x_t)`` over the experts e chosen for token t.  The
dense form computes every expert for every token: more arithmetic, few calls.  The sorted form
computes the chosen ones, two products per expert.  Which is faster is the caller's knowledge.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def experts_dense(gate_up: Tensor, weights: Tensor, chosen: Tensor, out: Tensor) -> None:
    """The hidden rows of all experts, weighted; those not chosen get zeros.

    Args:
        gate_up: [T, E, 2, I], ``x`` after the gate and up matrices of all experts.
        weights: [T, k], routing weights.
        chosen: [T, k] int64, distinct experts of each token.
        out: [T, E, I], written: rows to be multiplied by the stacked down matrices.
    """
    spread = weights.new_zeros(gate_up.shape[:2]).scatter_(1, chosen, weights)
    hidden = functional.silu(gate_up[:, :, 0])
    torch.mul(hidden.mul_(gate_up[:, :, 1]), spread.unsqueeze(2), out=out)


def experts_sorted(
    x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """Only the chosen experts, one after the other over the tokens sorted by expert.

    Args:
        x: [T, h].
        weights: [T, k], routing weights.
        chosen: [T, k] int64, distinct experts of each token.
        gate_up: [E, 2*I, h]; rows are gate then up.
        down: [E, I, h].

    Returns:
        [T, h], owned by the caller.
    """
    tokens, per_token = chosen.shape
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    rows = order // per_token
    counts = torch.bincount(flat, minlength=gate_up.shape[0]).tolist()
    taken = x.index_select(0, rows)
    width = gate_up.shape[1] // 2
    both = x.new_empty(tokens * per_token, 2 * width)
    _per_expert(taken, gate_up.transpose(1, 2), counts, both)
    hidden = functional.silu(both[:, :width]).mul_(both[:, width:])
    hidden.mul_(weights.reshape(-1).index_select(0, order).unsqueeze(1))
    _per_expert(hidden, down, counts, taken)
    return torch.zeros_like(x).index_add_(0, rows, taken)


def _per_expert(rows: Tensor, matrices: Tensor, counts: list[int], out: Tensor) -> None:
    """``out[segment e] = rows[segment e] @ matrices[e]`` for segments of ``counts`` rows."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            torch.mm(rows[start : start + count], matrices[expert], out=out[start : start + count])
            start += count
