"""The rungs of the diagnosis ladder: what a process at rest gives back, one thing after the other.

The order is free to cheap to dear in what it destroys.  Malloc's slack comes first, because it may
go without changing any object.  The collector comes before the cache: a cache that is dropped while
removed nodes keep their pointers becomes garbage itself, and would be charged to the collector.
Malloc is trimmed before each reading, or what a rung frees would stay in its lists.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

REST, TRIM, COLLECT, FLUSH, DEVICE = "rest", "trim", "collect", "flush", "device"


@dataclass(frozen=True)
class Memory:
    """One reading, in bytes; ``private`` is RssAnon and swap, the device's are 0 on a CPU."""

    private_bytes: int
    malloc_in_use_bytes: int = 0
    malloc_arena_bytes: int = 0
    device_allocated_bytes: int = 0
    device_reserved_bytes: int = 0


@dataclass(frozen=True)
class Rung:
    """What was done, the memory after it, and how long it took."""

    name: str
    memory: Memory
    seconds: float


@dataclass(frozen=True)
class RungWork:
    """What the rungs need of the process: a reading, the cache's flush, the device's own cache."""

    read: Callable[[], Memory]
    flush: Callable[[], object]
    empty_device_cache: Callable[[], object] | None = None


def at_rest(work: RungWork) -> Rung:
    """The first reading; nothing is done."""
    return _rung(REST, work, _nothing)


def trim(work: RungWork) -> Rung:
    """Malloc gives back what it can; no object changes."""
    return _rung(TRIM, work, _nothing, trimmed=True)


def destructive_rungs(work: RungWork) -> Iterator[Rung]:
    """Everything after ``trim``; the process is another afterwards."""
    yield _rung(COLLECT, work, _collect_everything, trimmed=True)
    yield _rung(FLUSH, work, lambda: (work.flush(), gc.collect()), trimmed=True)
    if work.empty_device_cache is not None:
        yield _rung(DEVICE, work, work.empty_device_cache, trimmed=True)


def _rung(name: str, work: RungWork, act: Callable[[], object], *, trimmed: bool = False) -> Rung:
    started_s = time.perf_counter()
    act()
    if trimmed:
        malloc_trim()
    return Rung(name, work.read(), time.perf_counter() - started_s)


def _nothing() -> None:
    """For rungs that only read or trim."""


def _collect_everything() -> None:
    gc.unfreeze()
    gc.collect()


def malloc_trim() -> None:
    """Only glibc has it; elsewhere nothing happens."""
    try:
        trim_function = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim_function(ctypes.c_size_t(0))
