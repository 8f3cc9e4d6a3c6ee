"""Count what a full collection would free without freeing it, in a forked copy of the process.

The child collects with ``DEBUG_SAVEALL``, sizes the garbage, answers through a pipe and exits by
``os._exit``.  The parent pays only for the fork: its garbage stays, and its own next collection
finds the same objects.  ``gc.collect()`` in the judged process would free the evidence, and on a
schedule it would hide the defect.

SAVEALL only prevents garbage from being cleared.  Its weak-reference callbacks and finalizers still
run in the child, where they could delete a directory on disk that belongs to the parent.  So both
are disabled first.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from hybridbench.records.heap import InstanceCount, TypeCount
from hybridbench.sampling.forked_child import ForkedChild, MemoryRange, fork_child
from hybridbench.sampling.garbage_size import garbage_size
from hybridbench.sampling.tensor_storage import TensorStorages

# Maps a class name to the class and the number of its instances that the program can reach.
CountedClasses: TypeAlias = Callable[[], Mapping[str, tuple[type, int]]]

TYPES_REPORTED = 20


@dataclass(frozen=True)
class HeapScan:
    """One scan.  ``error`` is empty on success; otherwise the counts are meaningless."""

    method: str
    error: str = ""
    child_s: float = 0.0
    tracked_objects: int = 0
    collectible_objects: int = 0
    collectible_bytes: int = 0
    exact_bytes: bool = True
    types: list[TypeCount] = field(default_factory=list)
    instances: dict[str, InstanceCount] = field(default_factory=dict)


class ForkScan:
    """Makes one scan at a time.  Call it on the thread whose state is to be counted.

    Args:
        classes: called in the child, so that counting reachable instances costs the parent nothing.
        excluded: memory that is not in the child (see ``exclude_from_forks``) and must not be read
            there.
        close_in_child: descriptors that the child closes at once; otherwise they would stay open
            beyond the parent's death.
        timeout_s: after which the child is killed.
    """

    method = "fork"

    def __init__(
        self,
        classes: CountedClasses,
        excluded: Sequence[MemoryRange] = (),
        close_in_child: Sequence[int] = (),
        timeout_s: float = 20.0,
    ) -> None:
        self._classes = classes
        self.excluded = tuple(excluded)
        self.close_in_child = tuple(close_in_child)
        self._timeout_s = timeout_s
        self._child: ForkedChild | None = None
        self._reserve: int | None = None

    def start(self) -> float:
        """Fork the child; return how many seconds this process was stopped.

        Raises:
            RuntimeError: the last scan is still running.
            OSError: the kernel refused (no memory, too many processes).
        """
        if self._child is not None:
            raise RuntimeError("a heap scan is running; poll it to its end before the next")
        started_s = time.perf_counter()
        self._child = fork_child(self._answer, self.close_in_child, self._timeout_s)
        self._let_go()
        return time.perf_counter() - started_s

    def poll(self) -> HeapScan | None:
        """Return the finished scan, or None while the child counts.  Never waits."""
        child = self._child
        if child is None or not child.is_done():
            return None
        self._child = None
        self._hold()
        found = child.decoded(HeapScan)
        return HeapScan(method="fork", error=found) if isinstance(found, str) else found

    def close(self) -> None:
        """Kill a child that is still counting."""
        if self._child is not None:
            self._child.kill()
            self._child = None
        self._let_go()

    def _hold(self) -> None:
        """Hold a descriptor in place of the pipe until the next scan needs one, so that the number
        of open files of this process is the same during a scan as between scans.
        """
        with contextlib.suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY)

    def _let_go(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def _answer(self) -> bytes:
        try:
            return msgspec.msgpack.encode(count_and_destroy(self._classes, self.excluded))
        except Exception as error:
            failed = HeapScan(method="fork", error=f"{type(error).__name__}: {error}")
            return msgspec.msgpack.encode(failed)


def count_and_destroy(classes: CountedClasses, excluded: Sequence[MemoryRange]) -> HeapScan:
    """Count this process's garbage and ruin its collector: only for a forked child."""
    # CPU time: waiting for a CPU does not make a child more expensive for the engine.
    started_s = time.process_time()
    reachable = dict(classes())
    heap = collect_into_garbage(excluded)
    size = garbage_size(gc.garbage, heap.storages, excluded)
    report = HeapScan(
        method="fork",
        child_s=time.process_time() - started_s,
        tracked_objects=heap.alive.total(),
        collectible_objects=len(gc.garbage),
        collectible_bytes=size.total_bytes,
        exact_bytes=size.exact,
        types=list(size.types[:TYPES_REPORTED]),
        instances=instance_counts(reachable, heap.alive, Counter(map(type, gc.garbage))),
    )
    # What finalizers held must stay alive until the child exits.
    gc.garbage.append(heap.disarmed)
    return report


@dataclass(frozen=True)
class CollectedHeap:
    """A heap whose garbage is in ``gc.garbage``, with all objects before by class and by storage.

    ``disarmed`` holds what disabled finalizers held; it must stay alive until the child exits.
    """

    alive: Counter[type]
    storages: TensorStorages
    disarmed: list[object]


def collect_into_garbage(excluded: Sequence[MemoryRange]) -> CollectedHeap:
    """Run a full collection that frees nothing and runs no finalizer: only for a forked child."""
    gc.disable()
    gc.callbacks.clear()
    # Neither the collector nor get_objects sees frozen objects.
    gc.unfreeze()
    objects = gc.get_objects()
    alive = Counter(map(type, objects))
    heap = CollectedHeap(alive, TensorStorages(objects, alive, excluded), _disarmed(alive))
    # The list refers to every object: as long as it exists, nothing is garbage.
    del objects
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    return heap


def instance_counts(
    reachable: Mapping[str, tuple[type, int]], alive: Counter[type], dead: Counter[type]
) -> dict[str, InstanceCount]:
    """Count instances of each class in ``reachable``, including its subclasses."""

    def count(kinds: Counter[type], wanted: type) -> int:
        return sum(number for kind, number in kinds.items() if issubclass(kind, wanted))

    counts = {}
    for name, (wanted, expected) in reachable.items():
        live, collectible = count(alive, wanted), count(dead, wanted)
        counts[name] = InstanceCount(live, expected, collectible, live - expected - collectible)
    return counts


def _disarmed(kinds: Counter[type]) -> list[object]:
    """Disable finalizers: garbage found in the child must have no side effects.

    Returns what the registry of ``weakref.finalize`` held.  A finalizer that is no longer in the
    registry does nothing when called, but its arguments must stay alive.  Finalizers written in C
    (of suspended generators, of open files) cannot be disabled: engines must not let those become
    garbage.
    """
    registry: dict[object, object] = vars(weakref.finalize)["_registry"]
    disarmed: list[object] = list(registry.items())
    registry.clear()
    for kind in kinds:
        if "__del__" in vars(kind):
            with contextlib.suppress(TypeError):
                kind.__del__ = _no_finalizer  # type: ignore[attr-defined]
    return disarmed


def _no_finalizer(_self: object) -> None:
    """Replaces ``__del__`` in the child."""
