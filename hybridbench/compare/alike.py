"""Equal conditions for all workers: one CPU, and similarly contiguous memory pages.

Workers that are not pinned run on different CPUs for a slice or for minutes, and the difference
between versions then includes the other load on these CPUs.  On two busy cores, the standard
deviation of a pair of 5 s blocks was 4% of throughput; pinned to one of them, it was 2%.

The kernel allocates its smallest free blocks first, so on a machine with fragmented memory the
first process gets single pages from all over memory, and the next one fewer of them.  Pages that
are not contiguous need more TLB entries.  Between two processes of one program, this changed
throughput by up to 3%, in proportion to the mean length of their contiguous runs (1.1 to 2.0 pages
of 4 KiB, from /proc/PID/pagemap).  So scattered pages are kept allocated while workers are built.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from hybridbench.sampling.headroom import available_bytes, memory_limit

# Twice what a 24 GiB machine had free in blocks of at most 128 KiB after two hours.
_MOST_BYTES: Final = 2**30
_LEAST_BYTES: Final = 2**24
_SHARE: Final = 1 / 16  # of the available memory, at most


def cpu_for_workers() -> int | None:
    """Return the last usable CPU, as the first gets most interrupts; None if there is only one.

    With only one, the workers would share it with this process, which drives them.
    """
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1] if len(usable) > 1 else None


@contextmanager
def children_on(cpu: int | None) -> Iterator[None]:
    """Pin processes started within the block to ``cpu``; None does not pin them."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    # The child inherits the affinity, so no thread of it can be missed.
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def scattered_pages_held() -> Iterator[None]:
    """Make processes started within the block get pages from larger free blocks.

    Does nothing if there is too little memory.
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
    # A huge page would come from the large free blocks.
    held.madvise(mmap.MADV_NOHUGEPAGE)
    # Keep no view: it would prevent closing the map.
    np.frombuffer(held, dtype=np.uint8)[:: mmap.PAGESIZE] = 1
    return held


def _size() -> int:
    known = [available_bytes()]
    limit = memory_limit()
    known.append(None if limit is None else limit.size_bytes)
    room = min((size for size in known if size is not None), default=0)
    return min(_MOST_BYTES, int(room * _SHARE))
