"""Account for the memory cost of observation: heap that answers allocate and do not free.

If answers grow, or the worker remembers every poll, the bench measures its own effect and blames
the engine for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from hybridbench.sampling.malloc import MallocInfo

# Python's blocks are at most 512 bytes; parts of a reply (floats, strings) are about this size.
_BLOCK_BYTES = 64


class ObserverAccount:
    """Sums up heap growth between ``begin`` and ``end``, on one thread.

    The sum stays at 0 if each answer is freed in the window in which the next one is made.
    """

    def __init__(self, read_malloc: Callable[[], MallocInfo] | None) -> None:
        self._read_malloc = read_malloc
        self._before = (0, 0)
        self.held_bytes = 0

    def begin(self) -> None:
        """Start a window."""
        self._before = self._marks()

    def end(self) -> None:
        """End the window and add what it left on the heap."""
        blocks, in_use_bytes = self._marks()
        self.held_bytes += (blocks - self._before[0]) * _BLOCK_BYTES
        self.held_bytes += in_use_bytes - self._before[1]

    def _marks(self) -> tuple[int, int]:
        in_use_bytes = 0 if self._read_malloc is None else self._read_malloc().in_use_bytes
        return sys.getallocatedblocks(), in_use_bytes
