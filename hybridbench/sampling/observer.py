"""What looking costs the one looked at in memory: heap taken by answers and not given back.

A bench that polls an endpoint whose answers grow, or whose worker remembers every poll, sees its
own growth and blames the engine for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from hybridbench.sampling.malloc import MallocInfo

# Python's blocks are at most 512 bytes; what a reply consists of (floats, strings) is near this.
_BLOCK_BYTES = 64


class ObserverAccount:
    """Adds up what the heap grew by between ``begin`` and ``end``, on one thread.

    In balance when the previous answer is let go within the same window that makes the next one.
    """

    def __init__(self, read_malloc: Callable[[], MallocInfo] | None) -> None:
        self._read_malloc = read_malloc
        self._before = (0, 0)
        self.held_bytes = 0

    def begin(self) -> None:
        """Looking begins."""
        self._before = self._marks()

    def end(self) -> None:
        """Looking is over; whatever it left on the heap is on its account."""
        blocks, in_use_bytes = self._marks()
        self.held_bytes += (blocks - self._before[0]) * _BLOCK_BYTES
        self.held_bytes += in_use_bytes - self._before[1]

    def _marks(self) -> tuple[int, int]:
        in_use_bytes = 0 if self._read_malloc is None else self._read_malloc().in_use_bytes
        return sys.getallocatedblocks(), in_use_bytes
