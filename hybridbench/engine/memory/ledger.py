"""The owner of each number (page, slot or row) of a pool, in one byte per number.

Pages are passed by the hundred, so ``check`` and ``move`` work on whole arrays.  Slots are passed
one or a few at a time, so ``check_each`` and ``move_each`` work on ints, without numpy, in the same
bytes.

Production engines that keep a ledger refuse nothing.  ``SilentLedger`` behaves like theirs: it has
the same interface, but only counts.
"""

from __future__ import annotations

from collections.abc import Sequence

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

# Fills the upper half of the byte array, which negative numbers wrap around to, so that a number
# outside the pool reads as unowned without a bounds check.
_OUTSIDE = 255
# The byte that represents each owner in the ledger.
_AS_BYTES = tuple(bytes((owner,)) for owner in range(OWNER_COUNT))


class OwnerLedger:
    """Owner of each of the numbers 1 to ``size``; 0 is always RESERVED.

    The counts per owner leave out 0, so they always sum to ``size``.
    """

    def __init__(self, size: int, what: str) -> None:
        self.size = size
        self.what = what
        # One buffer, two views: the array for whole pages, the bytes for single numbers.
        self._bytes = bytearray([_OUTSIDE]) * (2 * (size + 1))
        self._owners: NDArray[np.uint8] = np.frombuffer(self._bytes, dtype=np.uint8)
        self._stamps: NDArray[np.int32] = np.zeros(size + 1, dtype=np.int32)
        self._order: NDArray[np.int32] = np.arange(size + 1, dtype=np.int32)
        self._held = [0] * OWNER_COUNT
        self.clear()

    def clear(self) -> None:
        """Mark everything free."""
        self._owners[: self.size + 1] = FREE
        self._owners[0] = RESERVED
        self._held = [0] * OWNER_COUNT
        self._held[FREE] = self.size

    def held(self, owner: Owner) -> int:
        """Count of numbers that ``owner`` holds."""
        return self._held[owner]

    def owner_of(self, number: int) -> Owner:
        """The owner of ``number``.

        Raises:
            UnknownSlotError: no such number.
        """
        if not 0 <= number <= self.size:
            raise UnknownSlotError(f"no {self.what} {number}: they run from 0 to {self.size}")
        return Owner(self._bytes[number])

    def numbers_of(self, owner: Owner) -> IntArray:
        """The numbers of ``owner`` in ascending order, without 0."""
        found: IntArray = np.flatnonzero(self._owners[1 : self.size + 1] == owner) + 1
        return found

    def check(self, action: str, numbers: IntArray, giver: Owner) -> None:
        """Raise unless ``giver`` holds all ``numbers``; does not look for repeats.

        Raises:
            OwnershipError: a subclass that names the problem; nothing has been changed.
        """
        try:
            owners = self._owners[numbers]
        except IndexError:
            raise self._outside(action, numbers) from None
        # Compare as bytes: for a few hundred numbers, comparing each with a Python int and counting
        # the matches costs several times as much as the gather.
        if owners.tobytes() != _AS_BYTES[giver] * len(owners):
            raise self._refused(action, numbers[owners != giver], giver)
        if giver in (FREE, RESERVED) and len(numbers):
            # No caller owns these two: their numbers move only inside the allocator.
            raise self._refused(action, numbers, giver)

    def repeats(self, numbers: IntArray) -> bool:
        """Whether a number occurs twice; all must be in the pool."""
        count = len(numbers)
        if count < 2:
            return False
        if count > len(self._order):
            return True
        # Each number is stamped with its position; a repeat overwrites the first one's stamp.
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
            raise DoubleFreeError(
                f"cannot {action} {self.what} {shown(twice)}: passed more than once"
            )

    def move(self, numbers: IntArray, giver: Owner, taker: Owner) -> None:
        """Record that ``taker`` holds ``numbers``, without checks."""
        self._owners[numbers] = taker
        self._held[giver] -= len(numbers)
        self._held[taker] += len(numbers)

    def check_each(self, action: str, numbers: Sequence[int], giver: Owner) -> None:
        """Do ``check`` and ``check_distinct`` for a few numbers.

        Raises:
            OwnershipError: as in those; nothing has been changed.
        """
        owners, size = self._bytes, self.size
        for number in numbers:
            if not 0 <= number <= size:
                raise UnknownSlotError(
                    f"cannot {action} {self.what} {number}: they run from 1 to {size}"
                )
            if owners[number] != giver or giver in (FREE, RESERVED):
                raise refusal(self.what, action, [number], Owner(owners[number]), giver)
        if len(numbers) > 1 and len(set(numbers)) != len(numbers):
            raise DoubleFreeError(
                f"cannot {action} {self.what} {shown(numbers)}: one is passed more than once"
            )

    def move_each(self, numbers: Sequence[int], taker: Owner) -> None:
        """Record that ``taker`` holds a few ``numbers``, regardless of their owners."""
        owners, held = self._bytes, self._held
        for number in numbers:
            held[owners[number]] -= 1
            owners[number] = taker
            held[taker] += 1

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
    """A ledger that refuses nothing and counts what it would have refused.

    Attributes:
        objections: numbers freed or transferred by a caller that did not own them, or twice in one
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
        """Record that ``taker`` holds ``numbers``, regardless of their owners."""
        del giver
        moved = np.unique(self._inside(numbers))
        before = np.bincount(self._owners[moved], minlength=OWNER_COUNT).tolist()
        self._held = [held - gone for held, gone in zip(self._held, before, strict=True)]
        self._held[taker] += len(moved)
        self._owners[moved] = taker

    def check_each(self, action: str, numbers: Sequence[int], giver: Owner) -> None:
        """Count those of ``numbers`` that ``giver`` does not hold, and repeats."""
        try:
            super().check_each(action, numbers, giver)
        except OwnershipError:
            theirs = {n for n in numbers if 0 < n <= self.size and self._bytes[n] == giver}
            self.objections += len(numbers) - len(theirs)

    def move_each(self, numbers: Sequence[int], taker: Owner) -> None:
        """Record the new owner of those that are in the pool."""
        super().move_each([n for n in numbers if 0 < n <= self.size], taker)

    def _inside(self, numbers: IntArray) -> IntArray:
        return numbers[(numbers > 0) & (numbers <= self.size)]
