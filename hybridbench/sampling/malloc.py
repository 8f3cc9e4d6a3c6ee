"""glibc's allocator statistics for this process: bytes in use and bytes taken from the kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

# Arenas, mmap and trim thresholds decide how RSS follows the heap.  They are fixed so that runs are
# comparable: one more arena, or a threshold adapted by glibc, moves RSS by more than most leaks do
# in an hour.  4 MiB keeps the tensors of one step inside the heap.  With glibc's initial 128 KiB,
# each tensor is mapped and unmapped, and the tiny engine needs 50 % more CPU time per request.
PINNED_ENVIRONMENT: dict[str, str] = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "MALLOC_TOP_PAD_": str(128 * 1024),
}


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )
    arena: int
    hblkhd: int
    uordblks: int


@dataclass(frozen=True)
class MallocInfo:
    """Totals over all arenas and direct mappings.

    Python's small-object arenas are mapped by Python itself and are not included.
    """

    in_use_bytes: int
    arena_bytes: int


def malloc_reader() -> Callable[[], MallocInfo] | None:
    """Return a function that reads the statistics (0.2 ms), or None on another C library."""
    try:
        # PyDLL keeps the GIL: no other thread allocates between two readings by one thread.
        function = ctypes.PyDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _Mallinfo2
    function.argtypes = ()

    def read() -> MallocInfo:
        info: _Mallinfo2 = function()
        return MallocInfo(
            in_use_bytes=info.uordblks + info.hblkhd, arena_bytes=info.arena + info.hblkhd
        )

    return read
