"""The forms in which callers may pass slots, converted to one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridbench.engine.memory.indices import (
    SlotInput,
    as_index_array,
    as_index_list,
    as_index_tensor,
    as_single_index,
)
from hybridbench.engine.memory.owners import DeviceMismatchError
from hybridbench.engine.memory.slots import MambaSlotAllocator

CPU = torch.device("cpu")
THREE: list[SlotInput] = [
    3,
    np.int64(3),
    [3],
    np.array([3], dtype=np.int32),
    torch.tensor(3),
    torch.tensor([3], dtype=torch.int32),
]


@pytest.mark.parametrize("slot", THREE, ids=repr)
def test_one_slot_in_any_wrapping_is_the_same_slot(slot: SlotInput) -> None:
    assert as_single_index(slot, CPU) == 3
    assert type(as_single_index(slot, CPU)) is int
    assert as_index_list(slot, CPU) == [3]
    assert as_index_array(slot, CPU).tolist() == [3]
    assert as_index_tensor(slot, CPU).tolist() == [3]


@pytest.mark.parametrize("slots", [[], [1, 2], torch.tensor([1, 2])], ids=repr)
def test_one_slot_means_one(slots: SlotInput) -> None:
    with pytest.raises(ValueError, match="expected one slot"):
        as_single_index(slots, CPU)


def test_a_single_slot_of_another_device_is_refused() -> None:
    with pytest.raises(DeviceMismatchError):
        as_single_index(torch.tensor([1], device="meta"), CPU)


def test_what_is_given_back_as_tensors_is_free_as_plain_ints() -> None:
    allocator = MambaSlotAllocator(3)
    allocator.alloc(3)

    allocator.free([torch.tensor(2), np.int64(1)])  # type: ignore[list-item]
    allocator.free([torch.tensor(3)])  # type: ignore[list-item]

    assert list(allocator.free_slots) == [2, 1, 3]
    assert all(type(slot) is int for slot in allocator.free_slots)


def test_halves_are_not_slots() -> None:
    with pytest.raises(TypeError):
        as_index_list([1.5], CPU)  # type: ignore[list-item]
