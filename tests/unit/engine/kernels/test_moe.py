"""Dense and sorted experts against a loop over tokens."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.moe.reference import clamped_swiglu, experts_dense, experts_sorted

HIDDEN, WIDTH, EXPERTS = 6, 5, 7


def make_experts() -> tuple[Tensor, Tensor]:
    """Return gate_up [E, 2I, h] and down [E, I, h]."""
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator, dtype=torch.float64)
    down = torch.randn(EXPERTS, WIDTH, HIDDEN, generator=generator, dtype=torch.float64)
    return gate_up, down


def route(tokens: int, top_k: int, busy: int) -> tuple[Tensor, Tensor]:
    """Return weights, and distinct experts among the first ``busy``."""
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


def test_sorted_experts_with_biases_and_a_clamped_unit() -> None:
    """As in gpt-oss: the gate is clamped from above, up on both sides, and both have a bias."""
    gate_up, down = make_experts()
    generator = torch.Generator().manual_seed(1)
    biases = (
        torch.randn(EXPERTS, 2 * WIDTH, generator=generator, dtype=torch.float64),
        torch.randn(EXPERTS, HIDDEN, generator=generator, dtype=torch.float64),
    )
    x = torch.randn(40, HIDDEN, generator=generator, dtype=torch.float64)
    weights, chosen = route(40, 2, EXPERTS)

    found = experts_sorted(
        x, weights, chosen, gate_up, down, biases, partial(clamped_swiglu, alpha=1.7, limit=0.9)
    )

    expected = torch.zeros_like(x)
    for t in range(x.shape[0]):
        for weight, expert in zip(weights[t], chosen[t].tolist(), strict=True):
            gate, up = torch.split(gate_up[expert] @ x[t] + biases[0][expert], WIDTH)
            gate, up = gate.clamp(max=0.9), up.clamp(-0.9, 0.9)
            hidden = gate * torch.sigmoid(1.7 * gate) * (up + 1.0)
            expected[t] += weight * (hidden @ down[expert] + biases[1][expert])
    torch.testing.assert_close(found, expected)
