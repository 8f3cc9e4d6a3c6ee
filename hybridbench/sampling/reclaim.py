"""What a process at rest gives back: the cache, the collector's garbage, malloc's slack, in turn.

A time series cannot tell a sawtooth longer than the run, garbage that waits for a full collection
and allocator slack from a leak; this can.  It destroys what it measures, so it is the last act of a
run and never a repeated probe.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reclaimed:
    """Private memory in bytes: at rest, and after each step."""

    at_rest_bytes: int
    after_flush_bytes: int
    after_collect_bytes: int
    after_trim_bytes: int


def reclaim(read_bytes: Callable[[], int], flush: Callable[[], object]) -> Reclaimed:
    """Flush the cache, collect everything (frozen objects too), trim malloc; read after each."""
    at_rest = read_bytes()
    flush()
    after_flush = read_bytes()
    gc.unfreeze()
    gc.collect()
    after_collect = read_bytes()
    _malloc_trim()
    return Reclaimed(at_rest, after_flush, after_collect, read_bytes())


def _malloc_trim() -> None:
    """Only glibc has it; elsewhere the last reading equals the one before."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim(ctypes.c_size_t(0))
