"""Choosing and multiplying experts in Triton, against the reference in float64."""

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
    HALVES,
    Argument,
    assert_agrees,
    assert_agrees_in_half,
    device_of,
    mutant,
    random,
    some_first,
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
    some_first(
        [
            ("inside = expert < EXPERTS", "inside = expert < EXPERTS - 1"),
            ("left = tl.where(expert == winner, float", "left = tl.where(expert < 0, float"),
            ("best / among", "best"),
            ("scores + token * EXPERTS", "scores + token * 0"),
        ],
        ["mask-off-by-one", "stale-winner", "missing-scale", "wrong-token"],
    ),
)
def test_a_mutant_of_the_choice_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)
    # The last expert is the best for the second token.
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
    some_first(
        [
            ("in_row, in_column = pair < end", "in_row, in_column = pair < end - 1"),
            ("matrices + expert * STRIDES[0]", "matrices"),
            ("total *= tl.load(weights + place", "total *= tl.load(weights + pair"),
            ("total += tl.dot", "total = tl.dot"),
            ("row = tl.load(order + pair, mask=in_row, other=0) // PER", "row = pair // PER"),
            ("place = tl.load(order + pair, mask=in_row, other=0)", "place = pair"),
            ("right_at + OUTPUTS * STRIDES[2]", "right_at"),
            ("up += tl.dot", "up = tl.dot"),
            ("tl.exp(-total)) * up", "tl.exp(-total))"),
            ("_first_of(owners, expert + 1,", "_first_of(owners, expert,"),
            ("start - (behind - needed) * BLOCK_M", "start"),
            ("mask=searching, other=0) < expert", "mask=searching, other=0) <= expert"),
            ("[None, :] <= tile[:, None]", "[None, :] < tile[:, None]"),
            ("within // members * BLOCK_N", "within * BLOCK_N"),
            ("filled * BLOCKS, tl.num_programs(0)", "filled, tl.num_programs(0)"),
            ("filled * BLOCKS, tl.num_programs(0)", "filled * BLOCKS, tl.num_programs(0) + 1"),
            ("tl.sum(needed, axis=0), mask=tl", "tl.sum(needed, axis=0) - 1, mask=tl"),
        ],
        [
            *("mask-off-by-one", "wrong-expert", "wrong-share", "stale-sum", "wrong-token"),
            *("wrong-row", "gate-twice", "stale-gate", "missing-gate", "no-end", "skipped-tile"),
            *("late-search", "late-tile", "wrong-column", "few-columns"),
            *("skipped-work", "few-tiles"),
        ],
    ),
)
def test_a_mutant_of_the_experts_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.experts_sorted,
            changed.experts_sorted,
            *expert_arguments([[4, 1 + i % 3] for i in range(17)], hidden=72),
        )


def test_a_mutant_of_the_biases_is_found(tmp_path: Path) -> None:
    changed = mutant(triton_kernel, "bias + expert * OUTPUTS", "bias", tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.experts_sorted,
            changed.experts_sorted,
            *expert_arguments([[4, 0], [0, 3]], biases=True),
        )


@pytest.mark.parametrize(("device", "dtype"), HALVES)
@pytest.mark.parametrize(
    ("tokens", "biases"),
    [
        (6, True),
        pytest.param(40, True, marks=pytest.mark.gpu),
        pytest.param(130, True, marks=pytest.mark.gpu),
        (270, False),
    ],
    ids=str,
)
def test_each_tile_of_half_precision_agrees(
    tokens: int, biases: bool, device: str, dtype: torch.dtype
) -> None:
    """One expert has all tokens but one; the mean over both determines the tile."""
    chosen = [[int(i == 3)] for i in range(tokens)]

    assert_agrees_in_half(
        reference.experts_sorted,
        triton_kernel.experts_sorted,
        *expert_arguments(chosen, experts=2, width=20, hidden=72, biases=biases),
        device=device_of(device),
        dtype=dtype,
    )


@pytest.mark.parametrize(
    ("pairs_per_expert", "programs"), [(4, 2), (16, 4), (100, 3), (1000, 2)], ids=str
)
def test_as_many_programs_share_a_multiprocessor_as_fit(
    pairs_per_expert: int, programs: int
) -> None:
    """Expected values follow from the shared memory of compiled kernels; an H100 has 228 KiB."""
    tile = triton_kernel._tile_for(torch.bfloat16, pairs_per_expert)

    assert tile.programs(itemsize=2, shared_bytes=228 * 1024) == programs
