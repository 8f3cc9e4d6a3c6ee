"""State slots compared with a plain dict: every slot always has exactly one holder."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybridbench.engine.memory.owners import (
    FREE,
    REQ,
    RESERVED,
    SESSION,
    TREE,
    Owner,
    OwnershipError,
)
from hybridbench.engine.memory.slots import MambaSlotAllocator

SIZE = 7
OWNERS = st.sampled_from([REQ, TREE, SESSION])


class SlotMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.allocator = MambaSlotAllocator(SIZE)
        self.free = list(range(1, SIZE + 1))
        self.group: list[int] = []
        self.depth = 0
        self.holder: dict[int, Owner] = {}

    @rule(count=st.integers(0, 4), owner=OWNERS)
    def alloc(self, count: int, owner: Owner) -> None:
        slots = self.allocator.alloc(count, owner)

        source = self.group if count == 1 and self.group else self.free
        expected = None if count > len(source) else source[:count]
        assert slots == expected
        for slot in expected or []:
            source.remove(slot)
            self.holder[slot] = owner

    @precondition(lambda self: self.holder)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(set(self.holder.values()))))
        mine = [slot for slot, holder in self.holder.items() if holder == owner]
        slots = data.draw(st.lists(st.sampled_from(mine), unique=True))

        self.allocator.free(slots, owner)

        for slot in slots:
            del self.holder[slot]
        self.free += slots

    @precondition(lambda self: self.holder)
    @rule(data=st.data(), taker=OWNERS)
    def transfer(self, data: st.DataObject, taker: Owner) -> None:
        slot = data.draw(st.sampled_from(sorted(self.holder)))

        self.allocator.transfer([slot], self.holder[slot], taker)

        self.holder[slot] = taker

    @rule(
        slots=st.lists(st.integers(-2, SIZE + 2), min_size=1, max_size=3),
        owner=OWNERS,
        is_free=st.booleans(),
    )
    def wrong_call_changes_nothing(self, slots: list[int], owner: Owner, is_free: bool) -> None:
        if len(set(slots)) == len(slots) and all(self.holder.get(s) == owner for s in slots):
            return
        allocator = self.allocator
        if is_free:
            call = partial(allocator.free, owner=owner)
        else:
            call = partial(allocator.transfer, giver=owner, taker=TREE)
        with pytest.raises(OwnershipError):
            call(slots)

    @rule(count=st.integers(0, 4))
    def begin_group(self, count: int) -> None:
        self.allocator.alloc_group_begin(count)

        self.depth += 1
        if count <= len(self.free):
            self.group += self.free[:count]
            self.free = self.free[count:]

    @rule()
    def end_group(self) -> None:
        self.allocator.alloc_group_end()

        if self.depth == 1:
            self.free = self.group + self.free
            self.group = []
        self.depth = max(0, self.depth - 1)

    @rule()
    def clear(self) -> None:
        self.allocator.clear()

        self.free = list(range(1, SIZE + 1))
        self.group, self.depth, self.holder = [], 0, {}

    @invariant()
    def the_account_is_the_models(self) -> None:
        allocator = self.allocator
        assert list(allocator.free_slots) == self.free
        assert allocator.group_size() == len(self.group)
        for slot in range(1, SIZE + 1):
            booked = allocator.owner_of(slot)
            if slot in self.holder:
                assert booked == self.holder[slot]
            else:
                assert booked == (RESERVED if slot in self.group else FREE)
        held = {owner: allocator.held(owner) for owner in (REQ, TREE, SESSION)}
        assert held == {
            owner: sum(holder == owner for holder in self.holder.values()) for owner in held
        }
        assert allocator.available_size() + allocator.group_size() + sum(held.values()) == SIZE


TestSlotMachine = SlotMachine.TestCase
