"""Copying states in Triton, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hybridbench.engine.kernels.state_copy import reference, triton_kernel
from tests.unit.engine.kernels.agreement import (
    DEVICES,
    Argument,
    assert_agrees,
    device_of,
    mutant,
    random,
)


def arguments(target_rows: list[int], source_rows: list[int]) -> list[Argument]:
    """Arguments that copy two kinds of state, the second wider than a block."""
    shapes = [(3, 2, 3), (2, 600)]
    return [
        [random(6, *shape) for shape in shapes],
        torch.tensor(target_rows, dtype=torch.int64),
        [random(5, *shape) for shape in shapes],
        torch.tensor(source_rows, dtype=torch.int64),
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("target_rows", "source_rows"),
    [([5, 1, 3], [0, 4, 4]), ([2], [3]), ([], [])],
    ids=["any-order", "one-slot", "no-slot"],
)
def test_whole_states_arrive(target_rows: list[int], source_rows: list[int], device: str) -> None:
    assert_agrees(
        reference.copy_states,
        triton_kernel.copy_states,
        *arguments(target_rows, source_rows),
        device=device_of(device),
        atol=0.0,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_states_move_within_one_pool(device: str) -> None:
    def within(form: Callable[..., None]) -> Callable[..., None]:
        return lambda pool, to, of: form([pool], to, [pool], of)

    assert_agrees(
        within(reference.copy_states),
        within(triton_kernel.copy_states),
        *(random(6, 2, 3), torch.tensor([4, 0]), torch.tensor([1, 1])),
        device=device_of(device),
        atol=0.0,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inside = column < WIDTH", "inside = column < WIDTH - 1"),
        ("tl.load(source_rows + index)", "tl.load(source_rows)"),
        ("targets, sources, strict=True", "targets[:1], sources[:1], strict=True"),
    ],
    ids=["mask-off-by-one", "wrong-slot", "stale-state"],
)
def test_a_mutant_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(reference.copy_states, changed.copy_states, *arguments([5, 1, 3], [0, 4, 4]))
