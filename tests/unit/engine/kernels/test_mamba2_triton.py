"""Mamba2 in Triton, against the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.mamba2 import chunked, reference, triton_kernel
from tests.unit.engine.kernels.agreement import (
    CPU,
    DEVICES,
    Argument,
    assert_agrees,
    but_for_the_dump,
    device_of,
    mutant,
    plan_on,
    pool_of_layers,
    random,
    some_first,
)

HEADS, GROUPS, HEAD_DIM, WIDTH = 4, 2, 3, 5


def update_arguments(
    slots: Sequence[int], head_dim: int = HEAD_DIM, *, into: bool = False
) -> list[Argument]:
    """Arguments with a pool of 7 slots; slots that are not read are NaN."""
    requests = len(slots)
    rows = torch.tensor(slots, dtype=torch.int64)
    shape = (HEADS, head_dim, WIDTH)
    elsewhere = None
    if into:
        elsewhere = (pool_of_layers(requests + 1, shape, rows[:0]), torch.arange(requests).flip(0))
    return [
        random(requests, HEADS, head_dim),
        random(requests, HEADS).exp(),
        -random(HEADS).exp(),
        random(requests, 2, GROUPS, WIDTH),
        pool_of_layers(7, shape, rows),
        rows,
        elsewhere,
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        update_arguments([6, 2, 4]),
        update_arguments([3], head_dim=33),
        update_arguments([5, 1], into=True),
        update_arguments([]),
    ],
    ids=["any-order", "one-token-two-blocks", "elsewhere", "no-request"],
)
def test_a_step_equals_the_reference(arguments: list[Argument], device: str) -> None:
    assert_agrees(
        reference.mamba2_state_update,
        triton_kernel.mamba2_state_update,
        *arguments,
        device=device_of(device),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_padding_changes_only_the_dump(device: str) -> None:
    assert_agrees(
        but_for_the_dump(reference.mamba2_state_update, 4, 5),
        but_for_the_dump(triton_kernel.mamba2_state_update, 4, 5),
        *update_arguments([0, 6, 0]),
        device=device_of(device),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    some_first(
        [
            ("    in_channel, in_column = channel <", "    in_channel, in_column = channel + 1 <"),
            ("slot = tl.load(slots + request)", "slot = tl.load(slots) + request * 0"),
            ("(step * values)[:, None]", "values[:, None]"),
            (
                "+ place, state, mask=in_state)\n    mixed = tl.sum",
                "+ place, 0.0)\n    mixed = tl.sum",
            ),
            ("bc + (group + GROUPS) * WIDTH", "bc + group * WIDTH"),
        ],
        ["mask-off-by-one", "wrong-slot", "missing-scale", "lost-state", "wrong-read"],
    ),
)
def test_a_mutant_of_the_step_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.mamba2_state_update,
            changed.mamba2_state_update,
            *update_arguments([6, 2, 4]),
        )


def chunk_arguments(
    lens: Sequence[int],
    chunk_size: int = 16,
    *,
    head_dim: int = HEAD_DIM,
    width: int = WIDTH,
    track_offsets: Sequence[int] | None = None,
) -> list[Argument]:
    """Arguments in which unused convolution rows and unused state slots are NaN."""
    count, gap = len(lens), 3
    starts = np.cumsum(np.asarray(lens) + gap) - np.asarray(lens)
    plan = ChunkPlan.build(lens, starts, CPU, chunk_size, track_offsets)
    slots = torch.arange(2 * count, count, -1)
    channels = HEADS * head_dim
    mixed = torch.full((sum(lens) + gap * count, channels + 2 * GROUPS * width), torch.nan).double()
    rows = torch.from_numpy(np.unique(plan.conv_rows.numpy()))
    mixed[rows] = random(len(rows), mixed.shape[1])
    tracked = None if track_offsets is None else torch.arange(1, plan.snapshot_count + 1)
    return [
        mixed[:, :channels].view(-1, HEADS, head_dim),
        random(sum(lens), HEADS).exp(),
        -random(HEADS).exp(),
        random(HEADS),
        mixed[:, channels:].view(-1, 2, GROUPS, width),
        pool_of_layers(2 * count + 1, (HEADS, head_dim, width), slots),
        slots,
        lambda device: plan_on(plan, device),
        tracked,
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        chunk_arguments([1]),
        chunk_arguments([5, 20], head_dim=65, width=40),
        chunk_arguments([20, 3, 17], track_offsets=[7, 0, 16]),
        chunk_arguments([30, 16], chunk_size=24, track_offsets=[30, 5]),
    ],
    ids=["one-token", "ragged-two-blocks", "snapshots", "odd-chunks-snapshot-at-the-end"],
)
def test_chunks_equal_the_reference(arguments: list[Argument], device: str) -> None:
    assert_agrees(
        chunked.mamba2_chunk_scan,
        triton_kernel.mamba2_chunk_scan,
        *arguments,
        device=device_of(device),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_in_half_precision_keeps_the_digits_of_its_states(device: str) -> None:
    place = device_of(device)
    arguments = chunk_arguments([20, 3], width=33, track_offsets=[7, 0])
    # Decays are slow, because sums of fast ones have few exact digits in any implementation.
    arguments[2] = -torch.full((HEADS,), 0.01, dtype=torch.float64)
    coarse: list[Any] = []
    exact: list[Any] = []
    for index, part in enumerate(arguments):
        if isinstance(part, Tensor) and part.is_floating_point():
            rounded = part.to(torch.bfloat16 if index in (0, 4) else torch.float32)
            coarse.append(rounded.to(place))
            exact.append(rounded.double())
        else:
            coarse.append(part.to(place) if isinstance(part, Tensor) else part)
            exact.append(part)
    plan = arguments[7]
    assert callable(plan)
    coarse[7], exact[7] = plan(place), plan(CPU)

    wanted = chunked.mamba2_chunk_scan(*exact)
    found = triton_kernel.mamba2_chunk_scan(*coarse)

    assert distance(found, wanted) < 1e-6
    assert distance(coarse[5], exact[5]) < 1e-6


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return the relative distance; unused slots are NaN in both and are skipped."""
    difference = found.cpu().double() - wanted
    return float(difference.nan_to_num(nan=0.0).norm() / wanted.nan_to_num(nan=0.0).norm())


@pytest.mark.parametrize(
    ("old", "new"),
    some_first(
        [
            ("lower = row[:, None] >= row", "lower = row[:, None] > row"),
            ("chunk = tl.load(starts + index) + rank", "chunk = tl.load(starts + index)"),
            (" * step[None, :]\n", "\n"),
            ("state * tl.load(fades + chunk * HEADS + head)", "state"),
            ("if wanted == index:", "if wanted == index + 1:"),
            ("    tl.store(pool + slot * pool_stride + number, state, mask=inside)\n", ""),
            ("= tl.program_id(2) % over_columns * BLOCK_N", "= 0"),
            ("        mixed += product(read", "        mixed = product(read"),
            (" * tl.load(d + head)", ""),
        ],
        [
            "mask-off-by-one",
            "wrong-chunk",
            "missing-scale",
            "missing-decay",
            "late-snapshot",
            "stale-state",
            "first-columns-alone",
            "last-columns-alone",
            "missing-skip",
        ],
    ),
)
def test_a_mutant_of_the_chunks_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            chunked.mamba2_chunk_scan,
            changed.mamba2_chunk_scan,
            *chunk_arguments([20, 3], width=33, track_offsets=[7, 0]),
        )
