"""Who holds each number of a pool, as one byte a number; checks and moves work on whole arrays.

The ledgers of engines in production, where they have one, do not refuse: ``SilentLedger`` is told
the same and only counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import (
    FREE,
    OWNER_COUNT,
    RESERVED,
    DoubleFreeError,
    Owner,
    OwnershipError,
    UnknownSlotError,
    refusal,
    shown,
)

# Fills the upper half of the byte array, so that a number outside the pool (negative ones wrap
# round to it) reads as nobody's and needs no bounds check of its own.
_OUTSIDE = 255
# Each owner as the one byte that stands for it in the account.
_AS_BYTES = tuple(bytes((owner,)) for owner in range(OWNER_COUNT))


class OwnerLedger:
    """Owner of each of the numbers 1 to ``size``; 0 is RESERVED for good.

    Counts are kept per owner, 0 left out, so they always sum to ``size``.
    """

    def __init__(self, size: int, what: str) -> None:
        self.size = size
        self.what = what
        self._owners: NDArray[np.uint8] = np.full(2 * (size + 1), _OUTSIDE, dtype=np.uint8)
        self._stamps: NDArray[np.int32] = np.zeros(size + 1, dtype=np.int32)
        self._order: NDArray[np.int32] = np.arange(size + 1, dtype=np.int32)
        self._held = [0] * OWNER_COUNT
        self.clear()

    def clear(self) -> None:
        """Everything is free again."""
        self._owners[: self.size + 1] = FREE
        self._owners[0] = RESERVED
        self._held = [0] * OWNER_COUNT
        self._held[FREE] = self.size

    def held(self, owner: Owner) -> int:
        """How many numbers ``owner`` holds."""
        return self._held[owner]

    def owner_of(self, number: int) -> Owner:
        """Who holds ``number``.

        Raises:
            UnknownSlotError: no such number.
        """
        if not 0 <= number <= self.size:
            raise UnknownSlotError(f"no {self.what} {number}: they run from 0 to {self.size}")
        return Owner(int(self._owners[number]))

    def numbers_of(self, owner: Owner) -> IntArray:
        """The numbers of ``owner`` in rising order, 0 left out."""
        found: IntArray = np.flatnonzero(self._owners[1 : self.size + 1] == owner) + 1
        return found

    def check(self, action: str, numbers: IntArray, giver: Owner) -> None:
        """Raise unless ``giver`` holds every one of ``numbers``; repeats are not looked for.

        Raises:
            OwnershipError: a subclass that says what is wrong; nothing has been changed.
        """
        try:
            owners = self._owners[numbers]
        except IndexError:
            raise self._outside(action, numbers) from None
        # As bytes: for the few hundred numbers of a turn an elementwise comparison with a Python
        # int and its count cost several times as much as the gather.
        if owners.tobytes() != _AS_BYTES[giver] * len(owners):
            raise self._refused(action, numbers[owners != giver], giver)
        if giver in (FREE, RESERVED) and len(numbers):
            # Nobody speaks for these two: their numbers move inside the allocator only.
            raise self._refused(action, numbers, giver)

    def repeats(self, numbers: IntArray) -> bool:
        """Whether a number occurs twice; all must be in the pool."""
        count = len(numbers)
        if count < 2:
            return False
        if count > len(self._order):
            return True
        # Each number is stamped with its place; a repeat overwrites the stamp of the first one.
        order = self._order[:count]
        self._stamps[numbers] = order
        return self._stamps[numbers].tobytes() != order.tobytes()

    def check_distinct(self, action: str, numbers: IntArray) -> None:
        """Raise if a number occurs twice.

        Raises:
            DoubleFreeError: naming the numbers.
        """
        if self.repeats(numbers):
            found, counts = np.unique(numbers, return_counts=True)
            twice: list[int] = found[counts > 1].tolist()
            raise DoubleFreeError(f"cannot {action} {self.what} {shown(twice)}: named twice")

    def move(self, numbers: IntArray, giver: Owner, taker: Owner) -> None:
        """Record that ``taker`` holds ``numbers``; checks are the caller's business."""
        self._owners[numbers] = taker
        self._held[giver] -= len(numbers)
        self._held[taker] += len(numbers)

    def snapshot(self) -> bytes:
        """The account as bytes, for ``restore``."""
        return self._owners.tobytes()

    def restore(self, saved: bytes) -> None:
        """Take over an account made by ``snapshot`` of a ledger of the same size."""
        self._owners[:] = np.frombuffer(saved, dtype=np.uint8)
        counts = np.bincount(self._owners[1 : self.size + 1], minlength=OWNER_COUNT)
        self._held = counts[:OWNER_COUNT].tolist()

    def _refused(self, action: str, wrong: IntArray, giver: Owner) -> OwnershipError:
        holders = self._owners[wrong]
        if (holders == _OUTSIDE).any():
            return self._outside(action, wrong)
        first = Owner(int(holders[0]))
        same: list[int] = wrong[holders == first].tolist()
        return refusal(self.what, action, same, first, giver)

    def _outside(self, action: str, numbers: IntArray) -> UnknownSlotError:
        bad: list[int] = numbers[(numbers < 0) | (numbers > self.size)].tolist()
        return UnknownSlotError(
            f"cannot {action} {self.what} {shown(bad)}: they run from 1 to {self.size}"
        )


class SilentLedger(OwnerLedger):
    """The same account, which lets everything pass and counts what it would have refused.

    Attributes:
        objections: numbers that were given away by somebody who did not hold them, or twice in one
            call.
    """

    def __init__(self, size: int, what: str) -> None:
        super().__init__(size, what)
        self.objections = 0

    def check(self, action: str, numbers: IntArray, giver: Owner) -> None:
        """Count those of ``numbers`` that ``giver`` does not hold."""
        try:
            super().check(action, numbers, giver)
        except OwnershipError:
            inside = self._inside(numbers)
            wrong = int(np.count_nonzero(self._owners[inside] != giver))
            self.objections += max(1, wrong + len(numbers) - len(inside))

    def repeats(self, numbers: IntArray) -> bool:
        return super().repeats(self._inside(numbers))

    def check_distinct(self, action: str, numbers: IntArray) -> None:
        """Count the numbers that occur twice."""
        if self.repeats(numbers):
            self.objections += len(numbers) - len(np.unique(numbers))

    def move(self, numbers: IntArray, giver: Owner, taker: Owner) -> None:
        """Record that ``taker`` holds ``numbers``, whoever held them."""
        del giver
        moved = np.unique(self._inside(numbers))
        before = np.bincount(self._owners[moved], minlength=OWNER_COUNT).tolist()
        self._held = [held - gone for held, gone in zip(self._held, before, strict=True)]
        self._held[taker] += len(moved)
        self._owners[moved] = taker

    def _inside(self, numbers: IntArray) -> IntArray:
        return numbers[(numbers > 0) & (numbers <= self.size)]
