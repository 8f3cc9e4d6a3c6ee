"""Read the counts of the allocators and the collector inside the process, in a millisecond."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable

from .clib import LIBC


def _reader() -> Callable[[], int] | None:
    if LIBC is None:
        return None
    import ctypes

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    fields = [(name, ctypes.c_size_t) for name in names.split()]
    try:
        function = LIBC.mallinfo2
    except AttributeError:
        return None
    function.restype = type("Mallinfo2", (ctypes.Structure,), {"_fields_": fields})
    function.argtypes = ()

    def read() -> int:
        info = function()
        return int(info.uordblks + info.hblkhd)

    return read


# Created once: a new class for each call would leak its fields.
_read_malloc = _reader()


def malloc_bytes() -> int | None:
    """Bytes allocated from the C library's malloc; None if unavailable."""
    return None if _read_malloc is None else _read_malloc()


def status() -> dict[str, object]:
    """Counts that are cheap to read."""
    return {
        "pid": os.getpid(),
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "blocks": sys.getallocatedblocks(),
        "malloc_bytes": malloc_bytes(),
        "frozen": gc.get_freeze_count(),
        "collections": [of_generation["collections"] for of_generation in gc.get_stats()],
        "collector_enabled": gc.isenabled(),
    }


def look(*, collect: bool) -> dict[str, object]:
    """The counts now, after a full collection if ``collect``."""
    started_s = time.perf_counter()
    unreachable = gc.collect() if collect else None
    collect_s = time.perf_counter() - started_s
    found = {"unreachable": unreachable, "collect_s": collect_s, **status()}
    return {**found, "pause_s": time.perf_counter() - started_s}
