"""Every allocator refuses an impossible size with a named error, before it takes anything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.sizes import AllocationSizeError
from hybridbench.engine.memory.slots import MambaSlotAllocator, SlotAllocator

SIZE, PAGE = 64, 16
Allocator = (
    SlotAllocator | MambaSlotAllocator | TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator
)
MAKERS: dict[str, Callable[[], Allocator]] = {
    "slots": lambda: SlotAllocator(SIZE),
    "states": lambda: MambaSlotAllocator(SIZE),
    "tokens": lambda: TokenToKVPoolAllocator(SIZE, torch.float32, "cpu"),
    "pages": lambda: PagedTokenToKVPoolAllocator(SIZE, PAGE, torch.float32, "cpu"),
    "sorted pages": lambda: PagedTokenToKVPoolAllocator(
        SIZE, PAGE, torch.float32, "cpu", need_sort=True
    ),
}
KV = [make for name, make in MAKERS.items() if name not in ("slots", "states")]


def is_whole(allocator: Allocator) -> bool:
    """Return whether all slots can still be allocated, each once."""
    taken = allocator.alloc(SIZE)
    return taken is not None and len({int(slot) for slot in taken}) == SIZE


@pytest.mark.parametrize("size", [-1, -PAGE, -SIZE - 1, True, False, 2.0, "16", None])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_a_size_below_zero_or_that_is_no_number_is_refused(
    make: Callable[[], Allocator], size: object
) -> None:
    allocator = make()

    with pytest.raises(AllocationSizeError):
        allocator.alloc(size)  # type: ignore[arg-type]

    assert allocator.available_size() == SIZE
    assert is_whole(allocator)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_a_request_for_more_than_the_pool_has_returns_none(
    make: Callable[[], Allocator],
) -> None:
    allocator = make()

    assert allocator.alloc(10**9 * PAGE) is None
    assert is_whole(allocator)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_none_at_all_and_integers_of_numpy_and_torch_are_sizes(
    make: Callable[[], Allocator],
) -> None:
    allocator = make()

    nothing = allocator.alloc(0)
    of_numpy = allocator.alloc(np.int64(PAGE))  # type: ignore[arg-type]
    of_torch = allocator.alloc(torch.tensor(PAGE))  # type: ignore[arg-type]

    assert nothing is not None
    assert len(nothing) == 0
    assert of_numpy is not None
    assert of_torch is not None
    assert len(of_numpy) == len(of_torch) == PAGE


@pytest.mark.parametrize("size", [-1, -SIZE, True, 1.0])
def test_a_group_of_such_a_size_is_not_opened(size: object) -> None:
    allocator = MambaSlotAllocator(SIZE)

    with pytest.raises(AllocationSizeError):
        allocator.alloc_group_begin(size)  # type: ignore[arg-type]

    assert allocator.group_size() == 0
    # The next group ends normally, so no slot stays reserved.
    with allocator.group(3):
        assert allocator.group_size() == 3
    assert is_whole(allocator)


@pytest.mark.parametrize("make", KV)
@pytest.mark.parametrize(
    ("prefix_lens", "seq_lens"),
    [([20], [4]), ([4, 20], [30, 10]), ([-1], [15])],
    ids=["shorter", "one of two", "less than none"],
)
def test_a_request_does_not_become_shorter_by_being_extended(
    make: Callable[[], Allocator], prefix_lens: list[int], seq_lens: list[int]
) -> None:
    allocator = make()
    assert isinstance(allocator, TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator)
    last_loc = [0] * len(prefix_lens)

    with pytest.raises(AllocationSizeError):
        allocator.alloc_extend(prefix_lens, seq_lens, last_loc, sum(seq_lens) - sum(prefix_lens))

    assert is_whole(allocator)


@pytest.mark.parametrize("make", KV)
def test_a_decoded_token_is_part_of_the_length(make: Callable[[], Allocator]) -> None:
    allocator = make()
    assert isinstance(allocator, TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator)

    with pytest.raises(AllocationSizeError):
        allocator.alloc_decode([5, 0], [20, 0])

    assert is_whole(allocator)
