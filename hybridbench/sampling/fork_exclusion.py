"""Keep memory out of forked children: a census needs the Python heap, not gigabytes of pool.

A fork copies page tables, and afterwards each page that the engine writes is copied once.  Pages
marked ``MADV_DONTFORK`` cost neither.  The child must not read them: it would die of a segmentation
fault.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from dataclasses import dataclass

_MADV_DONTFORK = 10
_MADV_DOFORK = 11
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class MemoryRange:
    """``size_bytes`` bytes from ``address`` on, which stay there while the process lives."""

    address: int
    size_bytes: int

    def whole_pages(self) -> MemoryRange | None:
        """The part made of whole pages; the rest may share its page with other objects."""
        page = mmap.PAGESIZE
        start = -(-self.address // page) * page
        end = (self.address + self.size_bytes) // page * page
        return MemoryRange(start, end - start) if end > start else None

    def overlaps(self, address: int, size_bytes: int) -> bool:
        """Whether any of ``size_bytes`` bytes from ``address`` on lies inside."""
        return self.address < address + size_bytes and address < self.address + self.size_bytes


def exclude_from_forks(ranges: Iterable[MemoryRange]) -> tuple[MemoryRange, ...]:
    """Mark the whole pages of ``ranges``; return those that the kernel accepted."""
    return tuple(part for part in _parts(ranges) if _advise(part, _MADV_DONTFORK))


def include_in_forks(ranges: Iterable[MemoryRange]) -> None:
    """Undo ``exclude_from_forks``, before the memory is given back."""
    for part in _parts(ranges):
        _advise(part, _MADV_DOFORK)


def _parts(ranges: Iterable[MemoryRange]) -> list[MemoryRange]:
    return [part for part in (given.whole_pages() for given in ranges) if part is not None]


def _advise(part: MemoryRange, advice: int) -> bool:
    madvise = _LIBC.madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise.restype = ctypes.c_int
    return bool(madvise(part.address, part.size_bytes, advice) == 0)
