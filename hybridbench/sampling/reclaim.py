"""Free an idle process's memory step by step: malloc's free memory, garbage, the cache.

A time series cannot distinguish a leak from a sawtooth longer than the run, from uncollected
garbage, or from allocator slack; this can.  It destroys what it measures, so it is the last action
of a run and never a repeated probe.

The steps of a diagnosis go from harmless to most destructive.  Malloc's free memory comes first,
because it can be released without changing any object.  The collector comes before the
cache: a cache that is dropped while removed nodes keep their pointers becomes garbage itself, and
would be charged to the collector.  Malloc is trimmed before each reading; otherwise memory that a
step frees would stay in malloc's free lists.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from hybridbench.records.heap import StageReading
from hybridbench.records.messages import Reclaimed

REST, TRIM, COLLECT, FLUSH, DEVICE = "rest", "trim", "collect", "flush", "device"


@dataclass(frozen=True)
class ReclaimHooks:
    """What the steps need from the process: a reading, a cache flush, a device cache flush.

    ``read`` returns only the memory; each step adds its name and duration.
    """

    read: Callable[[], StageReading]
    flush: Callable[[], object]
    empty_device_cache: Callable[[], object] | None = None


def at_rest(work: ReclaimHooks) -> StageReading:
    """Take the first reading, without doing anything."""
    return _step(REST, work, lambda: None)


def trim(work: ReclaimHooks) -> StageReading:
    """Make malloc release what it can; no object changes."""
    return _step(TRIM, work, lambda: None, trimmed=True)


def destructive_steps(work: ReclaimHooks) -> Iterator[StageReading]:
    """Run everything after ``trim``; this changes the process permanently."""
    yield _step(COLLECT, work, _collect_everything, trimmed=True)
    yield _step(FLUSH, work, lambda: (work.flush(), gc.collect()), trimmed=True)
    if work.empty_device_cache is not None:
        yield _step(DEVICE, work, work.empty_device_cache, trimmed=True)


def _step(
    name: str, work: ReclaimHooks, act: Callable[[], object], *, trimmed: bool = False
) -> StageReading:
    started_s = time.perf_counter()
    act()
    if trimmed:
        malloc_trim()
    reading = work.read()
    seconds = time.perf_counter() - started_s
    return msgspec.structs.replace(reading, name=name, seconds=seconds)


def _collect_everything() -> None:
    gc.unfreeze()
    gc.collect()


def reclaim(read_bytes: Callable[[], int], flush: Callable[[], object]) -> Reclaimed:
    """Trim malloc, flush the cache, collect everything including frozen objects; read after each.

    Malloc is trimmed again before each reading, so that memory freed by a step does not stay in its
    free lists.
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
    after_collect = read_bytes()
    return Reclaimed(time.monotonic(), at_rest, after_trim, after_flush, after_collect)


def malloc_trim() -> None:
    """Call glibc's malloc_trim; do nothing with other C libraries."""
    try:
        trim_function = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim_function(ctypes.c_size_t(0))
