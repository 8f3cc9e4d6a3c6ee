"""Find the slots of new tokens within the pages allocated for them, on the device.

The arguments are the reference's, as tensors.  One program per request adds up the needs of the
requests before it.  Source: SGLang's ``alloc_extend_kernel`` and ``alloc_decode_kernel``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TOKENS_PER_BLOCK = 128


def alloc_extend(
    prefix_lens: Tensor,
    seq_lens: Tensor,
    last_loc: Tensor,
    pages: Tensor,
    page_size: int,
    extend_num_tokens: int,
) -> Tensor:
    """See the reference."""
    locations = seq_lens.new_empty(extend_num_tokens)
    requests = len(seq_lens)
    _extend[(requests,)](
        *(prefix_lens, seq_lens, last_loc, pages, locations),
        PAGE_SIZE=page_size,
        BLOCK_B=triton.next_power_of_2(requests),
        BLOCK_T=_TOKENS_PER_BLOCK,
    )
    return locations


def alloc_decode(begins_page: Tensor, last_loc: Tensor, pages: Tensor, page_size: int) -> Tensor:
    """See the reference."""
    requests = len(last_loc)
    locations = torch.empty_like(last_loc)
    if requests:
        _decode[(requests,)](
            *(begins_page, last_loc, pages, locations),
            PAGE_SIZE=page_size,
            BLOCK_B=triton.next_power_of_2(requests),
        )
    return locations


@triton.jit
def _extend(
    prefix_lens,
    seq_lens,
    last_loc,
    pages,
    locations,
    PAGE_SIZE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    request = tl.program_id(0)
    other = tl.arange(0, BLOCK_B)
    before = other < request
    starts = tl.load(prefix_lens + other, mask=before, other=0)
    ends = tl.load(seq_lens + other, mask=before, other=0)
    first_token = tl.sum(ends - starts, axis=0)
    page_counts = (ends + PAGE_SIZE - 1) // PAGE_SIZE - (starts + PAGE_SIZE - 1) // PAGE_SIZE
    first_page = tl.sum(page_counts, axis=0)

    start = tl.load(prefix_lens + request)
    end = tl.load(seq_lens + request)
    last = tl.load(last_loc + request)
    pages_before = (start + PAGE_SIZE - 1) // PAGE_SIZE
    for first in range(0, end - start, BLOCK_T):
        index = first + tl.arange(0, BLOCK_T)
        inside = index < end - start
        position = start + index
        in_new_page = inside & (position >= pages_before * PAGE_SIZE)
        place = first_page + position // PAGE_SIZE - pages_before
        page = tl.load(pages + place, mask=in_new_page, other=0)
        fresh = page * PAGE_SIZE + position % PAGE_SIZE
        location = tl.where(in_new_page, fresh, last + 1 + index)
        tl.store(locations + first_token + index, location, mask=inside)


@triton.jit
def _decode(
    begins_page, last_loc, pages, locations, PAGE_SIZE: tl.constexpr, BLOCK_B: tl.constexpr
):
    request = tl.program_id(0)
    other = tl.arange(0, BLOCK_B)
    earlier = tl.load(begins_page + other, mask=other < request, other=0)
    taken = tl.sum(earlier.to(tl.int64), axis=0)
    is_new = tl.load(begins_page + request)
    page = tl.load(pages + taken, mask=is_new, other=0)
    location = tl.where(is_new, page * PAGE_SIZE, tl.load(last_loc + request) + 1)
    tl.store(locations + request, location)
