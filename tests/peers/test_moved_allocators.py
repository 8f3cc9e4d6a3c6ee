"""SGLang's tests of its allocators, run on ours through the shim."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
import torch

from hybridbench.engine.memory.owners import DoubleFreeError
from tests.peers.shim import (
    MambaSlotAllocator,
    PagedTokenToKVPoolAllocator,
    ReqToTokenPool,
    TokenToKVPoolAllocator,
)
from tests.peers.shim import Req as Request

Allocator = TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator


def token_allocator(size: int, need_sort: bool = False) -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(
        size=size, dtype=torch.int64, device="cpu", kvcache=MagicMock(), need_sort=need_sort
    )


def paged_allocator(
    size: int, page_size: int = 4, need_sort: bool = False
) -> PagedTokenToKVPoolAllocator:
    return PagedTokenToKVPoolAllocator(
        size=size,
        page_size=page_size,
        dtype=torch.int64,
        device="cpu",
        kvcache=MagicMock(),
        need_sort=need_sort,
    )


def taken(allocator: Allocator | MambaSlotAllocator, count: int) -> torch.Tensor:
    indices = allocator.alloc(count)
    assert indices is not None
    return indices


@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize("make", [token_allocator, paged_allocator])
def test_everything_can_be_taken_once_and_nothing_more(make: type, need_sort: bool) -> None:
    allocator = make(16, need_sort=need_sort)

    first, second = taken(allocator, 8), taken(allocator, 8)

    assert len(torch.unique(torch.cat((first, second)))) == 16
    assert 0 not in first.tolist()
    assert allocator.available_size() == 0
    assert allocator.alloc(4) is None
    assert len(taken(allocator, 0)) == 0
    allocator.free(first)
    allocator.free(torch.tensor([], dtype=torch.int64))
    assert allocator.available_size() == 8
    assert sorted(taken(allocator, 8).tolist()) == sorted(first.tolist())


@pytest.mark.parametrize("make", [token_allocator, paged_allocator])
def test_frees_in_a_group_come_back_at_its_end(make: type) -> None:
    allocator = make(16)
    first, second = taken(allocator, 4), taken(allocator, 4)

    allocator.free_group_begin()
    allocator.free(first)
    allocator.free(second)

    assert allocator.available_size() == 8
    allocator.free_group_end()
    assert allocator.available_size() == 16


def test_sorted_frees_wait_apart() -> None:
    sorting, plain = token_allocator(8, need_sort=True), token_allocator(8)
    sorting.free(taken(sorting, 4))
    plain.free(taken(plain, 4))

    assert (len(sorting.release_pages), len(sorting.free_pages)) == (4, 4)
    assert (len(plain.release_pages), len(plain.free_pages)) == (0, 8)
    sorting.merge_and_sort_free()
    assert sorting.free_pages.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("make", [token_allocator, paged_allocator])
def test_host_copies_are_the_pools_business(make: type) -> None:
    allocator = make(16)
    pool = allocator.get_kvcache()
    pool.get_cpu_copy.return_value = "rows"

    assert allocator.get_cpu_copy(torch.tensor([4, 8])) == "rows"
    allocator.load_cpu_copy("rows", torch.tensor([4, 8]))

    pool.get_cpu_copy.assert_called_once()
    pool.load_cpu_copy.assert_called_once()


def test_an_extension_fills_the_last_page_then_takes_whole_ones() -> None:
    allocator = paged_allocator(64)
    prefix = taken(allocator, 4)[:2]
    lens, ends = torch.tensor([2]), torch.tensor([11])

    out = allocator.alloc_extend(lens, lens, ends, ends, prefix[-1:], 9)

    assert out is not None
    assert out[:2].tolist() == [6, 7]
    assert out[2:].tolist() == [8, 9, 10, 11, 12, 13, 14]
    step = torch.tensor([12])
    assert allocator.alloc_decode(step, step, out[-1:]) == torch.tensor([15])
    assert allocator.alloc_decode(step + 1, step + 1, torch.tensor([15])) == torch.tensor([16])


def test_a_page_given_back_twice_is_noticed() -> None:
    allocator = paged_allocator(64)
    page = taken(allocator, 4)
    allocator.free(page)

    with pytest.raises(DoubleFreeError):
        allocator.free(page)
    with pytest.raises(ValueError, match="not whole pages"):
        allocator.alloc(3)


def test_a_group_of_state_slots_serves_single_requests_and_returns_the_rest() -> None:
    allocator = MambaSlotAllocator(size=4, device="cpu")

    allocator.alloc_group_begin(3)
    assert taken(allocator, 1).tolist() == [1]
    assert allocator.available_size() == 1
    allocator.alloc_group_end()

    assert allocator.available_size() == 3
    allocator.free(torch.tensor([1]))
    assert allocator.available_size() == 4
    allocator.alloc_group_begin(5)
    assert len(taken(allocator, 4)) == 4
    allocator.alloc_group_end()
    assert allocator.available_size() == 0


def test_rows_are_numbered_from_one_and_only_given_to_those_without() -> None:
    pool = ReqToTokenPool(4, 8, "cpu", False)
    first, second = Request("a", "", []), Request("b", "", [])

    assert pool.alloc([first]) == [1]
    assert pool.alloc([first, second]) == [1, 2]
    pool.write((1, slice(0, 3)), torch.tensor([7, 8, 9], dtype=torch.int32))

    assert pool.req_to_token[1, :3].tolist() == [7, 8, 9]
    assert pool.available_size() == len(pool.free_slots) == 2
    pool.free(first)
    assert first.req_pool_idx is None
    assert pool.alloc([Request(str(n), "", []) for n in range(4)]) is None
    assert pool.available_size() == 3
