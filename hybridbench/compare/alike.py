"""Workers under equal conditions: on one processor, and with pages of like kind.

Free to move, two versions sit on different processors for a slice or for minutes, and what else
runs there is in the difference: on two busy cores the standard deviation of a pair of 5 s blocks
was 4% of throughput, on one of them 2%.

The kernel hands out its smallest free blocks first, so a process that is built on a machine with a
past gets single pages from all over memory, the next one fewer of them.  Pages that do not lie side
by side need more entries of the processor's address caches.  Between two processes of one program
this was worth up to 3% of throughput, in proportion to the mean length of their runs of pages
(1.1 to 2.0 of 4 KiB, from /proc/PID/pagemap).  So what is scattered in memory is held while workers
are built.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from hybridbench.sampling.headroom import available_bytes, memory_limit

# Twice what was free in blocks of 128 KiB and less on a machine of 24 GiB after two hours.
_MOST_BYTES: Final = 2**30
_LEAST_BYTES: Final = 2**24
_SHARE: Final = 1 / 16  # of what there is, at most


def cpu_for_workers() -> int | None:
    """The last processor that we may use, as the first gets most interrupts; None if it is the
    only one, and whoever drives the workers has nowhere to go.
    """
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1] if len(usable) > 1 else None


@contextmanager
def children_on(cpu: int | None) -> Iterator[None]:
    """Processes that are started within run on ``cpu`` alone; None leaves them free."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    # Inherited at birth, so that no thread of the child can be missed.
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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
