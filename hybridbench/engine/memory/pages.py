"""Allocators of KV positions: single tokens, or whole pages of them.

Both hand out token indices (numpy int64, 1-D).  Token indices run from 1 (page size 1) or
page_size (pages are numbered from 1) upwards: everything below is the dump.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hybridbench.engine.memory.free_list import FreeList
from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.kv_pool import (
    HybridHostCopy,
    HybridLinearKVPool,
    KVHostCopy,
    MHATokenToKVPool,
)
from hybridbench.engine.memory.ledger import OwnerLedger
from hybridbench.engine.memory.owners import FREE, REQ, RESERVED, Owner
from hybridbench.engine.memory.sizes import (
    AllocationSizeError,
    check_decode,
    check_extend,
    checked_size,
)

KVCache = MHATokenToKVPool | HybridLinearKVPool
_NOTHING: IntArray = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class AllocatorState:
    """What ``backup_state`` saved; opaque to callers."""

    free_pages: IntArray
    release_pages: tuple[IntArray, ...]
    owners: bytes


def ceil_align(length: int, page_size: int) -> int:
    """``length`` tokens rounded up to whole pages, in tokens."""
    return -(-length // page_size) * page_size


class BaseTokenToKVPoolAllocator:
    """What the two allocators share: pages (of 1 or more tokens), their owners, free groups.

    Always: ``available_size() + sum of held(owner) over all owners but FREE`` is the usable size.
    In an open free group the frees made so far are checked and recorded at once, as held by
    RESERVED, and come back to the free list when the group ends.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: KVCache | None,
        need_sort: bool,
    ) -> None:
        self.size = size
        self.page_size = page_size
        self.num_pages = size // page_size
        if self.num_pages < 1:
            raise ValueError(f"{size} tokens are not even one page of {page_size}")
        self.dtype = dtype
        self.device = torch.device(device)
        self.need_sort = need_sort
        self._kvcache = kvcache
        what = "KV tokens" if page_size == 1 else f"KV pages (of {page_size} tokens)"
        self._ledger = OwnerLedger(self.num_pages, what)
        self._free = FreeList(self.num_pages)
        # With need_sort: pages given back, not yet merged into the sorted free list.
        self._released: list[IntArray] = []
        self._released_count = 0
        self._group: list[IntArray] = []
        self.is_not_in_free_group = True

    @property
    def free_pages(self) -> IntArray:
        """A copy of the free list, next page first."""
        return self._free.snapshot()

    @property
    def release_pages(self) -> IntArray:
        """A copy of the pages that wait to be merged and sorted (``need_sort`` only)."""
        return np.concatenate(self._released) if self._released else _NOTHING.copy()

    def get_kvcache(self) -> KVCache | None:
        """The pool whose rows are allocated here, if one was given."""
        return self._kvcache

    def get_cpu_copy(
        self, indices: SlotInput, mamba_indices: SlotInput | None = None
    ) -> KVHostCopy | HybridHostCopy:
        """A host copy of what the pool has in ``indices``; the caller owns it.

        Raises:
            ValueError: there is no pool, or state slots are named and it has no states.
        """
        pool = self._pool()
        if isinstance(pool, HybridLinearKVPool):
            return pool.get_cpu_copy(indices, mamba_indices)
        if mamba_indices is not None:
            raise ValueError("state slots are named, but the pool is not a hybrid one")
        return pool.get_cpu_copy(indices)

    def load_cpu_copy(
        self,
        copy: KVHostCopy | HybridHostCopy,
        indices: SlotInput,
        mamba_indices: SlotInput | None = None,
    ) -> None:
        """Write a host copy of the same kind of pool back into ``indices``.

        Raises:
            TypeError: the copy is of another kind.
            ValueError: there is no pool.
        """
        pool = self._pool()
        if isinstance(pool, HybridLinearKVPool):
            if not isinstance(copy, HybridHostCopy):
                raise TypeError("the copy was taken from a pool without states")
            pool.load_cpu_copy(copy, indices, mamba_indices)
        elif isinstance(copy, HybridHostCopy):
            raise TypeError("the copy was taken from a hybrid pool")
        else:
            pool.load_cpu_copy(copy, indices)

    def available_size(self) -> int:
        """Tokens that can be allocated; frees held back by an open group are not among them."""
        return (len(self._free) + self._released_count) * self.page_size

    def held(self, owner: Owner) -> int:
        """Tokens that ``owner`` holds (whole pages); FREE means those that can be allocated."""
        return self._ledger.held(owner) * self.page_size

    def owner_of(self, idx: int) -> Owner:
        """Who holds the page of token ``idx``.

        Raises:
            UnknownSlotError: no such token.
        """
        return self._ledger.owner_of(idx // self.page_size)

    def slots_of(self, owner: Owner) -> IntArray:
        """The token indices of ``owner``, rising, the dump left out; walks the whole ledger."""
        return self._tokens_of(self._ledger.numbers_of(owner))

    def free(self, idx: SlotInput, owner: Owner = REQ) -> None:
        """Give the pages of ``idx`` back, each once; an empty ``idx`` is allowed.

        Raises:
            OwnershipError: one is not ``owner``'s; nothing was freed.
        """
        pages = self._pages_of("free", as_index_array(idx, self.device), owner)
        if len(pages) == 0:
            return
        if not self.is_not_in_free_group:
            self._ledger.move(pages, owner, RESERVED)
            self._group.append(pages)
            return
        self._ledger.move(pages, owner, FREE)
        self._give_back(pages)

    def transfer(self, idx: SlotInput, giver: Owner, taker: Owner) -> None:
        """Record that ``taker`` now holds the pages of ``idx`` and must free them.

        Raises:
            OwnershipError: one is not ``giver``'s; nothing was changed.
        """
        if taker in (FREE, RESERVED):
            raise ValueError(
                "tokens are given back with free(), not transferred to FREE or RESERVED"
            )
        pages = self._pages_of("transfer", as_index_array(idx, self.device), giver)
        if len(pages):
            self._ledger.move(pages, giver, taker)

    def free_group_begin(self) -> None:
        """Hold back the frees from now on; a group that is open stays open."""
        self.is_not_in_free_group = False

    def free_group_end(self) -> None:
        """Give everything back that was freed since ``free_group_begin``; harmless without one."""
        self.is_not_in_free_group = True
        if not self._group:
            return
        pages = np.concatenate(self._group)
        self._group = []
        self._ledger.move(pages, RESERVED, FREE)
        self._give_back(pages)

    def merge_and_sort_free(self) -> None:
        """Bring the pages given back into the free list, and the list into rising order."""
        if self._released:
            merged = np.sort(np.concatenate((self._free.snapshot(), *self._released)))
            self._free.reset(merged)
            self._released = []
            self._released_count = 0

    def clear(self) -> None:
        """Forget all holders and any open free group: everything is free, in rising order."""
        self._ledger.clear()
        self._free = FreeList(self.num_pages)
        self._released = []
        self._released_count = 0
        self._group = []
        self.is_not_in_free_group = True

    def backup_state(self) -> AllocatorState:
        """The whole account, to be given to ``restore_state``; not inside a free group."""
        self._refuse_in_group("backup_state")
        return AllocatorState(
            free_pages=self._free.snapshot(),
            release_pages=tuple(self._released),
            owners=self._ledger.snapshot(),
        )

    def restore_state(self, state: AllocatorState) -> None:
        """Go back to ``state``: what was allocated since is free, what was freed is held again."""
        self._refuse_in_group("restore_state")
        self._free.reset(state.free_pages)
        self._released = list(state.release_pages)
        self._released_count = sum(len(pages) for pages in self._released)
        self._ledger.restore(state.owners)

    def debug_print(self) -> str:
        """One line about the state of the allocator."""
        return (
            f"#available {self.available_size()}, #pages free {len(self._free)}, "
            f"#pages to merge {self._released_count}, #pages in group "
            f"{sum(len(pages) for pages in self._group)}, of {self.num_pages}"
        )

    def _pool(self) -> KVCache:
        if self._kvcache is None:
            raise ValueError("this allocator was built without a KV pool")
        return self._kvcache

    def _lengths(
        self,
        prefix_lens: SlotInput,
        seq_lens: SlotInput,
        last_loc: SlotInput,
        extend_num_tokens: int,
    ) -> tuple[IntArray, IntArray, IntArray]:
        """The three as arrays, after the check that they fit together."""
        starts, ends = self._same_length(prefix_lens, seq_lens)
        ends, last = self._same_length(ends, last_loc)
        check_extend(starts, ends)
        total = int(ends.sum() - starts.sum())
        if total != extend_num_tokens:
            raise ValueError(
                f"the lengths ask for {total} tokens, extend_num_tokens says {extend_num_tokens}"
            )
        return starts, ends, last

    def _same_length(self, left: SlotInput, right: SlotInput) -> tuple[IntArray, IntArray]:
        first, second = as_index_array(left, self.device), as_index_array(right, self.device)
        if len(first) != len(second):
            raise ValueError(f"{len(first)} and {len(second)} entries for the same requests")
        return first, second

    def _take_pages(self, count: int, owner: Owner) -> IntArray | None:
        if count > len(self._free):
            if self.need_sort:
                self.merge_and_sort_free()
            if count > len(self._free):
                return None
        pages = self._free.take(count)
        self._ledger.move(pages, FREE, owner)
        return pages

    def _give_back(self, pages: IntArray) -> None:
        if self.need_sort:
            self._released.append(pages)
            self._released_count += len(pages)
        else:
            self._free.put(pages)

    def _tokens_of(self, pages: IntArray) -> IntArray:
        if self.page_size == 1:
            return pages
        offsets = np.arange(self.page_size, dtype=np.int64)
        tokens: IntArray = (pages[:, None] * self.page_size + offsets).reshape(-1)
        return tokens

    def _pages_of(self, action: str, idx: IntArray, giver: Owner) -> IntArray:
        """The distinct pages of ``idx``, after the check that ``giver`` holds all of them."""
        raise NotImplementedError

    def _refuse_in_group(self, action: str) -> None:
        if not self.is_not_in_free_group:
            raise RuntimeError(f"{action} inside a free group; end the group first")


class TokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """Single token positions 1 to ``size``."""

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: KVCache | None = None,
        need_sort: bool = False,
    ) -> None:
        super().__init__(size, 1, dtype, device, kvcache, need_sort)

    def alloc(self, need_size: int, owner: Owner = REQ) -> IntArray | None:
        """Take ``need_size`` tokens for ``owner``; None, and nothing taken, if too few.

        Raises:
            AllocationSizeError: negative, or no integer.
        """
        return self._take_pages(checked_size(need_size, "KV tokens"), owner)

    def alloc_extend(
        self,
        prefix_lens: SlotInput,
        seq_lens: SlotInput,
        last_loc: SlotInput,
        extend_num_tokens: int,
        owner: Owner = REQ,
    ) -> IntArray | None:
        """Tokens for positions prefix_len to seq_len of each request, request-major.

        ``last_loc`` matters only to pages; it is here so that a scheduler needs one code path.
        """
        self._lengths(prefix_lens, seq_lens, last_loc, extend_num_tokens)
        return self._take_pages(extend_num_tokens, owner)

    def alloc_decode(
        self, seq_lens: SlotInput, last_loc: SlotInput, owner: Owner = REQ
    ) -> IntArray | None:
        """One token per request, whose lengths with it are ``seq_lens``; None if too few.

        Raises:
            AllocationSizeError: a length is less than that one token.
        """
        ends, _ = self._same_length(seq_lens, last_loc)
        check_decode(ends)
        return self._take_pages(len(ends), owner)

    def _pages_of(self, action: str, idx: IntArray, giver: Owner) -> IntArray:
        self._ledger.check(action, idx, giver)
        self._ledger.check_distinct(action, idx)
        return idx


class PagedTokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """Whole pages of ``page_size`` tokens: pages 1 to size // page_size.

    A page has one holder.  Freeing or transferring any token of a page does so to the whole page.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: KVCache | None = None,
        need_sort: bool = False,
    ) -> None:
        super().__init__(size, page_size, dtype, device, kvcache, need_sort)

    def alloc(self, need_size: int, owner: Owner = REQ) -> IntArray | None:
        """Take ``need_size`` tokens, a multiple of the page; None, nothing taken, if too few.

        Raises:
            AllocationSizeError: negative, no integer, or not a multiple of the page size.
        """
        need_size = checked_size(need_size, "KV tokens")
        if need_size % self.page_size != 0:
            raise AllocationSizeError(f"{need_size} tokens are not whole pages of {self.page_size}")
        pages = self._take_pages(need_size // self.page_size, owner)
        return None if pages is None else self._tokens_of(pages)

    def alloc_extend(
        self,
        prefix_lens: SlotInput,
        seq_lens: SlotInput,
        last_loc: SlotInput,
        extend_num_tokens: int,
        owner: Owner = REQ,
    ) -> IntArray | None:
        """Tokens for positions prefix_len to seq_len of each request, request-major.

        Each request first fills the page that ``last_loc`` (the index of its position
        prefix_len - 1) is in, then takes new pages, the last perhaps in part.

        Returns:
            ``extend_num_tokens`` indices; None, and nothing taken, if pages are too few.
        """
        starts, ends, last = self._lengths(prefix_lens, seq_lens, last_loc, extend_num_tokens)
        page_size = self.page_size
        first_new_page = -(-starts // page_size)
        new_pages = -(-ends // page_size) - first_new_page
        pages = self._take_pages(int(new_pages.sum()), owner)
        if pages is None:
            return None
        if extend_num_tokens == 0:
            return _NOTHING.copy()
        lengths = ends - starts
        # For each token: its position in its request, and the place of its page among `pages`.
        segment_start = np.cumsum(lengths) - lengths
        position = np.arange(extend_num_tokens) + np.repeat(starts - segment_start, lengths)
        page_base = np.cumsum(new_pages) - new_pages - first_new_page
        place = position // page_size + np.repeat(page_base, lengths)
        in_old_page = position < np.repeat(first_new_page * page_size, lengths)
        continued: IntArray = position + np.repeat(last + 1 - starts, lengths)
        if len(pages) == 0:
            return continued
        fresh = pages[place] * page_size + position % page_size
        locations: IntArray = np.where(in_old_page, continued, fresh)
        return locations

    def alloc_decode(
        self, seq_lens: SlotInput, last_loc: SlotInput, owner: Owner = REQ
    ) -> IntArray | None:
        """One token per request, whose lengths with it are ``seq_lens``; None if pages are too few.

        A page is taken only for a request that crosses into one; the others continue ``last_loc``.

        Raises:
            AllocationSizeError: a length is less than that one token.
        """
        ends, last = self._same_length(seq_lens, last_loc)
        check_decode(ends)
        crosses = (ends - 1) % self.page_size == 0
        pages = self._take_pages(int(np.count_nonzero(crosses)), owner)
        if pages is None:
            return None
        locations = last + 1
        locations[crosses] = pages * self.page_size
        return locations

    def _pages_of(self, action: str, idx: IntArray, giver: Owner) -> IntArray:
        pages = idx // self.page_size
        if len(pages) > 1:
            # Neighbours mostly share a page: dropping equal neighbours leaves few to look at.
            keep = np.empty(len(pages), dtype=np.bool_)
            keep[0] = True
            np.not_equal(pages[1:], pages[:-1], out=keep[1:])
            pages = pages[keep]
        self._ledger.check(action, pages, giver)
        return np.unique(pages) if self._ledger.repeats(pages) else pages
