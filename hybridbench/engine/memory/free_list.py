"""First-in, first-out lists of free numbers: a ring buffer, and a list made of array slices.

The ring copies only the numbers that are taken or put.  The sliced list is rebuilt on every free,
which costs 8 us per thousand slots.
"""

from __future__ import annotations

import numpy as np

from hybridbench.engine.memory.indices import IntArray


class FreeList:
    """The free numbers among 1 to ``size``.

    Nothing is validated: a number that an allocator without owner checks puts twice is handed out
    twice.  The array grows to hold the excess.
    """

    def __init__(self, size: int) -> None:
        self._room = size
        self._ring: IntArray = np.arange(1, size + 1, dtype=np.int64)
        self._head = 0
        self._count = size

    def __len__(self) -> int:
        return self._count

    def take(self, count: int) -> IntArray:
        """Remove the ``count`` oldest numbers, which must exist; the caller owns the result."""
        head = self._head
        end = head + count
        if end <= self._room:
            taken = self._ring[head:end].copy()
        else:
            taken = np.concatenate((self._ring[head:], self._ring[: end - self._room]))
        self._head = end % self._room if self._room else 0
        self._count -= count
        return taken

    def put(self, numbers: IntArray) -> None:
        """Append ``numbers``; the caller keeps its array."""
        count = len(numbers)
        if self._count + count > self._room:
            self._grow(self._count + count)
        tail = (self._head + self._count) % self._room if self._room else 0
        room = self._room - tail
        if count <= room:
            self._ring[tail : tail + count] = numbers
        else:
            self._ring[tail:] = numbers[:room]
            self._ring[: count - room] = numbers[room:]
        self._count += count

    def snapshot(self) -> IntArray:
        """A copy of the list, next one first."""
        end = self._head + self._count
        if end <= self._room:
            return self._ring[self._head : end].copy()
        return np.concatenate((self._ring[self._head :], self._ring[: end - self._room]))

    def reset(self, numbers: IntArray) -> None:
        """Replace the whole list by ``numbers``."""
        self._head = 0
        self._count = 0
        self.put(numbers)

    def _grow(self, room: int) -> None:
        listed = self.snapshot()
        self._ring = np.empty(room, dtype=np.int64)
        self._ring[: len(listed)] = listed
        self._room = room
        self._head = 0


class SlicedFreeList:
    """The same interface on one array: ``take`` slices it, and each ``put`` replaces it.

    The result of ``take`` is a view, which keeps the whole array alive even after the list has
    replaced it.  Callers must copy what they keep.

    Source: ``free_slots`` of SGLang's HostKVCache.
    """

    def __init__(self, size: int) -> None:
        self._free_slots: IntArray = np.arange(1, size + 1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._free_slots)

    def take(self, count: int) -> IntArray:
        """Remove the ``count`` oldest numbers, which must exist; the result is read-only."""
        taken, self._free_slots = self._free_slots[:count], self._free_slots[count:]
        return taken

    def put(self, numbers: IntArray) -> None:
        """Append ``numbers``; the caller keeps its array."""
        self._free_slots = np.concatenate((self._free_slots, numbers))

    def snapshot(self) -> IntArray:
        """A copy of the list, next one first."""
        return self._free_slots.copy()

    def reset(self, numbers: IntArray) -> None:
        """Replace the whole list by ``numbers``."""
        self._free_slots = numbers.copy()
