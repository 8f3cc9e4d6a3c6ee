"""Allocators of single slots: who holds which, with a group window for admission.

The free list is first in, first out: a slot given back is the last to be handed out again, which
makes a use after free visible late and a run repeatable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hybridbench.engine.memory.indices import SlotInput, as_index_list
from hybridbench.engine.memory.ledger import OwnerLedger, SilentLedger
from hybridbench.engine.memory.owners import FREE, REQ, RESERVED, Owner
from hybridbench.engine.memory.sizes import checked_size


class SlotAllocator:
    """Slots 1 to ``size``; 0 is the dump and belongs to RESERVED for good.

    Always: ``available_size() + sum of held(owner) over all owners but FREE == size``.

    Without ``check_owners`` nothing is refused, as in allocators that keep no account: a slot that
    is freed twice stands in the free list twice, and the law above is broken.
    """

    def __init__(
        self,
        size: int,
        device: str | torch.device = "cpu",
        what: str = "slots",
        *,
        check_owners: bool = True,
    ) -> None:
        if size < 1:
            raise ValueError(f"an allocator of {what} needs at least 1, not {size}")
        self.size = size
        self.device = torch.device(device)
        self._what = what
        self._ledger = (OwnerLedger if check_owners else SilentLedger)(size, what)
        self.free_slots: deque[int] = deque()
        self.clear()

    @property
    def objections(self) -> int:
        """Slots that the account would not have let pass, had it been asked to."""
        return self._ledger.objections if isinstance(self._ledger, SilentLedger) else 0

    def available_size(self) -> int:
        """Slots that ``alloc`` can hand out."""
        return len(self.free_slots)

    def alloc(self, need_size: int, owner: Owner = REQ) -> list[int] | None:
        """Take ``need_size`` slots for ``owner``; None, and nothing taken, if there are too few.

        Raises:
            AllocationSizeError: negative, or no integer.
        """
        need_size = checked_size(need_size, self._what)
        free_slots = self.free_slots
        if need_size > len(free_slots):
            return None
        slots = [free_slots.popleft() for _ in range(need_size)]
        self._ledger.move_each(slots, owner)
        return slots

    def free(self, slots: SlotInput, owner: Owner = REQ) -> None:
        """Give ``slots`` back; an empty list is allowed.

        Raises:
            OwnershipError: one is not ``owner``'s; nothing was freed.
        """
        checked = as_index_list(slots, self.device)
        self._ledger.check_each("free", checked, owner)
        self._ledger.move_each(checked, FREE)
        self.free_slots.extend(checked)

    def transfer(self, slots: SlotInput, giver: Owner, taker: Owner) -> None:
        """Record that ``taker`` now holds ``slots`` and must free them.

        Raises:
            OwnershipError: one is not ``giver``'s; nothing was changed.
        """
        if taker in (FREE, RESERVED):
            raise ValueError("slots are released with free(), not transferred to FREE or RESERVED")
        listed = as_index_list(slots, self.device)
        self._ledger.check_each("transfer", listed, giver)
        self._ledger.move_each(listed, taker)

    def clear(self) -> None:
        """Forget all holders: every slot is free, in the order 1 to ``size``."""
        self.free_slots = deque(range(1, self.size + 1))
        self._ledger.clear()

    def held(self, owner: Owner) -> int:
        """Slots that ``owner`` holds; FREE means those that can be handed out."""
        return self._ledger.held(owner)

    def owner_of(self, slot: int) -> Owner:
        """Who holds ``slot``.

        Raises:
            UnknownSlotError: no such slot.
        """
        return self._ledger.owner_of(slot)

    def slots_of(self, owner: Owner) -> list[int]:
        """The slots of ``owner`` in rising order, without the dump slot; walks the whole ledger."""
        slots: list[int] = self._ledger.numbers_of(owner).tolist()
        return slots


class MambaSlotAllocator(SlotAllocator):
    """State slots, with a window in which admission has a number of them set aside.

    The window: ``alloc_group_begin(n)`` takes n slots off the free list at once; inside it
    ``alloc(1)`` is served from them, and ``alloc_group_end`` returns what was not used.

    * A group too big for the pool reserves nothing, and allocation goes the normal way.
    * Windows nest by counting: an inner begin sets aside n more for the same window, and only the
      end that closes the outermost begin returns the rest.
    * ``clear`` inside a window closes it; the end that follows does nothing.
    * ``with allocator.group(n):`` closes the window on every way out, an early return included.
    """

    def __init__(
        self, size: int, device: str | torch.device = "cpu", *, check_owners: bool = True
    ) -> None:
        self._group: list[int] = []
        self._group_depth = 0
        super().__init__(size, device, "state slots", check_owners=check_owners)

    def available_size(self) -> int:
        """Slots that anyone can take: those set aside by an open group are not among them.

        Inside a group ``alloc(1)`` can succeed ``available_size() + group_size()`` times.
        """
        return len(self.free_slots)

    def group_size(self) -> int:
        """Slots set aside by the open group and not yet used; 0 outside of one."""
        return len(self._group)

    def alloc(self, need_size: int, owner: Owner = REQ) -> list[int] | None:
        """Take ``need_size`` slots for ``owner``; None, and nothing taken, if there are too few.

        A single slot comes from the open group first; more than one never do.

        Raises:
            AllocationSizeError: negative, or no integer.
        """
        need_size = checked_size(need_size, self._what)
        if need_size == 1 and self._group:
            slots = [self._group.pop()]
            self._ledger.move_each(slots, owner)
            return slots
        return super().alloc(need_size, owner)

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Set ``num_reqs`` slots aside for single allocations, or none if there are too few.

        Raises:
            AllocationSizeError: negative, or no integer; no window was opened.
        """
        taken = super().alloc(num_reqs, RESERVED)
        self._group_depth += 1
        if taken is not None:
            # Popped from the end, so reversed: single allocations see the free list's order.
            self._group = [*reversed(taken), *self._group]

    def alloc_group_end(self) -> None:
        """Close the window; the outermost end puts what was not used back at the front."""
        if self._group_depth == 0:
            return
        self._group_depth -= 1
        if self._group_depth > 0:
            return
        self._ledger.move_each(self._group, FREE)
        self.free_slots.extendleft(self._group)
        self._group = []

    @contextmanager
    def group(self, num_reqs: int) -> Iterator[None]:
        """A window of ``num_reqs`` slots that is closed on every way out."""
        self.alloc_group_begin(num_reqs)
        try:
            yield
        finally:
            self.alloc_group_end()

    def clear(self) -> None:
        """Forget all holders and the open group: every slot is free, in the order 1 to ``size``."""
        super().clear()
        self._group = []
        self._group_depth = 0
