"""First-in, first-out lists of free numbers: a ring in one array, and slices of arrays.

Taking and putting k numbers costs the ring a copy of k, never of the list: rebuilding the list on
each free, as the list of slices does, costs 8 us a thousand slots.
"""

from __future__ import annotations

import numpy as np

from hybridbench.engine.memory.indices import IntArray


class FreeList:
    """Numbers 1 to ``size`` that are free.

    The list believes what it is given: of an allocator that does not check owners it may get a
    number twice, and then it hands it out twice.  The array grows for what is too many.
    """

    def __init__(self, size: int) -> None:
        self._room = size
        self._ring: IntArray = np.arange(1, size + 1, dtype=np.int64)
        self._head = 0
        self._count = size

    def __len__(self) -> int:
        return self._count

    def take(self, count: int) -> IntArray:
        """The ``count`` oldest numbers, owned by the caller; there must be as many."""
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
        """Append ``numbers``; the array stays the caller's."""
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
        """Make ``numbers`` the whole list."""
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
    """The same in an array of its own after each ``put``; ``take`` slices the array.

    What ``take`` gives is a view: whoever keeps it keeps the whole array it was taken from, long
    after the list has gone on to another.  So callers copy what they keep.

    Source: ``free_slots`` of SGLang's HostKVCache.
    """

    def __init__(self, size: int) -> None:
        self._free_slots: IntArray = np.arange(1, size + 1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._free_slots)

    def take(self, count: int) -> IntArray:
        """The ``count`` oldest numbers, to be read only; there must be as many."""
        taken, self._free_slots = self._free_slots[:count], self._free_slots[count:]
        return taken

    def put(self, numbers: IntArray) -> None:
        """Append ``numbers``; the array stays the caller's."""
        self._free_slots = np.concatenate((self._free_slots, numbers))

    def snapshot(self) -> IntArray:
        """A copy of the list, next one first."""
        return self._free_slots.copy()

    def reset(self, numbers: IntArray) -> None:
        """Make ``numbers`` the whole list."""
        self._free_slots = numbers.copy()
