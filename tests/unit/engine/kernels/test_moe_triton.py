"""Experts chosen and multiplied in Triton, against the reference, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from hybridbench.engine.kernels.moe import reference, triton_kernel
from hybridbench.engine.kernels.moe.reference import clamped_swiglu, swiglu
from tests.unit.engine.kernels.agreement import (
    DEVICES,
    Argument,
    assert_agrees,
    device_of,
    mutant,
    random,
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("normalise", [True, False], ids=["normalised", "of-all"])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(3, 7, 2), (1, 4, 3), (2, 3, 3), (0, 4, 1)], ids=str
)
def test_the_same_experts_are_chosen(
    tokens: int, experts: int, top_k: int, normalise: bool, device: str
) -> None:
    assert_agrees(
        reference.route,
        triton_kernel.route,
        *(random(tokens, experts), top_k, normalise),
        device=device_of(device),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inside = expert < EXPERTS", "inside = expert < EXPERTS - 1"),
        ("left = tl.where(expert == winner, float", "left = tl.where(expert < 0, float"),
        ("best / among", "best"),
        ("scores + token * EXPERTS", "scores + token * 0"),
    ],
    ids=["mask-off-by-one", "stale-winner", "missing-scale", "wrong-token"],
)
def test_a_mutant_of_the_choice_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)
    # The last expert of the second token is the best.
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 1.0, 2.0]], dtype=torch.float64)

    with pytest.raises(AssertionError):
        assert_agrees(reference.route, changed.route, *(scores, 2, True))


def expert_arguments(
    chosen: Sequence[Sequence[int]],
    experts: int = 5,
    width: int = 3,
    hidden: int = 6,
    *,
    biases: bool = False,
) -> list[Argument]:
    picks = torch.tensor(chosen, dtype=torch.int64)
    return [
        random(len(chosen), hidden),
        random(*picks.shape).exp(),
        picks,
        random(experts, 2 * width, hidden),
        random(experts, width, hidden),
        (random(experts, 2 * width), random(experts, hidden)) if biases else None,
    ]


UNIT = partial(clamped_swiglu, alpha=1.7, limit=0.9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        expert_arguments([[4, 0], [0, 3], [0, 2]]),
        expert_arguments([[1]], width=20, hidden=33, biases=True),
        expert_arguments([[2, i % 2] for i in range(18)], experts=3, biases=True),
        expert_arguments([[0], [1], [1]], experts=2, width=33, hidden=65),
    ],
    ids=["some-idle", "one-token-bias", "two-tiles-of-one-expert", "two-blocks"],
)
def test_experts_equal_the_reference(arguments: list[Argument], device: str) -> None:
    unit = swiglu if arguments[-1] is None else UNIT
    assert_agrees(
        partial(reference.experts_sorted, unit=unit),
        partial(triton_kernel.experts_sorted, unit=unit),
        *arguments,
        device=device_of(device),
        atol=1e-11,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("in_row, in_column = member < size", "in_row, in_column = member < size - 1"),
        ("matrix = matrices + expert * expert_stride", "matrix = matrices"),
        ("unit(both).mul_(shares)", "unit(both)"),
        ("total += tl.dot", "total = tl.dot"),
        ("row = first + member", "row = member"),
    ],
    ids=["mask-off-by-one", "wrong-expert", "missing-scale", "stale-sum", "wrong-row"],
)
def test_a_mutant_of_the_experts_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.experts_sorted,
            changed.experts_sorted,
            *expert_arguments([[4, 0], [0, 3], [0, 2]], hidden=40),
        )
