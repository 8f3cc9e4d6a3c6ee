"""Routed experts, each a gated linear unit: two forms of one operation, in plain PyTorch.

``sum_e w_te * down_e(silu(gate_e x_t) * up_e x_t)`` over the experts e chosen for token t.  The
dense form computes every expert for every token: more arithmetic, few calls.  The sorted form
computes only the chosen experts, with two products each.  The caller picks the faster one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def route(scores: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token and their weights.

    Args:
        scores: [T, E], logits of the router.
        top_k: experts per token.
        normalise: whether the weights of a token's experts add up to 1; otherwise they are their
            shares of a softmax over all experts.

    Returns:
        Weights [T, k] in the scores' dtype and experts [T, k] int64, the best first.
    """
    best, chosen = scores.topk(top_k, dim=-1)
    if normalise:
        # A softmax over all experts, normalised over the chosen, equals one over the chosen.
        return best.softmax(dim=-1), chosen
    return scores.softmax(dim=-1).gather(1, chosen), chosen


def experts_dense(gate_up: Tensor, weights: Tensor, chosen: Tensor, out: Tensor) -> None:
    """Compute the weighted hidden rows of all experts; those of unchosen experts are zero.

    Args:
        gate_up: [T, E, 2, I], ``x`` times the gate and up matrices of all experts.
        weights: [T, k], routing weights.
        chosen: [T, k] int64, distinct experts of each token.
        out: [T, E, I], overwritten with the rows to multiply by the stacked down matrices.
    """
    spread = weights.new_zeros(gate_up.shape[:2]).scatter_(1, chosen, weights)
    hidden = functional.silu(gate_up[:, :, 0])
    torch.mul(hidden.mul_(gate_up[:, :, 1]), spread.unsqueeze(2), out=out)


def swiglu(both: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` [n, I] for [n, 2*I], gate before up."""
    width = both.shape[1] // 2
    return functional.silu(both[:, :width]).mul_(both[:, width:])


def clamped_swiglu(both: Tensor, alpha: float, limit: float) -> Tensor:
    """Return ``gate * sigmoid(alpha gate) * (up + 1)`` [n, I] for [n, 2*I], gate before up.

    The gate is clamped to at most ``limit``, and ``up`` to plus or minus ``limit``.
    """
    width = both.shape[1] // 2
    gate = both[:, :width].clamp(max=limit)
    up = both[:, width:].clamp(-limit, limit)
    return (alpha * gate).sigmoid_().mul_(gate).mul_(up.add_(1.0))


def experts_sorted(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Tensor,
    down: Tensor,
    biases: tuple[Tensor, Tensor] | None = None,
    unit: Callable[[Tensor], Tensor] = swiglu,
) -> Tensor:
    """Compute only the chosen experts, one after the other, over the tokens sorted by expert.

    Args:
        x: [T, h].
        weights: [T, k], routing weights.
        chosen: [T, k] int64, distinct experts of each token.
        gate_up: [E, 2*I, h]; rows are gate then up.
        down: [E, I, h].
        biases: of the two matrices, [E, 2*I] and [E, h].
        unit: maps [n, 2*I] to hidden rows [n, I] that the caller may modify.

    Returns:
        [T, h], owned by the caller.
    """
    tokens, per_token = chosen.shape
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    rows = order // per_token
    counts = torch.bincount(flat, minlength=gate_up.shape[0]).tolist()
    taken = x.index_select(0, rows)
    shares = weights.reshape(-1).index_select(0, order).unsqueeze(1)
    both = x.new_empty(tokens * per_token, gate_up.shape[1])
    _per_expert(taken, gate_up.transpose(1, 2), counts, both)
    if biases is None:
        _per_expert(unit(both).mul_(shares), down, counts, taken)
    else:
        owners = flat.index_select(0, order)
        both += biases[0].index_select(0, owners)
        _per_expert(unit(both).mul_(shares), down, counts, taken)
        taken.addcmul_(biases[1].index_select(0, owners), shares)
    return torch.zeros_like(x).index_add_(0, rows, taken)


def _per_expert(rows: Tensor, matrices: Tensor, counts: list[int], out: Tensor) -> None:
    """Set ``out[segment e] = rows[segment e] @ matrices[e]`` for segments of ``counts`` rows."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            torch.mm(rows[start : start + count], matrices[expert], out=out[start : start + count])
            start += count
