"""The Triton convolution with one window per slot, against the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.causal_conv1d import reference, triton_kernel
from hybridbench.engine.kernels.causal_conv1d.reference import ConvPlan
from tests.unit.engine.kernels.agreement import (
    DEVICES,
    Argument,
    assert_agrees,
    but_for_the_dump,
    device_of,
    mutant,
    pool_of_layers,
    random,
    some_first,
)

SLOTS = 9


def rows_of(tokens: int, channels: int) -> Tensor:
    """Return columns of a wider projection, as in a model."""
    return random(tokens, channels + 3)[:, :channels]


def update_arguments(
    slots: Sequence[int],
    kernel_size: int = 4,
    channels: int = 5,
    *,
    into: bool = False,
    bias: bool = False,
) -> list[Argument]:
    rows = torch.tensor(slots, dtype=torch.int64)
    shape = (channels, kernel_size - 1)
    elsewhere = None
    if into:
        elsewhere = (pool_of_layers(len(slots) + 1, shape, rows[:0]), torch.arange(len(slots)))
    return [
        rows_of(len(slots), channels),
        random(kernel_size, channels),
        pool_of_layers(SLOTS, shape, rows),
        rows,
        elsewhere,
        random(channels) if bias else None,
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        update_arguments([7, 2, 5]),
        update_arguments([3], kernel_size=2, channels=129, bias=True),
        update_arguments([8, 1], kernel_size=3, into=True),
        update_arguments([]),
    ],
    ids=["any-order", "two-taps-two-blocks-bias", "elsewhere", "no-request"],
)
def test_a_step_equals_the_reference(arguments: list[Argument], device: str) -> None:
    assert_agrees(
        reference.causal_conv1d_update,
        triton_kernel.causal_conv1d_update,
        *arguments,
        device=device_of(device),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_padding_changes_only_the_dump(device: str) -> None:
    assert_agrees(
        but_for_the_dump(reference.causal_conv1d_update, 2, 3),
        but_for_the_dump(triton_kernel.causal_conv1d_update, 2, 3),
        *update_arguments([0, 6, 0]),
        device=device_of(device),
    )


def varlen_arguments(
    lens: Sequence[int],
    kernel_size: int = 4,
    channels: int = 3,
    *,
    track_offsets: Sequence[int] | None = None,
    bias: bool = False,
) -> list[Argument]:
    """Requests with windows in slots 8, 7, ...; states are saved to slots 1, 2, ..."""
    rows = torch.arange(SLOTS - 1, SLOTS - 1 - len(lens), -1)
    tracked = sum(offset > 0 for offset in track_offsets or ())
    return [
        rows_of(sum(lens), channels),
        random(kernel_size, channels),
        pool_of_layers(SLOTS, (channels, kernel_size - 1), rows),
        rows,
        lambda device: ConvPlan.build(lens, kernel_size, device, track_offsets),
        None if track_offsets is None else torch.arange(1, tracked + 1),
        random(channels) if bias else None,
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        varlen_arguments([35, 1, 2]),
        varlen_arguments([1], kernel_size=2, bias=True),
        varlen_arguments([4, 0, 1], kernel_size=3),
        varlen_arguments([2, 6, 1], track_offsets=[1, 4, 0]),
        varlen_arguments([3, 2], channels=130, track_offsets=[0, 0]),
    ],
    ids=["ragged", "one-token-bias", "empty-segment", "tracked", "two-blocks-none-tracked"],
)
def test_a_prefill_equals_the_reference(arguments: list[Argument], device: str) -> None:
    assert_agrees(
        reference.causal_conv1d_varlen,
        triton_kernel.causal_conv1d_varlen,
        *arguments,
        device=device_of(device),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    some_first(
        [
            (
                "in_window = (tap < TAPS - 1) & in_channel",
                "in_window = (tap < TAPS - 2) & in_channel",
            ),
            ("    slot = tl.load(slots + request)", "    slot = tl.load(slots) + request * 0"),
            ("window - 1, inputs", "window - 1, old"),
            ("return mixed / (1.0 + tl.exp(-mixed))", "return mixed"),
        ],
        ["mask-off-by-one", "wrong-slot", "stale-state", "missing-silu"],
    ),
)
def test_a_mutant_of_the_step_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.causal_conv1d_update,
            changed.causal_conv1d_update,
            *update_arguments([7, 2, 5]),
        )


@pytest.mark.parametrize(
    ("old", "new"),
    some_first(
        [
            ("    in_window = tap < TAPS - 1\n", "    in_window = tap < TAPS - 2\n"),
            ("tl.load(slots + source // (TAPS - 1),", "tl.load(slots + source * 0,"),
            (
                "    _store_windows[(len(slots), blocks)]"
                "(*sources, plan.tail_rows, slots, **shape)\n",
                "",
            ),
            ("factor = tl.load(weight + tap", "factor = tl.load(weight + tap * 0"),
            ("in_row, in_channel = row < rows,", "in_row, in_channel = row < rows - 1,"),
            ("tl.max(from_pool.to(tl.int32), axis=0) > 0", "tl.max(source, axis=0) < window_rows"),
        ],
        ["mask-off-by-one", "wrong-slot", "stale-state", "wrong-tap", "no-last-row", "no-window"],
    ),
)
def test_a_mutant_of_the_prefill_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.causal_conv1d_varlen,
            changed.causal_conv1d_varlen,
            *varlen_arguments([35, 1, 2]),
        )
