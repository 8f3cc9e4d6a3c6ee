"""Page allocation in Triton, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.page_allocation import reference, triton_kernel
from tests.unit.engine.kernels.agreement import DEVICES, assert_agrees, device_of, mutant

# Prefixes that end inside a page, at its end and at zero; requests with one token and with none.
SPANS = [(0, 1), (5, 9), (16, 16), (3, 40), (16, 33), (7, 8), (0, 200)]


def on_host(form: Callable[..., np.ndarray]) -> Callable[..., Tensor]:
    """Wrap a reference function so that it takes and returns tensors."""

    def run(*arguments: Tensor | int) -> Tensor:
        arrays = (a.numpy() if isinstance(a, Tensor) else a for a in arguments)
        return torch.from_numpy(form(*arrays))

    return run


def extend_arguments(page_size: int) -> tuple[Tensor | int, ...]:
    starts, ends = torch.tensor(list(zip(*SPANS, strict=True)))
    last = torch.arange(len(SPANS)) * 1000 + (starts - 1) % page_size
    taken = int((-(-ends // page_size) + starts.neg() // page_size).sum())
    pages = torch.arange(7, 7 + taken).flip(0)
    return starts, ends, last, pages, page_size, int((ends - starts).sum())


def decode_arguments(page_size: int) -> tuple[Tensor | int, ...]:
    begins_page = (torch.tensor([1, 16, 17, 33, 2]) - 1) % page_size == 0
    pages = torch.tensor([9, 4, 6, 2, 5])[: int(begins_page.sum())]
    return begins_page, torch.arange(5) * 1000, pages, page_size


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_slots_of_an_extend_equal_the_reference(page_size: int, device: str) -> None:
    assert_agrees(
        on_host(reference.alloc_extend),
        triton_kernel.alloc_extend,
        *extend_arguments(page_size),
        device=device_of(device),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_slots_of_a_decode_equal_the_reference(page_size: int, device: str) -> None:
    assert_agrees(
        on_host(reference.alloc_decode),
        triton_kernel.alloc_decode,
        *decode_arguments(page_size),
        device=device_of(device),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inside = index < end - start", "inside = index < end - start - 1"),
        ("last + 1 + index", "last + index"),
        ("page * PAGE_SIZE + position", "page + position"),
        ("place = first_page + ", "place = "),
    ],
    ids=["mask-off-by-one", "wrong-slot", "missing-scale", "stale-page"],
)
def test_a_mutant_of_extend_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(on_host(reference.alloc_extend), changed.alloc_extend, *extend_arguments(16))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mask=other < request, other=0)", "mask=other <= request, other=0)"),
        ("page * PAGE_SIZE, tl.load", "page, tl.load"),
        ("pages + taken", "pages + taken * 0"),
    ],
    ids=["mask-off-by-one", "missing-scale", "stale-page"],
)
def test_a_mutant_of_decode_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(on_host(reference.alloc_decode), changed.alloc_decode, *decode_arguments(16))
