"""KV positions compared with plain lists: sequences grow, end, and never share a page."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from hybridbench.engine.memory.owners import FREE, REQ, RESERVED, TREE, OwnershipError
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator


class PageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.page_size = 1
        self.pages = 0
        self.allocator: TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator
        # The holders' records: token indices of each sequence, of requests and of the tree.
        self.requests: list[list[int]] = []
        self.tree: list[list[int]] = []
        self.pending: set[int] = set()
        self.in_group = False

    @initialize(page_size=st.sampled_from([1, 4, 16, 64]), need_sort=st.booleans())
    def start(self, page_size: int, need_sort: bool) -> None:
        self.page_size, self.pages = page_size, 9
        size = 9 * page_size + page_size // 2
        if page_size == 1:
            self.allocator = TokenToKVPoolAllocator(size, torch.float32, "cpu", need_sort=need_sort)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(
                size, page_size, torch.float32, "cpu", need_sort=need_sort
            )

    def pages_of(self, tokens: list[int]) -> set[int]:
        return {token // self.page_size for token in tokens}

    def page_count(self, length: int) -> int:
        return -(-length // self.page_size)

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        lengths = st.integers(0, 3 * self.page_size)
        olds = [*self.requests, []]
        chosen = data.draw(st.lists(st.integers(0, len(olds) - 1), min_size=1, unique=True))
        more = [data.draw(lengths) for _ in chosen]
        old = [olds[number] for number in chosen]
        ends = [len(tokens) + count for tokens, count in zip(old, more, strict=True)]
        need = sum(
            self.page_count(end) - self.page_count(len(t)) for t, end in zip(old, ends, strict=True)
        )
        room = self.allocator.available_size() // self.page_size

        fresh = self.allocator.alloc_extend(
            [len(tokens) for tokens in old],
            ends,
            [tokens[-1] if tokens else -1 for tokens in old],
            sum(more),
        )

        assert (fresh is None) == (need > room)
        if fresh is None:
            return
        taken = fresh.tolist()
        for number, count in zip(chosen, more, strict=True):
            olds[number].extend(taken[:count])
            taken = taken[count:]
        self.requests = [tokens for tokens in olds if tokens]

    @precondition(lambda self: self.requests)
    @rule()
    def decode(self) -> None:
        crossing = sum(len(tokens) % self.page_size == 0 for tokens in self.requests)
        room = self.allocator.available_size() // self.page_size

        step = self.allocator.alloc_decode(
            [len(tokens) + 1 for tokens in self.requests],
            [tokens[-1] for tokens in self.requests],
        )

        assert (step is None) == (crossing > room)
        if step is not None:
            for tokens, token in zip(self.requests, step.tolist(), strict=True):
                tokens.append(token)

    @precondition(lambda self: self.requests or self.tree)
    @rule(data=st.data(), as_tensor=st.booleans())
    def give_back(self, data: st.DataObject, as_tensor: bool) -> None:
        of_tree = bool(self.tree) and (not self.requests or data.draw(st.booleans()))
        holder = self.tree if of_tree else self.requests
        tokens = holder.pop(data.draw(st.integers(0, len(holder) - 1)))

        self.allocator.free(
            torch.tensor(tokens) if as_tensor else np.array(tokens), TREE if of_tree else REQ
        )

        if self.in_group:
            self.pending |= self.pages_of(tokens)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        tokens = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))

        self.allocator.transfer(tokens, REQ, TREE)

        self.tree.append(tokens)

    @rule(token=st.integers(-5, 700), to_tree=st.booleans())
    def wrong_call_changes_nothing(self, token: int, to_tree: bool) -> None:
        if any(token // self.page_size in self.pages_of(tokens) for tokens in self.requests):
            return
        allocator = self.allocator
        call = partial(allocator.transfer, giver=REQ, taker=TREE) if to_tree else allocator.free
        with pytest.raises(OwnershipError):
            call([token])

    @rule()
    def begin_group(self) -> None:
        self.allocator.free_group_begin()
        self.in_group = True

    @rule()
    def end_group(self) -> None:
        self.allocator.free_group_end()
        self.in_group = False
        self.pending = set()

    @invariant()
    def every_page_has_one_holder_and_the_ledger_knows_it(self) -> None:
        if not self.pages:
            return
        free = [*self.allocator.free_pages.tolist(), *self.allocator.release_pages.tolist()]
        claims = {REQ: self.requests, TREE: self.tree}
        seen = [*free, *self.pending]
        for owner, sequences in claims.items():
            pages = [page for tokens in sequences for page in self.pages_of(tokens)]
            seen += pages
            booked = {token // self.page_size for token in self.allocator.slots_of(owner).tolist()}
            assert booked == set(pages)
            assert self.allocator.held(owner) == len(pages) * self.page_size
        assert sorted(seen) == list(range(1, self.pages + 1))
        assert self.allocator.full_available_size() == len(free) * self.page_size
        assert self.allocator.held(FREE) == len(free) * self.page_size
        assert self.allocator.held(RESERVED) == len(self.pending) * self.page_size

    @invariant()
    def positions_of_a_page_follow_each_other(self) -> None:
        for tokens in [*self.requests, *self.tree]:
            for position, token in enumerate(tokens):
                assert token % self.page_size == position % self.page_size


TestPageMachine = PageMachine.TestCase
