"""KV positions in two pools: allocated together, freed separately."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridbench.engine.memory.owners import REQ, TREE, DoubleFreeError, ForeignFreeError
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator


def two_pools(
    size: int = 8, size_swa: int = 4, page_size: int = 1, *, check_owners: bool = True
) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(
        size, size_swa, page_size, torch.float32, "cpu", check_owners=check_owners
    )


@pytest.mark.parametrize("page_size", [1, 4])
def test_an_allocation_takes_of_both_pools_or_of_neither(page_size: int) -> None:
    allocator = two_pools(8 * page_size, 4 * page_size, page_size)

    assert allocator.alloc(5 * page_size) is None
    tokens = allocator.alloc(3 * page_size)

    assert tokens is not None
    assert allocator.full_available_size() == 5 * page_size
    assert allocator.swa_available_size() == allocator.available_size() == page_size


@pytest.mark.parametrize("page_size", [1, 4])
def test_an_allocation_of_the_full_pool_alone_has_no_window_part(page_size: int) -> None:
    allocator = two_pools(8 * page_size, 4 * page_size, page_size)

    assert allocator.alloc_full(9 * page_size) is None
    tokens = allocator.alloc_full(5 * page_size)

    assert tokens is not None
    assert allocator.full_available_size() == 3 * page_size
    assert allocator.swa_available_size() == 4 * page_size
    assert (allocator.translate_loc_from_full_to_swa(tokens) < page_size).all()
    allocator.free(tokens)
    assert allocator.full_available_size() == 8 * page_size


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_window_part_that_came_later_goes_with_its_position(page_size: int) -> None:
    allocator = two_pools(8 * page_size, 4 * page_size, page_size)
    tokens = allocator.alloc_full(2 * page_size)
    swa = allocator.swa_attn_allocator.alloc(2 * page_size)
    assert tokens is not None
    assert swa is not None

    allocator.attach_swa(tokens, swa)

    assert allocator.translate_loc_from_full_to_swa(tokens).tolist() == swa.tolist()
    with pytest.raises(AssertionError, match="has a window page already"):
        allocator.attach_swa(tokens, swa)
    allocator.free(tokens)
    assert allocator.swa_available_size() == 4 * page_size


def test_after_its_window_part_a_position_can_still_be_freed_once() -> None:
    allocator = two_pools()
    tokens = allocator.alloc(4)
    assert tokens is not None

    allocator.free_swa(tokens[:2])
    allocator.free_swa(tokens[:2])
    assert allocator.swa_available_size() == 2
    assert allocator.translate_loc_from_full_to_swa(tokens[:2]).tolist() == [0, 0]
    allocator.free(tokens)

    assert (allocator.full_available_size(), allocator.swa_available_size()) == (8, 4)
    with pytest.raises(DoubleFreeError):
        allocator.free(tokens)


def test_a_window_part_is_given_back_by_its_holder_only() -> None:
    allocator = two_pools(size_swa=8)
    tokens = allocator.alloc(2)
    assert tokens is not None
    allocator.transfer(tokens, REQ, TREE)

    with pytest.raises(ForeignFreeError):
        allocator.free_swa(tokens, REQ)

    assert allocator.swa_attn_allocator.held(TREE) == 2


def test_a_request_continues_its_page_in_both_pools() -> None:
    allocator = two_pools(16, 8, 4)
    first = allocator.alloc_extend([0], [3], [-1], 3)
    assert first is not None
    more = allocator.alloc_decode([4], first[-1:])
    assert more is not None

    swa = allocator.translate_loc_from_full_to_swa(np.concatenate((first, more)))

    assert np.diff(swa).tolist() == [1, 1, 1]
    assert swa[0] % 4 == 0
    assert allocator.swa_available_size() == 4


def test_an_allocator_without_an_account_of_holders_only_counts() -> None:
    allocator = two_pools(check_owners=False)
    tokens = allocator.alloc(2)
    assert tokens is not None
    allocator.free(tokens)

    allocator.free(tokens)
    allocator.free([99])

    assert allocator.objections == 3
    assert allocator.swa_attn_allocator.objections == 0


def test_clear_forgets_both_pools() -> None:
    allocator = two_pools()
    tokens = allocator.alloc(3)
    assert tokens is not None

    allocator.clear()

    assert (allocator.full_available_size(), allocator.swa_available_size()) == (8, 4)
    assert not allocator.translate_loc_from_full_to_swa(tokens).any()
