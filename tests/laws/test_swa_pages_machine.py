"""KV positions in two pools compared with plain sets; window pages are freed before full pages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from hybridbench.engine.memory.owners import FREE, REQ, RESERVED, TREE, Owner, OwnershipError
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from tests.laws.test_pages_machine import PageMachine

FULL_PAGES, SWA_PAGES = 9, 5


class SWAPageMachine(PageMachine):
    """The rules of pages, with a window pool that runs short before the full one."""

    allocator: SWATokenToKVPoolAllocator

    def __init__(self) -> None:
        super().__init__()
        self.left: set[int] = set()  # full pages without a window page
        self.pending_swa = 0

    @initialize(page_size=st.sampled_from([1, 4, 16]), need_sort=st.booleans())
    def start(self, page_size: int, need_sort: bool) -> None:
        self.page_size, self.pages = page_size, FULL_PAGES
        self.allocator = SWATokenToKVPoolAllocator(
            FULL_PAGES * page_size,
            SWA_PAGES * page_size,
            page_size,
            torch.float32,
            "cpu",
            need_sort=need_sort,
        )

    def a_sequence(self, data: st.DataObject) -> tuple[list[int], Owner]:
        held = [*((tokens, REQ) for tokens in self.requests), *((t, TREE) for t in self.tree)]
        return held[data.draw(st.integers(0, len(held) - 1))]

    def whole_pages(self, tokens: list[int]) -> list[list[int]]:
        size = self.page_size
        return [tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size)]

    @precondition(lambda self: self.requests or self.tree)
    @rule(data=st.data())
    def leave_the_window(self, data: st.DataObject) -> None:
        tokens, owner = self.a_sequence(data)
        pages = self.whole_pages(tokens)
        behind = pages[: data.draw(st.integers(0, len(pages)))]
        idx = [token for page in behind for token in page]
        self.note_pending(idx)

        self.allocator.free_swa(idx, owner)

        self.left |= self.pages_of(idx)

    @precondition(lambda self: self.requests and self.tree)
    @rule(data=st.data())
    def give_the_window_to_the_tree(self, data: st.DataObject) -> None:
        """Move a request's window part to a tree page with the same tokens that has none."""
        source = data.draw(st.sampled_from(self.requests))
        target = data.draw(st.sampled_from(self.tree))
        sources = [p for p in self.whole_pages(source) if not self.pages_of(p) & self.left]
        targets = [p for p in self.whole_pages(target) if self.pages_of(p) <= self.left]
        if not sources or not targets:
            return

        self.allocator.move_swa(sources[0], targets[0], REQ, TREE)

        self.left |= self.pages_of(sources[0])
        self.left -= self.pages_of(targets[0])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def refuse_the_window_part_of_another(self, data: st.DataObject) -> None:
        tokens = data.draw(st.sampled_from(self.requests))
        if self.pages_of(tokens) <= self.left:
            return
        with pytest.raises(OwnershipError):
            self.allocator.free_swa(tokens, TREE)

    @precondition(lambda self: self.requests or self.tree)
    @rule(data=st.data(), as_tensor=st.booleans())
    def give_back(self, data: st.DataObject, as_tensor: bool) -> None:
        held = [*self.requests, *self.tree]
        super().give_back(data, as_tensor)
        kept = [*self.requests, *self.tree]
        gone = [token for tokens in held if tokens not in kept for token in tokens]
        self.note_pending(gone)
        self.left -= self.pages_of(gone)

    def note_pending(self, tokens: list[int]) -> None:
        if self.in_group:
            self.pending_swa += len(self.pages_of(tokens) - self.left)

    @invariant()
    def every_window_page_belongs_to_the_holder_of_its_full_page(self) -> None:
        if not self.pages:
            return
        if not self.in_group:
            self.pending_swa = 0
        swa = self.allocator.swa_attn_allocator
        mapped: set[int] = set()
        for owner, sequences in ((REQ, self.requests), (TREE, self.tree)):
            pages = {page for tokens in sequences for page in self.pages_of(tokens)}
            starts = np.array(sorted(pages), dtype=np.int64) * self.page_size
            swa_pages = self.allocator.translate_loc_from_full_to_swa(starts) // self.page_size
            inside = {
                page for page, own in zip(sorted(pages), swa_pages.tolist(), strict=True) if own
            }
            assert inside == pages - self.left
            own_pages = set(swa_pages[swa_pages > 0].tolist())
            assert not own_pages & mapped
            assert len(own_pages) == len(inside)
            mapped |= own_pages
            booked = {token // self.page_size for token in swa.slots_of(owner).tolist()}
            assert booked == own_pages
        free = SWA_PAGES - len(mapped) - self.pending_swa
        assert swa.available_size() == swa.held(FREE) == free * self.page_size
        assert swa.held(RESERVED) == self.pending_swa * self.page_size


TestSWAPageMachine = SWAPageMachine.TestCase
