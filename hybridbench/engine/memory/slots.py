"""Allocators of single slots, which record their owners; one has a group window for admission.

The free list is first in, first out: a freed slot is the last to be handed out again, which
delays the effect of a use after free and makes runs repeatable.
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
    """Allocates slots 1 to ``size``; 0 is the dump and always belongs to RESERVED.

    Invariant: ``available_size()`` plus ``held(owner)`` of all owners but FREE equals ``size``.

    Without ``check_owners`` nothing is refused, as in allocators without a ledger: a slot
    freed twice is in the free list twice, which breaks the invariant.
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
        """Slots that owner checks would have refused to free or transfer."""
        return self._ledger.objections if isinstance(self._ledger, SilentLedger) else 0

    def available_size(self) -> int:
        """Slots that ``alloc`` can hand out."""
        return len(self.free_slots)

    def alloc(self, need_size: int, owner: Owner = REQ) -> list[int] | None:
        """Allocate ``need_size`` slots for ``owner``; None, with none taken, if too few.

        Raises:
            AllocationSizeError: negative, or not an integer.
        """
        need_size = checked_size(need_size, self._what)
        free_slots = self.free_slots
        if need_size > len(free_slots):
            return None
        slots = [free_slots.popleft() for _ in range(need_size)]
        self._ledger.move_each(slots, owner)
        return slots

    def free(self, slots: SlotInput, owner: Owner = REQ) -> None:
        """Free ``slots``; an empty list is allowed.

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
        """Forget all owners: every slot is free, in the order 1 to ``size``."""
        self.free_slots = deque(range(1, self.size + 1))
        self._ledger.clear()

    def held(self, owner: Owner) -> int:
        """Slots that ``owner`` holds; for FREE, those that can be allocated."""
        return self._ledger.held(owner)

    def owner_of(self, slot: int) -> Owner:
        """The owner of ``slot``.

        Raises:
            UnknownSlotError: no such slot.
        """
        return self._ledger.owner_of(slot)

    def slots_of(self, owner: Owner) -> list[int]:
        """The slots of ``owner``, ascending, without the dump slot; walks the whole ledger."""
        slots: list[int] = self._ledger.numbers_of(owner).tolist()
        return slots


class MambaSlotAllocator(SlotAllocator):
    """Allocates state slots; a group window reserves a number of them for admission.

    ``alloc_group_begin(n)`` opens the window: it takes n slots off the free list, from which
    ``alloc(1)`` is then served.  ``alloc_group_end`` closes it and returns the unused ones.

    * A group too big for the pool reserves nothing, and allocation works as usual.
    * Windows nest: an inner begin adds n slots to the same window, and only the outermost end
      returns the unused ones.
    * ``clear`` inside a window closes it; the following end does nothing.
    * ``with allocator.group(n):`` closes the window however the block is left.
    """

    def __init__(
        self, size: int, device: str | torch.device = "cpu", *, check_owners: bool = True
    ) -> None:
        self._group: list[int] = []
        self._group_depth = 0
        super().__init__(size, device, "state slots", check_owners=check_owners)

    def available_size(self) -> int:
        """Slots that any caller can take, not counting those reserved by an open group.

        Inside a group ``alloc(1)`` can succeed ``available_size() + group_size()`` times.
        """
        return len(self.free_slots)

    def group_size(self) -> int:
        """Unused slots reserved by the open group; 0 without one."""
        return len(self._group)

    def alloc(self, need_size: int, owner: Owner = REQ) -> list[int] | None:
        """Allocate ``need_size`` slots for ``owner``; None, with none taken, if too few.

        A single slot comes from the open group first; several never do.

        Raises:
            AllocationSizeError: negative, or not an integer.
        """
        if self._group and checked_size(need_size, self._what) == 1:
            slots = [self._group.pop()]
            self._ledger.move_each(slots, owner)
            return slots
        return super().alloc(need_size, owner)

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Reserve ``num_reqs`` slots for single allocations, or none if there are too few.

        Raises:
            AllocationSizeError: negative, or not an integer; no window was opened.
        """
        taken = super().alloc(num_reqs, RESERVED)
        self._group_depth += 1
        if taken is not None:
            # Reversed, since slots are popped from the end: they leave in the free list's order.
            self._group = [*reversed(taken), *self._group]

    def alloc_group_end(self) -> None:
        """Close the window; the outermost end returns unused slots to the front of the list."""
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
        """Open a window of ``num_reqs`` slots for the ``with`` block."""
        self.alloc_group_begin(num_reqs)
        try:
            yield
        finally:
            self.alloc_group_end()

    def clear(self) -> None:
        """Forget all owners and the open group: every slot is free, in the order 1 to ``size``."""
        super().clear()
        self._group = []
        self._group_depth = 0
