"""Pages of like kind for all versions: what is scattered in memory is held while workers are built.

The kernel hands out its smallest free blocks first, so a process that is built on a machine with a
past gets single pages from all over memory, the next one fewer of them.  Pages that do not lie side
by side need more entries of the processor's address caches.  Between two processes of one program
this was worth up to 3 % of throughput, in proportion to the mean length of their runs of pages
(1.1 to 2.0 of 4 KiB, from /proc/PID/pagemap).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from hybridbench.sampling.headroom import available_bytes, memory_limit

# Twice what was free in blocks of 128 KiB and less on a machine of 24 GiB after two hours.
_MOST_BYTES: Final = 2**30
_LEAST_BYTES: Final = 2**24
_SHARE: Final = 1 / 16  # of what there is, at most


@contextmanager
def scattered_pages_held() -> Iterator[None]:
    """Processes that are built within get pages from larger blocks; does nothing where memory is
    too short for it.
    """
    held = _held_pages(_size())
    try:
        yield
    finally:
        if held is not None:
            held.close()


def _held_pages(size: int) -> mmap.mmap | None:
    if size < _LEAST_BYTES:
        return None
    try:
        held = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError):
        return None
    # A huge page would be taken from where there is room for one.
    held.madvise(mmap.MADV_NOHUGEPAGE)
    # A view that is kept would keep the memory.
    np.frombuffer(held, dtype=np.uint8)[:: mmap.PAGESIZE] = 1
    return held


def _size() -> int:
    known = [available_bytes()]
    limit = memory_limit()
    known.append(None if limit is None else limit.size_bytes)
    room = min((size for size in known if size is not None), default=0)
    return min(_MOST_BYTES, int(room * _SHARE))
