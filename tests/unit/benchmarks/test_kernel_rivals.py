"""Public kernels compute the same as the operations that they are compared with."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.kernel_rivals import FLA, GROUPED_MM, SDPA, rival_of, timed
from hybridbench.engine.kernels.dispatch import REFERENCE
from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.gated_delta_rule.reference import gated_delta_rule_reference
from hybridbench.engine.kernels.moe.reference import swiglu
from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan

CPU = torch.device("cpu")
SLOTS = np.random.default_rng(3).permutation(20)


def of(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


KEYS, VALUES = of(20, 2, 8), of(20, 2, 8)
IN_WINDOW = ExtendPlan.build([3, 2], [4, 0], SLOTS[:9], CPU, window=2)
DECODES = (of(2, 6, 8), KEYS, VALUES, DecodePlan.build([5, 3], SLOTS[:8], torch.float32, CPU), None)
EXTENDS = (of(5, 6, 8), KEYS, VALUES, ExtendPlan.build([3, 2], [4, 0], SLOTS[:9], CPU), None)
EXPERTS = (
    *(of(3, 16), of(3, 2).sigmoid(), torch.tensor([[0, 3], [3, 0], [3, 1]])),
    *(of(4, 32, 16), of(4, 16, 16), None, swiglu),
)

# The longer request comes second, so that the plan has another order than the batch.
RULE = (
    *(of(60, 2, 2, 4) / 2, of(60, 6, 5), -of(45, 6).exp(), of(45, 6).sigmoid(), of(9, 6, 4, 5)),
    *(torch.tensor([3, 1]), ChunkPlan.build([5, 40], np.array([0, 8]), CPU, 16), None),
)


@pytest.mark.parametrize(
    ("operation", "arguments", "name"),
    [
        ("decode_attention", DECODES, SDPA),
        ("extend_attention", EXTENDS, SDPA),
        ("experts_sorted", EXPERTS, GROUPED_MM),
    ],
)
def test_a_rival_computes_the_same(operation: str, arguments: tuple[Any, ...], name: str) -> None:
    rival = rival_of(operation, arguments)
    assert rival is not None

    output = rival.prepare(*arguments)()

    assert rival.name == name
    torch.testing.assert_close(output, getattr(REFERENCE, operation)(*arguments))


def _one_by_one(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float,
    initial_state: torch.Tensor,
    output_final_state: bool,
    cu_seqlens: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fla's function for sequences of several lengths, by the token-by-token reference."""
    assert scale == 1.0
    assert output_final_state
    outputs, states = [], []
    for number, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
        own = slice(begin, end)
        output, state = gated_delta_rule_reference(
            *(q[:, own], k[:, own], v[:, own], g[:, own], beta[:, own]),
            initial_state[number : number + 1],
        )
        outputs.append(output)
        states.append(state)
    return torch.cat(outputs, dim=1), torch.cat(states)


def test_the_rival_of_the_delta_rule_gets_the_texts_of_all_requests_with_their_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in = ModuleType("fla.ops.gated_delta_rule")
    stand_in.chunk_gated_delta_rule = _one_by_one  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    rival = rival_of("chunk_gated_delta_rule", RULE)
    assert rival is not None

    output = rival.prepare(*RULE)()

    pool = RULE[4].clone()
    expected = REFERENCE.chunk_gated_delta_rule(*RULE[:4], pool, *RULE[5:])
    torch.testing.assert_close(output, expected)


def test_operations_with_sinks_windows_or_biases_have_none() -> None:
    assert rival_of("decode_attention", (*DECODES[:4], of(6))) is None
    assert rival_of("extend_attention", (*EXTENDS[:3], IN_WINDOW, None)) is None
    assert rival_of("experts_sorted", (*EXPERTS[:5], (of(4, 32), of(4, 16)), swiglu)) is None
    assert rival_of("store_kv", ()) is None


def test_the_times_of_all_calls_are_summed_and_a_rival_that_is_absent_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fla", None)
    calls = [("decode_attention", DECODES), ("chunk_gated_delta_rule", RULE), ("store_kv", ())]

    found = timed([*calls, *calls], lambda call: 1.0 if call() is not None else 0.0)

    assert found.keys() == {"decode_attention", "chunk_gated_delta_rule"}
    assert found["decode_attention"] == (SDPA, 2.0)
    name, reason = found["chunk_gated_delta_rule"]
    assert name == FLA
    assert str(reason).startswith("ModuleNotFoundError: ")
