"""Keys and values stored by Triton, against the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.kv_store import reference, triton_kernel
from tests.unit.engine.kernels.agreement import DEVICES, assert_agrees, device_of, mutant


def arguments(
    loc: list[int], heads: int, head_dim: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return buffers of 9 slots, and new rows that are columns of one projection, as in a model."""
    generator = torch.Generator().manual_seed(len(loc))
    keys, values = torch.randn(2, 9, heads, head_dim, generator=generator).to(dtype)
    projected = torch.randn(len(loc), 2 * heads + 1, head_dim, generator=generator).to(dtype)
    k, v = projected[:, :heads], projected[:, heads : 2 * heads]
    return keys.clone(), values.clone(), torch.tensor(loc, dtype=torch.int64), k, v


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("loc", "heads", "head_dim"),
    [([8, 1, 5], 2, 4), ([3], 1, 7), ([], 2, 4), ([4, 5, 6, 7], 3, 5)],
    ids=["any-order", "one-token", "no-token", "odd-width"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def test_rows_go_to_their_slots(
    loc: list[int], heads: int, head_dim: int, dtype: torch.dtype, device: str
) -> None:
    assert_agrees(
        reference.store_kv,
        triton_kernel.store_kv,
        *arguments(loc, heads, head_dim, dtype),
        device=device_of(device),
        atol=0.0,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_padding_writes_only_to_the_dump(device: str) -> None:
    keys, values, loc, k, v = arguments([0, 6, 0, 0], 1, 4)
    # Writes to the padding slot come in any order, so make the rows equal.
    k[[0, 2, 3]] = k[0].clone()
    v[[0, 2, 3]] = v[0].clone()

    assert_agrees(
        reference.store_kv,
        triton_kernel.store_kv,
        *(keys, values, loc, k, v),
        device=device_of(device),
        atol=0.0,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inside = column < WIDTH", "inside = column <= WIDTH"),
        ("slot = tl.load(loc + token)", "slot = token + 1"),
        ("token * v_stride", "token * k_stride * 0"),
        ("value_buffer + slot", "key_buffer + slot"),
    ],
    ids=["mask-off-by-one", "wrong-slot", "stale-value", "wrong-buffer"],
)
def test_a_mutant_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(reference.store_kv, changed.store_kv, *arguments([8, 1, 5], 3, 5))
