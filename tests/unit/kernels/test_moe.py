"""Dense and sorted experts against a loop over tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.kernels.moe import experts_dense, experts_sorted

HIDDEN, WIDTH, EXPERTS = 6, 5, 7


def make_experts() -> tuple[Tensor, Tensor]:
    """gate_up [E, 2I, h] and down [E, I, h]."""
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator, dtype=torch.float64)
    down = torch.randn(EXPERTS, WIDTH, HIDDEN, generator=generator, dtype=torch.float64)
    return gate_up, down


def route(tokens: int, top_k: int, busy: int) -> tuple[Tensor, Tensor]:
    """Weights and distinct experts among the first ``busy``."""
    generator = torch.Generator().manual_seed(tokens)
    scores = torch.rand(tokens, busy, generator=generator, dtype=torch.float64)
    weights, chosen = scores.topk(top_k, dim=-1)
    return weights, chosen


def by_token(x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    gate_up, down = make_experts()
    output = torch.zeros_like(x)
    for t in range(x.shape[0]):
        for weight, expert in zip(weights[t], chosen[t].tolist(), strict=True):
            gate, up = torch.split(gate_up[expert] @ x[t], WIDTH)
            output[t] += weight * ((functional.silu(gate) * up) @ down[expert])
    return output


@pytest.mark.parametrize(("tokens", "top_k", "busy"), [(1, 1, 7), (1, 3, 7), (40, 2, 7), (9, 2, 3)])
def test_both_forms_give_the_weighted_sum_of_the_chosen_experts(
    tokens: int, top_k: int, busy: int
) -> None:
    gate_up, down = make_experts()
    x = torch.randn(tokens, HIDDEN, dtype=torch.float64)
    weights, chosen = route(tokens, top_k, busy)
    hidden = torch.empty(tokens, EXPERTS, WIDTH, dtype=torch.float64)
    first = torch.einsum("th,eih->tei", x, gate_up).view(tokens, EXPERTS, 2, WIDTH)

    experts_dense(first, weights, chosen, hidden)
    dense = torch.einsum("tei,eih->th", hidden, down)
    by_expert = experts_sorted(x, weights, chosen, gate_up, down)

    expected = by_token(x, weights, chosen)
    torch.testing.assert_close(dense, expected)
    torch.testing.assert_close(by_expert, expected)
