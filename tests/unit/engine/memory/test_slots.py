"""State slots: who holds which, and the group window."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridbench.engine.memory.owners import (
    FREE,
    REQ,
    RESERVED,
    SESSION,
    TREE,
    DeviceMismatchError,
    DoubleFreeError,
    ForeignFreeError,
    OwnershipError,
    ReservedSlotError,
    UnknownSlotError,
)
from hybridbench.engine.memory.slots import MambaSlotAllocator


def taken(allocator: MambaSlotAllocator, count: int) -> list[int]:
    slots = allocator.alloc(count, REQ)
    assert slots is not None
    return slots


def account(allocator: MambaSlotAllocator) -> tuple[list[int], list[int]]:
    """Return everything that a refused call must leave unchanged."""
    owners = [allocator.owner_of(slot) for slot in range(allocator.size + 1)]
    return list(allocator.free_slots), [int(owner) for owner in owners]


def test_slots_come_in_order_and_a_freed_one_is_reused_last() -> None:
    allocator = MambaSlotAllocator(size=3)

    assert taken(allocator, 2) == [1, 2]
    allocator.free([1], REQ)

    assert taken(allocator, 1) == [3]
    assert taken(allocator, 1) == [1]


def test_a_request_for_too_many_takes_nothing() -> None:
    allocator = MambaSlotAllocator(size=2)

    assert allocator.alloc(3, REQ) is None

    assert allocator.available_size() == 2
    assert allocator.held(REQ) == 0


def test_second_free_of_a_slot_names_its_present_holder() -> None:
    allocator = MambaSlotAllocator(size=2)
    slots = taken(allocator, 1)
    allocator.free(slots, REQ)

    with pytest.raises(DoubleFreeError, match=r"slots \[1\]: held by FREE, not REQ"):
        allocator.free(slots, REQ)


def test_free_of_a_slot_that_the_tree_holds_is_refused_as_a_whole() -> None:
    allocator = MambaSlotAllocator(size=3)
    slots = taken(allocator, 3)
    allocator.transfer([2], REQ, TREE)
    before = account(allocator)

    with pytest.raises(ForeignFreeError, match=r"\[2\]: held by TREE, not REQ"):
        allocator.free(slots, REQ)

    assert account(allocator) == before


@pytest.mark.parametrize(
    ("slots", "error"),
    [
        ([0], ReservedSlotError),
        ([1, 0], ReservedSlotError),
        ([4], UnknownSlotError),
        ([-1], UnknownSlotError),
        ([1, 1], DoubleFreeError),
        ([3], DoubleFreeError),
    ],
)
def test_a_wrong_free_changes_nothing(slots: list[int], error: type[OwnershipError]) -> None:
    allocator = MambaSlotAllocator(size=3)
    taken(allocator, 2)
    before = account(allocator)

    with pytest.raises(error):
        allocator.free(slots, REQ)

    assert account(allocator) == before


def test_the_dump_slot_cannot_be_freed_even_in_the_name_of_its_holder() -> None:
    allocator = MambaSlotAllocator(size=1)

    with pytest.raises(ReservedSlotError):
        allocator.free([0], RESERVED)


def test_free_slots_cannot_be_freed_in_the_name_of_nobody() -> None:
    allocator = MambaSlotAllocator(size=1)

    with pytest.raises(DoubleFreeError):
        allocator.free([1], FREE)

    assert list(allocator.free_slots) == [1]


def test_transfer_moves_the_duty_to_free() -> None:
    allocator = MambaSlotAllocator(size=2)
    slots = taken(allocator, 1)

    allocator.transfer(slots, REQ, SESSION)

    assert allocator.owner_of(slots[0]) == SESSION
    assert (allocator.held(REQ), allocator.held(SESSION), allocator.held(FREE)) == (0, 1, 1)
    with pytest.raises(OwnershipError, match="held by SESSION, not REQ"):
        allocator.transfer(slots, REQ, TREE)


def test_transfer_to_nobody_is_refused() -> None:
    allocator = MambaSlotAllocator(size=1)
    slots = taken(allocator, 1)

    with pytest.raises(ValueError, match=r"free\(\)"):
        allocator.transfer(slots, REQ, FREE)


@pytest.mark.parametrize(
    "slots",
    [1, [1], np.array([1]), np.array([1], dtype=np.int32), torch.tensor([1]), torch.tensor(1)],
)
def test_slots_are_accepted_in_every_form(slots: list[int]) -> None:
    allocator = MambaSlotAllocator(size=1)
    taken(allocator, 1)

    allocator.free(slots, REQ)

    assert allocator.available_size() == 1


def test_an_index_tensor_of_another_device_is_refused_before_anything_changes() -> None:
    allocator = MambaSlotAllocator(size=1, device="cpu")
    taken(allocator, 1)

    with pytest.raises(DeviceMismatchError, match="meta"):
        allocator.free(torch.empty(1, dtype=torch.int64, device="meta"), REQ)

    assert allocator.held(REQ) == 1


def test_float_indices_are_refused() -> None:
    with pytest.raises(TypeError, match="integers"):
        MambaSlotAllocator(size=1).free(torch.tensor([1.0]), REQ)


def test_slots_of_lists_the_ledger_by_holder() -> None:
    allocator = MambaSlotAllocator(size=4)
    taken(allocator, 3)
    allocator.transfer([2], REQ, TREE)

    assert allocator.slots_of(REQ) == [1, 3]
    assert allocator.slots_of(TREE) == [2]
    assert allocator.slots_of(FREE) == [4]
    assert allocator.slots_of(RESERVED) == []


def test_a_group_serves_single_allocations_and_returns_the_rest() -> None:
    allocator = MambaSlotAllocator(size=4)

    allocator.alloc_group_begin(3)
    assert (allocator.available_size(), allocator.group_size()) == (1, 3)
    assert taken(allocator, 1) == [1]
    allocator.alloc_group_end()

    assert (allocator.available_size(), allocator.group_size()) == (3, 0)
    assert list(allocator.free_slots) == [2, 3, 4]


def test_more_than_one_slot_never_comes_from_the_group() -> None:
    allocator = MambaSlotAllocator(size=4)
    allocator.alloc_group_begin(3)

    assert allocator.alloc(2, REQ) is None


def test_an_exhausted_group_goes_on_the_normal_way() -> None:
    allocator = MambaSlotAllocator(size=3)
    allocator.alloc_group_begin(1)

    assert [taken(allocator, 1) for _ in range(3)] == [[1], [2], [3]]
    assert allocator.alloc(1, REQ) is None


def test_a_group_too_big_for_the_pool_reserves_nothing() -> None:
    allocator = MambaSlotAllocator(size=2)

    allocator.alloc_group_begin(3)

    assert (allocator.available_size(), allocator.group_size()) == (2, 0)
    allocator.alloc_group_end()
    assert allocator.available_size() == 2


def test_an_early_return_out_of_a_group_loses_no_slot() -> None:
    allocator = MambaSlotAllocator(size=3)

    def admit() -> None:
        with allocator.group(2):
            taken(allocator, 1)
            return

    admit()

    assert (allocator.available_size(), allocator.held(REQ), allocator.group_size()) == (2, 1, 0)


def test_nested_groups_are_counted_and_only_the_outermost_end_returns() -> None:
    allocator = MambaSlotAllocator(size=5)

    with allocator.group(2):
        with allocator.group(2):
            assert allocator.group_size() == 4
        assert allocator.group_size() == 4
        assert taken(allocator, 1) == [1]

    assert (allocator.available_size(), allocator.group_size()) == (4, 0)


def test_clear_inside_a_group_closes_it() -> None:
    allocator = MambaSlotAllocator(size=3)

    with allocator.group(2):
        allocator.clear()
        assert (allocator.available_size(), allocator.group_size()) == (3, 0)

    assert list(allocator.free_slots) == [1, 2, 3]


def test_an_end_without_a_begin_does_nothing() -> None:
    allocator = MambaSlotAllocator(size=1)

    allocator.alloc_group_end()

    assert allocator.available_size() == 1


def test_a_slot_set_aside_by_a_group_is_nobodys_to_free() -> None:
    allocator = MambaSlotAllocator(size=2)
    allocator.alloc_group_begin(1)

    with pytest.raises(ReservedSlotError, match="held by RESERVED"):
        allocator.free([1], REQ)


def test_the_window_is_closed_through_the_method_that_a_defect_replaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group that forgets its slots must show up as missing slots: nothing else returns them."""

    def forget(self: MambaSlotAllocator) -> None:
        self._group = []

    monkeypatch.setattr(MambaSlotAllocator, "alloc_group_end", forget)
    allocator = MambaSlotAllocator(size=3)
    with allocator.group(2):
        pass

    assert allocator.available_size() == 1
    assert allocator.slots_of(RESERVED) == [1, 2]
