"""The allocator of KV positions in two pools: one for all positions, one for sliding windows.

A page of the full pool has at most one page of the window pool, which may be freed earlier.
"""

from __future__ import annotations

import numpy as np
import torch

from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.owners import REQ, Owner
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator
from hybridbench.engine.memory.sizes import whole_pages
from hybridbench.engine.memory.swa_pool import SWAKVPool, swa_locations


class SWATokenToKVPoolAllocator(PagedTokenToKVPoolAllocator):
    """Allocates the full pool; ``swa_attn_allocator`` allocates the window pool.

    ``alloc`` and its variants take pages of both pools or of neither, and return full
    locations.  ``free`` and ``transfer`` include the window pages that still exist, so a
    window page always has the owner of its full page.
    """

    def __init__(  # noqa: PLR0913 - SGLang's signature, for its callers
        self,
        size: int,
        size_swa: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: SWAKVPool | None = None,
        need_sort: bool = False,
        *,
        check_owners: bool = True,
    ) -> None:
        super().__init__(
            size, page_size, dtype, device, kvcache, need_sort, check_owners=check_owners
        )
        self.swa_attn_allocator = PagedTokenToKVPoolAllocator(
            size_swa, page_size, dtype, device, need_sort=need_sort, check_owners=check_owners
        )
        # The window page of each full page, 0 (the dump) if it has none; the last 0 is a sentinel.
        self._page_to_swa: IntArray = np.zeros(self.num_pages + 2, dtype=np.int64)
        if kvcache is not None:
            kvcache.register_mapping(self._page_to_swa)

    def swa_available_size(self) -> int:
        """Free tokens of the window pool."""
        return self.swa_attn_allocator.available_size()

    def available_size(self) -> int:
        """Tokens that can be allocated; each needs a place in both pools."""
        return min(self.full_available_size(), self.swa_available_size())

    def translate_loc_from_full_to_swa(self, idx: SlotInput) -> IntArray:
        """Window-pool locations of ``idx``; the dump (below ``page_size``) where there is none."""
        full = as_index_array(idx, self.device)
        return swa_locations(self._page_to_swa, full, self.page_size)

    def alloc_full(self, need_size: int, owner: Owner = REQ) -> IntArray | None:
        """Allocate in the full pool alone, for tokens whose window part comes later or never."""
        pages = super()._take_pages(whole_pages(need_size, self.page_size), owner)
        return None if pages is None else self._tokens_of(pages)

    def free_page_numbers(self, pages: IntArray, owner: Owner) -> None:
        """Free ``pages`` in both pools, each once.

        Raises:
            OwnershipError: one is not ``owner``'s; nothing was freed.
        """
        super().free_page_numbers(pages, owner)
        self._free_swa_pages(pages, owner)

    def free_swa(self, idx: SlotInput, owner: Owner = REQ) -> None:
        """Free the pages that ``idx`` has in the window pool; its full pages stay allocated.

        Raises:
            OwnershipError: one is not ``owner``'s; nothing was freed.
        """
        self._free_swa_pages(self._pages_of(as_index_array(idx, self.device)), owner)

    def transfer_page_numbers(self, pages: IntArray, giver: Owner, taker: Owner) -> None:
        super().transfer_page_numbers(pages, giver, taker)
        _, swa_pages = self._mapped(pages)
        self.swa_attn_allocator.transfer_page_numbers(swa_pages, giver, taker)

    def move_swa(self, source: SlotInput, target: SlotInput, giver: Owner, taker: Owner) -> None:
        """Move the window pages of ``source`` to ``target``, which has none, and to ``taker``.

        Both are whole pages with the same tokens: only the mapping changes, no KV is copied.

        Raises:
            OwnershipError: one is not ``giver``'s; nothing was changed.
        """
        pages, swa_pages = self._mapped(self._pages_of(as_index_array(source, self.device)))
        targets = as_index_array(target, self.device)[:: self.page_size] // self.page_size
        assert len(targets) == len(pages), "each page moves to one of its own"
        if self.check_owners:
            assert not self._page_to_swa[targets].any(), "a target has a window page already"
        self.swa_attn_allocator.transfer_page_numbers(swa_pages, giver, taker)
        self._page_to_swa[pages] = 0
        self._page_to_swa[targets] = swa_pages

    def attach_swa(self, idx: SlotInput, swa_idx: SlotInput) -> None:
        """Map ``idx``, which has no window pages, to window-pool locations ``swa_idx``.

        Both are whole pages of the same owner, in the same order of tokens.
        """
        pages, swa_pages = (
            as_index_array(locations, self.device)[:: self.page_size] // self.page_size
            for locations in (idx, swa_idx)
        )
        assert len(pages) == len(swa_pages), "each page has one of its own"
        if self.check_owners:
            assert not self._page_to_swa[pages].any(), "a page has a window page already"
        self._page_to_swa[pages] = swa_pages

    def free_group_begin(self) -> None:
        super().free_group_begin()
        self.swa_attn_allocator.free_group_begin()

    def free_group_end(self) -> None:
        super().free_group_end()
        self.swa_attn_allocator.free_group_end()

    def clear(self) -> None:
        super().clear()
        self.swa_attn_allocator.clear()
        self._page_to_swa[:] = 0

    def _take_pages(self, count: int, owner: Owner) -> IntArray | None:
        if count * self.page_size > self.swa_available_size():
            return None
        pages = super()._take_pages(count, owner)
        if pages is not None:
            swa_pages = self.swa_attn_allocator._take_pages(count, owner)
            assert swa_pages is not None, "there were enough just now"
            self._page_to_swa[pages] = swa_pages
        return pages

    def _free_swa_pages(self, pages: IntArray, owner: Owner) -> None:
        """Free the window pages of ``pages``, which are numbers of full pages."""
        mapped, swa_pages = self._mapped(pages)
        self.swa_attn_allocator.free_page_numbers(swa_pages, owner)
        # A remaining mapping would free the page under its next holder (sglang#27586).
        self._page_to_swa[mapped] = 0

    def _mapped(self, pages: IntArray) -> tuple[IntArray, IntArray]:
        """Those of ``pages`` that have a window page, and their window pages."""
        # Without owner checks any number may be passed: clipping maps one out of range to the first
        # or last entry, which have no window page.
        swa_pages = self._page_to_swa.take(pages, mode="clip")
        if np.count_nonzero(swa_pages) == len(pages):
            return pages, swa_pages
        mapped = swa_pages > 0
        return pages[mapped], swa_pages[mapped]
