"""KV positions: tokens and pages, extend and decode, free groups, backup and restore."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridbench.engine.memory.base_pages import BaseTokenToKVPoolAllocator
from hybridbench.engine.memory.owners import (
    FREE,
    REQ,
    RESERVED,
    TREE,
    DeviceMismatchError,
    DoubleFreeError,
    ForeignFreeError,
    Owner,
    OwnershipError,
    ReservedSlotError,
    UnknownSlotError,
)
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator


def tokens(size: int, need_sort: bool = False) -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(size, torch.float32, "cpu", need_sort=need_sort)


def paged(size: int, page_size: int, need_sort: bool = False) -> PagedTokenToKVPoolAllocator:
    return PagedTokenToKVPoolAllocator(size, page_size, torch.float32, "cpu", need_sort=need_sort)


def account(allocator: BaseTokenToKVPoolAllocator) -> tuple[list[int], list[int]]:
    owners = [int(allocator.owner_of(idx)) for idx in range(allocator.size + 1)]
    return allocator.free_pages.tolist(), owners


def test_tokens_start_at_one_and_a_freed_one_is_reused_last() -> None:
    allocator = tokens(4)

    first = allocator.alloc(3)
    assert first is not None
    assert first.tolist() == [1, 2, 3]
    allocator.free(first[:1])

    rest = allocator.alloc(2)
    assert rest is not None
    assert rest.tolist() == [4, 1]


def test_the_free_list_goes_round_many_times_without_losing_a_token() -> None:
    allocator = tokens(5)

    for _ in range(20):
        held = allocator.alloc(3)
        assert held is not None
        assert len(set(held.tolist())) == 3
        allocator.free(held[::-1].copy())

    assert sorted(allocator.free_pages.tolist()) == [1, 2, 3, 4, 5]


def test_what_is_handed_out_is_a_copy_of_the_free_list_not_a_view() -> None:
    allocator = tokens(4)

    held = allocator.alloc(2)

    assert held is not None
    assert held.base is None


def test_too_many_tokens_are_refused_and_none_taken() -> None:
    allocator = tokens(2)

    assert allocator.alloc(3) is None

    assert allocator.available_size() == 2
    nothing = allocator.alloc(0)
    assert nothing is not None
    assert len(nothing) == 0


@pytest.mark.parametrize(
    ("idx", "error"),
    [
        ([0], ReservedSlotError),
        ([2, 0], ReservedSlotError),
        ([9], UnknownSlotError),
        ([400], UnknownSlotError),
        ([-1], UnknownSlotError),
        ([-9], UnknownSlotError),
        ([-400], UnknownSlotError),
        ([2, 2], DoubleFreeError),
        ([5], DoubleFreeError),
        ([1], ForeignFreeError),
        ([2, 1], ForeignFreeError),
    ],
)
def test_a_wrong_free_of_tokens_changes_nothing(
    idx: list[int], error: type[OwnershipError]
) -> None:
    allocator = tokens(8)
    allocator.alloc(4)
    allocator.transfer([1], REQ, TREE)
    before = account(allocator)

    with pytest.raises(error):
        allocator.free(idx)

    assert account(allocator) == before


def test_an_index_tensor_of_another_device_is_refused_before_anything_changes() -> None:
    allocator = tokens(2)
    allocator.alloc(1)

    with pytest.raises(DeviceMismatchError):
        allocator.free(torch.empty(1, dtype=torch.int64, device="meta"))

    assert allocator.held(REQ) == 1


def test_int32_tensors_and_lists_are_accepted() -> None:
    allocator = tokens(4)
    allocator.alloc(4)

    allocator.free(torch.tensor([1], dtype=torch.int32))
    allocator.free([2])
    allocator.free(np.array([3], dtype=np.int32))

    assert allocator.free_pages.tolist() == [1, 2, 3]


def test_a_transfer_is_refused_if_one_token_is_not_the_givers() -> None:
    allocator = tokens(3)
    allocator.alloc(2)

    with pytest.raises(OwnershipError, match=r"\[3\]: held by FREE, not REQ"):
        allocator.transfer([1, 3], REQ, TREE)

    assert allocator.held(TREE) == 0
    allocator.transfer([1], REQ, TREE)
    assert allocator.slots_of(TREE).tolist() == [1]


@pytest.mark.parametrize("need_sort", [False, True])
def test_a_free_group_holds_tokens_back_until_it_ends(need_sort: bool) -> None:
    allocator = tokens(4, need_sort)
    held = allocator.alloc(4)
    assert held is not None

    allocator.free_group_begin()
    allocator.free(held[:1])
    allocator.free(held[2:])
    assert allocator.available_size() == 0
    assert allocator.held(RESERVED) == 3
    with pytest.raises(ReservedSlotError):
        allocator.free(held[:1])
    allocator.free_group_end()

    assert allocator.available_size() == 3
    assert allocator.held(RESERVED) == 0


def test_with_need_sort_freed_pages_are_merged_only_when_short() -> None:
    allocator = tokens(4, need_sort=True)
    held = allocator.alloc(3)
    assert held is not None
    allocator.free([3])
    allocator.free([1])

    assert allocator.release_pages.tolist() == [3, 1]
    assert allocator.available_size() == 3
    more = allocator.alloc(2)
    assert more is not None
    assert more.tolist() == [1, 3]


def test_clear_forgets_holders_and_an_open_group() -> None:
    allocator = tokens(3)
    allocator.alloc(3)
    allocator.free_group_begin()
    allocator.free([2])

    allocator.clear()
    allocator.free_group_end()

    assert allocator.free_pages.tolist() == [1, 2, 3]
    assert allocator.held(RESERVED) == 0


def test_pages_never_hand_out_the_dump_page() -> None:
    allocator = paged(12, 4)

    first = allocator.alloc(4)
    assert first is not None
    assert first.tolist() == [4, 5, 6, 7]
    assert allocator.available_size() == 8


def test_only_whole_pages_can_be_allocated() -> None:
    with pytest.raises(ValueError, match="whole pages of 4"):
        paged(12, 4).alloc(3)


def test_a_pool_smaller_than_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="less than one page of 16"):
        paged(15, 16)


def test_freeing_any_token_of_a_page_frees_the_page_once() -> None:
    allocator = paged(12, 4)
    allocator.alloc(8)

    allocator.free([5, 9, 6])

    assert allocator.available_size() == 12
    assert allocator.free_pages.tolist() == [3, 1, 2]


def test_a_second_free_of_a_page_names_the_page() -> None:
    allocator = paged(12, 4)
    allocator.alloc(4)
    allocator.free([4])

    with pytest.raises(DoubleFreeError, match=r"pages .* \[1\]: held by FREE"):
        allocator.free([7])


@pytest.mark.parametrize(
    ("owner", "error"), [(FREE, DoubleFreeError), (RESERVED, ReservedSlotError)]
)
def test_nobody_frees_in_the_name_of_free_or_reserved(
    owner: Owner, error: type[OwnershipError]
) -> None:
    allocator = paged(12, 4)

    with pytest.raises(error):
        allocator.free([4] if owner == FREE else [0], owner)

    assert allocator.available_size() == 12


def test_the_dump_page_cannot_be_freed() -> None:
    with pytest.raises(ReservedSlotError):
        paged(12, 4).free([3])


def test_extend_fills_the_last_page_then_takes_new_ones() -> None:
    allocator = paged(40, 4)
    first = allocator.alloc_extend([0, 0], [6, 3], [-1, -1], 9)
    assert first is not None
    assert first.tolist() == [4, 5, 6, 7, 8, 9, 12, 13, 14]

    # Request 1 continues in page 2, then takes page 4; request 2 fills its page exactly.
    more = allocator.alloc_extend([6, 3], [9, 4], [9, 14], 4)

    assert more is not None
    assert more.tolist() == [10, 11, 16, 15]
    assert allocator.held(REQ) == 16


def test_extend_after_a_whole_page_takes_a_new_page() -> None:
    allocator = paged(40, 4)
    allocator.alloc(4)

    more = allocator.alloc_extend([4], [5], [7], 1)

    assert more is not None
    assert more.tolist() == [8]


def test_extend_that_lacks_one_page_takes_none() -> None:
    allocator = paged(8, 4)

    assert allocator.alloc_extend([0], [9], [-1], 9) is None

    assert allocator.available_size() == 8


def test_decode_takes_a_page_only_at_a_page_border() -> None:
    allocator = paged(40, 4)
    first = allocator.alloc_extend([0, 0], [4, 2], [-1, -1], 6)
    assert first is not None

    step = allocator.alloc_decode([5, 3], [int(first[3]), int(first[5])])

    assert step is not None
    assert step.tolist() == [12, 10]


def test_decode_without_a_free_page_takes_nothing() -> None:
    allocator = paged(4, 4)
    allocator.alloc(4)

    assert allocator.alloc_decode([5], [7]) is None


def test_lengths_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="grow by 3, but extend_num_tokens is 4"):
        tokens(8).alloc_extend([1], [4], [0], 4)
    with pytest.raises(ValueError, match="2 and 1 entries"):
        paged(8, 4).alloc_decode([1, 2], [0])


def test_the_token_allocator_has_the_same_two_calls() -> None:
    allocator = tokens(8)

    extended = allocator.alloc_extend([0, 2], [2, 3], [-1, 9], 3, owner=TREE)
    decoded = allocator.alloc_decode([3, 4], [2, 3])

    assert extended is not None
    assert decoded is not None
    assert extended.tolist() == [1, 2, 3]
    assert decoded.tolist() == [4, 5]
    assert allocator.held(TREE) == 3
