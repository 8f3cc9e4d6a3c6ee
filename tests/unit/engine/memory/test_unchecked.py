"""Allocators that do not check owners: what a mistake does to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hybridbench.engine.memory.free_list import FreeList
from hybridbench.engine.memory.owners import FREE, OWNER_COUNT, REQ, SESSION, TREE, Owner
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.slots import MambaSlotAllocator, SlotAllocator

SIZE, PAGE = 8, 4
Slots = SlotAllocator | MambaSlotAllocator
KV = TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator


def slots() -> SlotAllocator:
    return SlotAllocator(SIZE, check_owners=False)


def states() -> MambaSlotAllocator:
    return MambaSlotAllocator(SIZE, check_owners=False)


def tokens() -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(SIZE, torch.float32, "cpu", check_owners=False)


def pages() -> PagedTokenToKVPoolAllocator:
    return PagedTokenToKVPoolAllocator(SIZE, PAGE, torch.float32, "cpu", check_owners=False)


def booked(allocator: Slots | KV) -> int:
    """Return the number of slots recorded for all owners, FREE included."""
    return sum(allocator.held(Owner(owner)) for owner in range(OWNER_COUNT))


@pytest.mark.parametrize("make", [slots, states, tokens, pages])
def test_what_is_freed_twice_is_free_twice_and_soon_has_two_holders(
    make: Callable[[], Slots | KV],
) -> None:
    allocator = make()
    first = allocator.alloc(PAGE)
    assert first is not None

    allocator.free(first)
    allocator.free(first)

    assert allocator.available_size() == SIZE + PAGE
    assert allocator.objections == PAGE
    handed_out = [allocator.alloc(PAGE) for _ in range(3)]
    given = [int(slot) for taken in handed_out if taken is not None for slot in taken]
    assert len(given) == SIZE + PAGE
    assert len(set(given)) == SIZE
    assert booked(allocator) == SIZE


@pytest.mark.parametrize("make", [slots, states, tokens, pages])
def test_what_somebody_else_holds_is_taken_from_him_and_counted(
    make: Callable[[], Slots | KV],
) -> None:
    allocator = make()
    taken = allocator.alloc(PAGE, TREE)
    assert taken is not None

    allocator.transfer(taken, REQ, SESSION)
    assert (allocator.held(TREE), allocator.held(SESSION)) == (0, PAGE)
    allocator.free(taken, TREE)

    assert allocator.objections == 2 * PAGE
    assert allocator.available_size() == allocator.held(FREE) == SIZE


@pytest.mark.parametrize("make", [slots, states, tokens])
def test_a_slot_named_twice_in_one_call_and_one_outside_the_pool_go_to_the_free_list(
    make: Callable[[], Slots | KV],
) -> None:
    allocator = make()
    taken = allocator.alloc(2)
    assert taken is not None

    allocator.free([int(taken[0]), int(taken[0])])
    assert allocator.objections == 1
    allocator.free([SIZE + 5, 99 * SIZE])

    assert allocator.objections == 3
    assert allocator.available_size() == SIZE - 2 + 2 + 2
    assert booked(allocator) == SIZE
    everything = allocator.alloc(SIZE + 2)
    assert everything is not None
    assert len(everything) == SIZE + 2


@pytest.mark.parametrize("make", [slots, states, tokens, pages])
def test_right_use_is_the_same_and_leaves_nothing_to_count(make: Callable[[], Slots | KV]) -> None:
    allocator = make()
    for _ in range(3):
        taken = allocator.alloc(PAGE, REQ)
        assert taken is not None
        allocator.transfer(taken, REQ, TREE)
        allocator.free(taken, TREE)

    assert allocator.objections == 0
    assert allocator.available_size() == allocator.held(FREE) == SIZE


def test_a_free_list_keeps_the_order_of_what_is_too_much_for_its_array() -> None:
    free = FreeList(3)
    assert free.take(2).tolist() == [1, 2]

    free.put(np.array([1, 2, 2, 1], dtype=np.int64))

    assert len(free) == 5
    assert free.snapshot().tolist() == [3, 1, 2, 2, 1]
    assert free.take(5).tolist() == [3, 1, 2, 2, 1]
    free.put(np.array([3], dtype=np.int64))
    assert free.take(1).tolist() == [3]
