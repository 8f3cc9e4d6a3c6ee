"""The common part of the two KV allocators: pages, their owners, and the free list.

A page has one or more tokens; it is always allocated, transferred and freed as a whole.
"""

from __future__ import annotations

import numpy as np
import torch

from hybridbench.engine.memory.free_list import FreeList, SlicedFreeList
from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.kv_pool import (
    HybridHostCopy,
    HybridLinearKVPool,
    KVHostCopy,
    MHATokenToKVPool,
)
from hybridbench.engine.memory.ledger import OwnerLedger, SilentLedger
from hybridbench.engine.memory.owners import FREE, REQ, RESERVED, Owner
from hybridbench.engine.memory.sizes import check_extend

KVCache = MHATokenToKVPool | HybridLinearKVPool
NOTHING: IntArray = np.empty(0, dtype=np.int64)


class BaseTokenToKVPoolAllocator:
    """The common part of the two allocators: pages (of 1 or more tokens), owners, free groups.

    Invariant: ``available_size()`` plus ``held(owner)`` of all owners but FREE is the usable size.
    In an open free group, freed pages are checked at once and belong to RESERVED; they enter the
    free list when the group ends.

    Without ``check_owners`` nothing is refused, as in allocators without a ledger: a page
    freed twice is in the free list twice, which breaks the invariant.
    """

    def __init__(  # noqa: PLR0913 - the union of its two callers' parameters
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: KVCache | None,
        need_sort: bool,
        check_owners: bool,
    ) -> None:
        self.size = size
        self.page_size = page_size
        self.num_pages = size // page_size
        if self.num_pages < 1:
            raise ValueError(f"size {size} is less than one page of {page_size}")
        self.dtype = dtype
        self.device = torch.device(device)
        self.need_sort = need_sort
        self.check_owners = check_owners
        self._kvcache = kvcache
        what = "KV tokens" if page_size == 1 else f"KV pages (of {page_size} tokens)"
        self._ledger = (OwnerLedger if check_owners else SilentLedger)(self.num_pages, what)
        self._free = self._new_free_list()
        # With need_sort: freed pages, not yet merged into the sorted free list.
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
        """A copy of the pages still to be merged and sorted (``need_sort`` only)."""
        return np.concatenate(self._released) if self._released else NOTHING.copy()

    def get_kvcache(self) -> KVCache | None:
        """The pool whose rows are allocated here, or None."""
        return self._kvcache

    def get_cpu_copy(
        self, indices: SlotInput, mamba_indices: SlotInput | None = None
    ) -> KVHostCopy | HybridHostCopy:
        """A host copy of the pool's rows ``indices``, owned by the caller.

        Raises:
            ValueError: there is no pool, or ``mamba_indices`` is given for a pool without states.
        """
        pool = self._pool()
        if isinstance(pool, HybridLinearKVPool):
            return pool.get_cpu_copy(indices, mamba_indices)
        if mamba_indices is not None:
            raise ValueError("mamba_indices is given, but the pool is not hybrid")
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
        """Tokens that can be allocated, not counting those freed in an open group."""
        return (len(self._free) + self._released_count) * self.page_size

    def full_available_size(self) -> int:
        """The same for the full pool alone, where sliding-window layers have their own pool."""
        return (len(self._free) + self._released_count) * self.page_size

    def held(self, owner: Owner) -> int:
        """Tokens that ``owner`` holds (whole pages); FREE means those that can be allocated."""
        return self._ledger.held(owner) * self.page_size

    @property
    def objections(self) -> int:
        """Tokens, in whole pages, that owner checks would have refused to free or transfer."""
        ledger = self._ledger
        return ledger.objections * self.page_size if isinstance(ledger, SilentLedger) else 0

    def owner_of(self, idx: int) -> Owner:
        """The owner of the page of token ``idx``.

        Raises:
            UnknownSlotError: no such token.
        """
        return self._ledger.owner_of(idx // self.page_size)

    def slots_of(self, owner: Owner) -> IntArray:
        """The token indices of ``owner``, ascending, without the dump; walks the whole ledger."""
        return self._tokens_of(self._ledger.numbers_of(owner))

    def free(self, idx: SlotInput, owner: Owner = REQ) -> None:
        """Free the pages of ``idx``, each once; an empty ``idx`` is allowed.

        Raises:
            OwnershipError: one is not ``owner``'s; nothing was freed.
        """
        self.free_page_numbers(self._pages_of(as_index_array(idx, self.device)), owner)

    def free_page_numbers(self, pages: IntArray, owner: Owner) -> None:
        """The same for pages by number."""
        if len(pages) == 0:
            return
        pages = self._checked("free", pages, owner)
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
            raise ValueError("tokens are released with free(), not transferred to FREE or RESERVED")
        self.transfer_page_numbers(self._pages_of(as_index_array(idx, self.device)), giver, taker)

    def transfer_page_numbers(self, pages: IntArray, giver: Owner, taker: Owner) -> None:
        """The same for pages by number."""
        if len(pages):
            self._ledger.move(self._checked("transfer", pages, giver), giver, taker)

    def free_group_begin(self) -> None:
        """Open a free group, which defers frees; no effect if one is open."""
        self.is_not_in_free_group = False

    def free_group_end(self) -> None:
        """Free everything deferred since ``free_group_begin``; no effect if no group is open."""
        self.is_not_in_free_group = True
        if not self._group:
            return
        pages = np.concatenate(self._group)
        self._group = []
        self._ledger.move(pages, RESERVED, FREE)
        self._give_back(pages)

    def merge_and_sort_free(self) -> None:
        """Merge freed pages into the free list, and sort it in ascending order."""
        if self._released:
            merged = np.sort(np.concatenate((self._free.snapshot(), *self._released)))
            self._free.reset(merged)
            self._released = []
            self._released_count = 0

    def clear(self) -> None:
        """Forget all owners and any open free group: everything is free, in ascending order."""
        self._ledger.clear()
        self._free = self._new_free_list()
        self._released = []
        self._released_count = 0
        self._group = []
        self.is_not_in_free_group = True

    def _new_free_list(self) -> FreeList | SlicedFreeList:
        return FreeList(self.num_pages)

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
        """Convert the first three arguments to arrays, and check that all four are consistent."""
        starts, ends = self._same_length(prefix_lens, seq_lens)
        ends, last = self._same_length(ends, last_loc)
        check_extend(starts, ends)
        total = int(ends.sum() - starts.sum())
        if total != extend_num_tokens:
            raise ValueError(
                f"the lengths grow by {total}, but extend_num_tokens is {extend_num_tokens}"
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

    def _pages_of(self, idx: IntArray) -> IntArray:
        """The numbers of the pages of ``idx``; a page of several tokens may repeat."""
        return idx

    def _checked(self, action: str, pages: IntArray, giver: Owner) -> IntArray:
        """``pages``, each once, after checking that ``giver`` holds them.

        Pages of one token, as here, must not repeat; the tokens of a larger page may be listed
        together.
        """
        self._ledger.check(action, pages, giver)
        self._ledger.check_distinct(action, pages)
        return pages
