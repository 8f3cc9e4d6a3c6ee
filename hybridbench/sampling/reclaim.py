"""What a process at rest gives back: malloc's slack, the cache, the collector's garbage, in turn.

A time series cannot tell a sawtooth longer than the run, garbage that waits for a full collection
and allocator slack from a leak; this can.  It destroys what it measures, so it is the last act of a
run and never a repeated probe.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from hybridbench.sampling.rungs import malloc_trim


@dataclass(frozen=True)
class Reclaimed:
    """Private memory in bytes: at rest, and after each step."""

    at_rest_bytes: int
    after_trim_bytes: int
    after_flush_bytes: int
    after_collect_bytes: int


def reclaim(read_bytes: Callable[[], int], flush: Callable[[], object]) -> Reclaimed:
    """Trim malloc, flush the cache, collect everything, frozen objects too; read after each.

    Malloc is trimmed again before each reading, or what a step frees would stay in its lists.
    """
    at_rest = read_bytes()
    malloc_trim()
    after_trim = read_bytes()
    flush()
    malloc_trim()
    after_flush = read_bytes()
    gc.unfreeze()
    gc.collect()
    malloc_trim()
    return Reclaimed(at_rest, after_trim, after_flush, read_bytes())
