"""Mamba2 in Triton, against the reference, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

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
    pool_of_layers,
    random,
)

HEADS, GROUPS, HEAD_DIM, WIDTH = 4, 2, 3, 5


def update_arguments(
    slots: Sequence[int], head_dim: int = HEAD_DIM, *, into: bool = False
) -> list[Argument]:
    """A pool of 7 slots; those that are not read are NaN."""
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
    [
        ("    in_channel, in_column = channel <", "    in_channel, in_column = channel + 1 <"),
        ("slot = tl.load(slots + request)", "slot = tl.load(slots) + request * 0"),
        ("(step * values)[:, None]", "values[:, None]"),
        ("+ place, state, mask=in_state)\n    mixed = tl.sum", "+ place, 0.0)\n    mixed = tl.sum"),
        ("bc + (group + GROUPS) * WIDTH", "bc + group * WIDTH"),
    ],
    ids=["mask-off-by-one", "wrong-slot", "missing-scale", "lost-state", "wrong-read"],
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
    """Requests with states to begin with; what pads a chunk has steps of 0."""
    starts = np.cumsum(lens) - np.asarray(lens)
    plan = ChunkPlan.build(lens, starts, CPU, chunk_size, track_offsets)
    places, tokens = (-1, chunk_size), sum(lens)
    steps = torch.cat((random(tokens, HEADS).exp(), torch.zeros(1, HEADS, dtype=torch.float64)))
    x = random(tokens, HEADS, head_dim).index_select(0, plan.conv_rows)
    bc = random(tokens, 2, GROUPS, width).index_select(0, plan.conv_rows)
    snapshots = None
    if track_offsets is not None:
        snapshots = random(plan.snapshot_count, HEADS, head_dim, width) * float("nan")
    return [
        x.view(*places, HEADS, head_dim),
        steps.index_select(0, plan.gate_rows).view(*places, HEADS),
        -random(HEADS).exp(),
        bc.view(*places, 2, GROUPS, width),
        random(len(lens), HEADS, head_dim, width),
        lambda device: replace(plan, order=plan.order.to(device)),
        snapshots,
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lower = row[:, None] >= row", "lower = row[:, None] > row"),
        ("chunk = tl.load(starts + index) + rank", "chunk = tl.load(starts + index)"),
        (" * step[None, :]\n", "\n"),
        ("state * tl.load(fades + chunk * HEADS + head)", "state"),
        ("if wanted == index:", "if wanted == index + 1:"),
        ("    tl.store(first + rank * size + number, state, mask=inside)\n", ""),
        ("= tl.program_id(2) % over_columns * BLOCK_N", "= 0"),
        ("        mixed += tl.dot(read", "        mixed = tl.dot(read"),
    ],
    ids=[
        "mask-off-by-one",
        "wrong-chunk",
        "missing-scale",
        "missing-decay",
        "late-snapshot",
        "stale-state",
        "first-columns-alone",
        "last-columns-alone",
    ],
)
def test_a_mutant_of_the_chunks_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            chunked.mamba2_chunk_scan,
            changed.mamba2_chunk_scan,
            *chunk_arguments([20, 3], width=33, track_offsets=[7, 0]),
        )
