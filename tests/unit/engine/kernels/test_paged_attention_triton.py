"""Attention over scattered slots in Triton, against the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.paged_attention import reference, triton_kernel
from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan
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

HEAD_DIM = 5


def paged_slots(lens: Sequence[int], page_size: int) -> tuple[np.ndarray, int]:
    """Return a slot for each position, in shuffled whole pages, and the number of slots."""
    pages = [-(-length // page_size) for length in lens]
    order = np.random.default_rng(page_size).permutation(sum(pages) + 2)[: sum(pages)] + 1
    first = np.cumsum(pages) - pages
    slots = [
        order[begin + np.arange(length) // page_size] * page_size + np.arange(length) % page_size
        for begin, length in zip(first, lens, strict=True)
    ]
    return np.concatenate(slots).astype(np.int64), (sum(pages) + 3) * page_size


def pool(slots: np.ndarray, size: int, key_heads: int) -> tuple[Tensor, Tensor]:
    """Return keys and values at ``slots``; all other slots are NaN."""
    both = torch.full((2, size, key_heads, HEAD_DIM), float("nan"), dtype=torch.float64)
    both[:, torch.from_numpy(slots)] = random(2, len(slots), key_heads, HEAD_DIM)
    return both[0].clone(), both[1].clone()


def decode_arguments(
    lens: Sequence[int],
    *,
    heads: tuple[int, int] = (4, 2),
    page_size: int = 1,
    window: int | None = None,
    sinks: bool = False,
) -> list[Argument]:
    slots, size = paged_slots(lens, page_size)
    return [
        random(len(lens), heads[0], HEAD_DIM),
        *pool(slots, size, heads[1]),
        lambda device: DecodePlan.build(lens, slots, torch.float64, device, window),
        random(heads[0]) if sinks else None,
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        decode_arguments([1]),
        decode_arguments([33, 1, 32], sinks=True),
        decode_arguments([40, 3], heads=(3, 1), page_size=64, window=7),
        decode_arguments([5, 70], heads=(2, 2), page_size=16, window=33, sinks=True),
    ],
    ids=["one-token", "sinks", "window-odd-group", "window-and-sinks"],
)
def test_decode_equals_the_reference(arguments: list[Argument], device: str) -> None:
    assert_agrees(
        reference.decode_attention,
        triton_kernel.decode_attention,
        *arguments,
        device=device_of(device),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    some_first(
        [
            ("seen = (position < length)", "seen = (position < length - 1)"),
            ("slot = tl.load(slots + position", "slot = tl.load(slots + position * 0"),
            ('input_precision="ieee") * SCALE', 'input_precision="ieee")'),
            ("return new_peak, whole * shrunk", "return new_peak, whole"),
            ("mask=in_group, other=0.0).to(SUM)\n        whole += 1.0", "mask=in_group).to(SUM)"),
        ],
        ["mask-off-by-one", "wrong-slot", "missing-scale", "stale-sum", "sink-not-counted"],
    ),
)
def test_a_mutant_of_decode_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.decode_attention,
            changed.decode_attention,
            *decode_arguments([33, 2], sinks=True),
        )


def extend_arguments(
    extend_lens: Sequence[int],
    prefix_lens: Sequence[int],
    *,
    heads: tuple[int, int] = (4, 2),
    page_size: int = 1,
    window: int | None = None,
    sinks: bool = False,
) -> list[Argument]:
    lens = [prefix + new for prefix, new in zip(prefix_lens, extend_lens, strict=True)]
    slots, size = paged_slots(lens, page_size)
    return [
        random(sum(extend_lens), heads[0], HEAD_DIM),
        *pool(slots, size, heads[1]),
        lambda device: ExtendPlan.build(extend_lens, prefix_lens, slots, device, window),
        random(heads[0]) if sinks else None,
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        extend_arguments([1], [0]),
        extend_arguments([5, 17, 1], [3, 0, 40], sinks=True),
        extend_arguments([33], [0], heads=(3, 1), page_size=64, window=5),
        extend_arguments([18, 2], [35, 1], heads=(2, 2), page_size=16, window=33, sinks=True),
    ],
    ids=["one-token", "ragged-sinks", "window-odd-group", "window-and-sinks"],
)
def test_extend_equals_the_reference(arguments: list[Argument], device: str) -> None:
    assert_agrees(
        reference.extend_attention,
        triton_kernel.extend_attention,
        *arguments,
        device=device_of(device),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    some_first(
        [
            ("position[None, :] <= own[:, None]", "position[None, :] < own[:, None]"),
            ("> own[:, None] - WINDOW", ">= own[:, None] - WINDOW"),
            ("span + 3)", "span + 3) * 0"),
            ("mixed * shrunk[:, None] + added", "added"),
            ("prefix_len + begin + 1 - WINDOW", "prefix_len + begin + 2 - WINDOW"),
            ('input_precision="ieee") * SCALE', 'input_precision="ieee")'),
        ],
        [
            *("mask-off-by-one", "window-off-by-one", "wrong-slot", "stale-sum", "late-window"),
            "missing-scale",
        ],
    ),
)
def test_a_mutant_of_extend_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.extend_attention,
            changed.extend_attention,
            *extend_arguments([5, 17], [3, 40], window=36),
        )


@pytest.mark.parametrize(
    ("old", "new"),
    some_first(
        [
            ("(prefix_len + begin + 1) // BLOCK_N", "(prefix_len + begin + BLOCK_N) // BLOCK_N"),
            ("tl.minimum(begin + TOKENS, count)", "tl.minimum(begin + TOKENS, count - 1)"),
            ("token = begin + row // BLOCK_G", "token = begin + row % BLOCK_G"),
            ("head = key_head * GROUP + member\n    dim", "head = member\n    dim"),
            ("mask=member < GROUP, other=0.0).to(SUM)\n        whole += 1.0", "mask=member < 0)"),
        ],
        ["unseen-block", "last-key-lost", "wrong-token", "wrong-head", "sink-not-counted"],
    ),
)
def test_a_mutant_of_extend_without_a_window_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.extend_attention,
            changed.extend_attention,
            *extend_arguments([17], [40], sinks=True),
        )


@pytest.mark.parametrize(("device", "dtype"), HALVES)
@pytest.mark.parametrize("window", [None, 37])
def test_extend_in_half_precision_agrees(
    window: int | None, device: str, dtype: torch.dtype
) -> None:
    assert_agrees_in_half(
        reference.extend_attention,
        triton_kernel.extend_attention,
        *extend_arguments([40, 3], [70, 1], heads=(6, 2), window=window, sinks=True),
        device=device_of(device),
        dtype=dtype,
    )
