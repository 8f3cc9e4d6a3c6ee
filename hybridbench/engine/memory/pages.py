"""Allocators of KV positions: single tokens, or whole pages of them.

Both return token indices (numpy int64, 1-D).  Token indices start at 1 (page size 1) or at
page_size (pages are numbered from 1): everything below is the dump.
"""

from __future__ import annotations

import numpy as np
import torch

from hybridbench.engine.kernels.page_allocation import reference as page_allocation
from hybridbench.engine.memory.base_pages import NOTHING, BaseTokenToKVPoolAllocator, KVCache
from hybridbench.engine.memory.indices import IntArray, SlotInput
from hybridbench.engine.memory.owners import REQ, Owner
from hybridbench.engine.memory.sizes import check_decode, checked_size, whole_pages


def ceil_align(length: int, page_size: int) -> int:
    """``length`` tokens rounded up to whole pages, in tokens."""
    return -(-length // page_size) * page_size


class TokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """Allocates single token positions 1 to ``size``."""

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: KVCache | None = None,
        need_sort: bool = False,
        *,
        check_owners: bool = True,
    ) -> None:
        super().__init__(size, 1, dtype, device, kvcache, need_sort, check_owners)

    def alloc(self, need_size: int, owner: Owner = REQ) -> IntArray | None:
        """Allocate ``need_size`` tokens for ``owner``; None, with none taken, if too few.

        Raises:
            AllocationSizeError: negative, or not an integer.
        """
        return self._take_pages(checked_size(need_size, "KV tokens"), owner)

    def alloc_full(self, need_size: int, owner: Owner = REQ) -> IntArray | None:
        """The same as ``alloc``: there is one pool."""
        return self.alloc(need_size, owner)

    def alloc_extend(
        self,
        prefix_lens: SlotInput,
        seq_lens: SlotInput,
        last_loc: SlotInput,
        extend_num_tokens: int,
        owner: Owner = REQ,
    ) -> IntArray | None:
        """Allocate positions prefix_len to seq_len of each request, request after request.

        ``last_loc`` matters only for pages; it is here so that schedulers need one code path.
        """
        self._lengths(prefix_lens, seq_lens, last_loc, extend_num_tokens)
        return self._take_pages(extend_num_tokens, owner)

    def alloc_decode(
        self, seq_lens: SlotInput, last_loc: SlotInput, owner: Owner = REQ
    ) -> IntArray | None:
        """Allocate one token per request; ``seq_lens`` include it.  None if too few.

        Raises:
            AllocationSizeError: a length is less than 1.
        """
        ends, _ = self._same_length(seq_lens, last_loc)
        check_decode(ends)
        return self._take_pages(len(ends), owner)


class PagedTokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """Allocates whole pages of ``page_size`` tokens: pages 1 to size // page_size.

    A page has one holder.  Freeing or transferring any token of a page affects the whole page.
    """

    def __init__(  # noqa: PLR0913 - SGLang's signature, for its callers
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: KVCache | None = None,
        need_sort: bool = False,
        *,
        check_owners: bool = True,
    ) -> None:
        super().__init__(size, page_size, dtype, device, kvcache, need_sort, check_owners)

    def alloc(self, need_size: int, owner: Owner = REQ) -> IntArray | None:
        """Allocate ``need_size`` tokens, in whole pages; None, with none taken, if too few.

        Raises:
            AllocationSizeError: negative, not an integer, or not a multiple of the page size.
        """
        pages = self._take_pages(whole_pages(need_size, self.page_size), owner)
        return None if pages is None else self._tokens_of(pages)

    def alloc_full(self, need_size: int, owner: Owner = REQ) -> IntArray | None:
        """The same as ``alloc``, but only in the full pool where there are two."""
        return self.alloc(need_size, owner)

    def alloc_extend(
        self,
        prefix_lens: SlotInput,
        seq_lens: SlotInput,
        last_loc: SlotInput,
        extend_num_tokens: int,
        owner: Owner = REQ,
    ) -> IntArray | None:
        """Allocate positions prefix_len to seq_len of each request, request after request.

        Each request first fills the page that contains ``last_loc`` (the index of its position
        prefix_len - 1), then takes new pages, the last possibly in part.

        Returns:
            ``extend_num_tokens`` indices; None, with nothing taken, if there are too few pages.
        """
        starts, ends, last = self._lengths(prefix_lens, seq_lens, last_loc, extend_num_tokens)
        page_size = self.page_size
        first_new_page = -(-starts // page_size)
        new_pages = -(-ends // page_size) - first_new_page
        pages = self._take_pages(int(new_pages.sum()), owner)
        if pages is None:
            return None
        if extend_num_tokens == 0:
            return NOTHING.copy()
        return page_allocation.alloc_extend(starts, ends, last, pages, page_size, extend_num_tokens)

    def alloc_decode(
        self, seq_lens: SlotInput, last_loc: SlotInput, owner: Owner = REQ
    ) -> IntArray | None:
        """Allocate one token per request; ``seq_lens`` include it.  None if pages are too few.

        Only a request that crosses a page border takes a page; the others continue ``last_loc``.

        Raises:
            AllocationSizeError: a length is less than 1.
        """
        ends, last = self._same_length(seq_lens, last_loc)
        check_decode(ends)
        crosses = (ends - 1) % self.page_size == 0
        pages = self._take_pages(int(np.count_nonzero(crosses)), owner)
        if pages is None:
            return None
        return page_allocation.alloc_decode(crosses, last, pages, self.page_size)

    def _pages_of(self, idx: IntArray) -> IntArray:
        return idx if self.page_size == 1 else without_equal_neighbours(idx // self.page_size)

    def _checked(self, action: str, pages: IntArray, giver: Owner) -> IntArray:
        if self.page_size == 1:
            return super()._checked(action, pages, giver)
        self._ledger.check(action, pages, giver)
        return np.unique(pages) if self._ledger.repeats(pages) else pages


def without_equal_neighbours(pages: IntArray) -> IntArray:
    """Drop adjacent duplicates from ``pages``; consecutive tokens mostly share a page."""
    if len(pages) < 2:
        return pages
    keep = np.empty(len(pages), dtype=np.bool_)
    keep[0] = True
    np.not_equal(pages[1:], pages[:-1], out=keep[1:])
    kept: IntArray = pages[keep]
    return kept
