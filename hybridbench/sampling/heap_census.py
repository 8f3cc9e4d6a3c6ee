"""What a full collection would free, counted without touching it: in a forked copy of the process.

The child takes the collector's word (``DEBUG_SAVEALL``), sizes what it found, answers through a
pipe and leaves by ``os._exit``.  The parent pays the fork call and nothing else: what is garbage
stays garbage, and its own next collection finds the same objects.  ``gc.collect()`` in the judged
process would free the evidence, and on a schedule it would cure the defect.

SAVEALL holds back only the clearing.  Weak-reference callbacks and finalizers of garbage still run,
in the child, where they could delete a directory on disk that belongs to the parent: so both are
disarmed first.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import msgspec

from hybridbench.sampling.fork_exclusion import MemoryRange
from hybridbench.sampling.garbage_size import TypeSize, garbage_size
from hybridbench.sampling.tensor_storage import TensorStorages

# Class name to the class and the number of its instances that the program can reach.
CountedClasses: TypeAlias = Callable[[], Mapping[str, tuple[type, int]]]

TYPES_REPORTED = 20
_CHILD_NICENESS = 5
# Opened once: each CDLL object leaves a reference cycle behind, which a census would then find.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class InstanceCounts:
    """Instances of one class: all, those in reach, and what becomes of the others."""

    live: int
    expected: int
    collectible: int

    @property
    def stray(self) -> int:
        """Instances the program does not know of."""
        return self.live - self.expected

    @property
    def retained(self) -> int:
        """Strays that survive a full collection: something still reaches them."""
        return self.stray - self.collectible


@dataclass(frozen=True)
class CensusReport:
    """One census.  ``error`` is empty when it worked; the counts mean nothing otherwise."""

    method: str
    error: str = ""
    child_s: float = 0.0
    tracked_objects: int = 0
    collectible_objects: int = 0
    collectible_bytes: int = 0
    exact_bytes: bool = True
    types: tuple[TypeSize, ...] = ()
    instances: Mapping[str, InstanceCounts] = field(default_factory=dict)


def no_classes() -> Mapping[str, tuple[type, int]]:
    """For processes that register no class."""
    return {}


class ForkCensus:
    """Takes one census at a time.  Its calls belong to the thread whose state is to be counted.

    Args:
        classes: asked in the child, so that counting what is reachable costs the parent nothing.
        excluded: memory that is not in the child (see ``fork_exclusion``) and must not be read
        there. close_in_child: descriptors the child must let go of at once, or it would keep them
        open
            beyond the parent's death.
        timeout_s: after which the child is killed.
    """

    method = "fork"

    def __init__(
        self,
        classes: CountedClasses = no_classes,
        excluded: Sequence[MemoryRange] = (),
        close_in_child: Sequence[int] = (),
        timeout_s: float = 20.0,
    ) -> None:
        self._classes = classes
        self._excluded = tuple(excluded)
        self._close_in_child = tuple(close_in_child)
        self._timeout_s = timeout_s
        self._child: _Child | None = None

    @property
    def running(self) -> bool:
        """Whether a child is counting."""
        return self._child is not None

    def start(self) -> float:
        """Fork the child; return the seconds for which this process stood still.

        Raises:
            RuntimeError: the last census is still running.
            OSError: the kernel refused (no memory, too many processes).
        """
        if self._child is not None:
            raise RuntimeError("a census is running; poll it to its end before the next")
        read_end, write_end = os.pipe()
        started_s = time.perf_counter()
        try:
            pid = os.fork()
        except OSError:
            os.close(read_end)
            os.close(write_end)
            raise
        if pid == 0:
            self._be_the_child(read_end, write_end)
        stop_s = time.perf_counter() - started_s
        os.close(write_end)
        os.set_blocking(read_end, False)
        self._child = _Child(pid, read_end, started_s + self._timeout_s)
        return stop_s

    def poll(self) -> CensusReport | None:
        """The finished census, or None while the child counts.  Never waits."""
        child = self._child
        if child is None or not child.is_done():
            return None
        self._child = None
        return child.report()

    def wait(self, timeout_s: float) -> CensusReport | None:
        """Like ``poll``, but wait up to ``timeout_s`` for the child."""
        deadline_s = time.perf_counter() + timeout_s
        while (report := self.poll()) is None and self._child is not None:
            remaining_s = deadline_s - time.perf_counter()
            if remaining_s <= 0:
                return None
            self._child.wait(min(remaining_s, 0.05))
        return report

    def close(self) -> None:
        """Kill a child that still counts."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _be_the_child(self, read_end: int, write_end: int) -> NoReturn:
        status = 1
        try:
            os.close(read_end)
            for descriptor in self._close_in_child:
                os.close(descriptor)
            _live_no_longer_than(self._timeout_s)
            report = count_and_destroy(self._classes, self._excluded)
            _write_all(write_end, msgspec.msgpack.encode(report))
            status = 0
        except BaseException as error:
            # Nothing may travel up into the copied program.
            with contextlib.suppress(BaseException):
                failed = CensusReport(method="fork", error=f"{type(error).__name__}: {error}")
                _write_all(write_end, msgspec.msgpack.encode(failed))
        finally:
            # No finalizers, no atexit, no flushing of buffers that the parent will flush too.
            os._exit(status)


def count_and_destroy(
    classes: CountedClasses = no_classes, excluded: Sequence[MemoryRange] = ()
) -> CensusReport:
    """Count this process's garbage and leave the collector in ruins: only for a forked child."""
    started_s = time.perf_counter()
    gc.disable()
    gc.callbacks.clear()
    # Frozen objects are in no list that the collector or get_objects looks at.
    gc.unfreeze()
    reachable = dict(classes())
    objects = gc.get_objects()
    tracked = len(objects)
    alive = Counter(map(type, objects))
    storages = TensorStorages(objects, alive, excluded)
    disarmed = _disarm(alive)
    # The list refers to every object: with it, nothing would be garbage.
    del objects
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    garbage = gc.garbage
    dead = Counter(map(type, garbage))
    size = garbage_size(garbage, storages, excluded)
    report = CensusReport(
        method="fork",
        child_s=time.perf_counter() - started_s,
        tracked_objects=tracked,
        collectible_objects=len(garbage),
        collectible_bytes=size.total_bytes,
        exact_bytes=size.exact,
        types=size.types[:TYPES_REPORTED],
        instances=instance_counts(reachable, alive, dead),
    )
    # Nothing that a finalizer held may die before the child does.
    garbage.append(disarmed)
    return report


def instance_counts(
    reachable: Mapping[str, tuple[type, int]], alive: Counter[type], dead: Counter[type]
) -> dict[str, InstanceCounts]:
    """Per registered class, subclasses included."""

    def count(kinds: Counter[type], wanted: type) -> int:
        return sum(number for kind, number in kinds.items() if issubclass(kind, wanted))

    return {
        name: InstanceCounts(
            live=count(alive, wanted), expected=expected, collectible=count(dead, wanted)
        )
        for name, (wanted, expected) in reachable.items()
    }


def _disarm(kinds: Counter[type]) -> list[object]:
    """Take the teeth out of finalizers: garbage that the child finds must not act on the world.

    Returns what the registry of ``weakref.finalize`` held.  A finalizer that is called and finds
    itself gone from there does nothing; its arguments must stay alive all the same.  Finalizers
    written in C (of suspended generators, of open files) cannot be reached: engines must not let
    those become garbage.
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
    """Stands in for ``__del__`` in the child."""


def _live_no_longer_than(timeout_s: float) -> None:
    """The child kills itself when it hangs, and dies with its parent; it yields to the engine."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_CHILD_NICENESS)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class _Child:
    """The parent's side of a running census: its pipe, its deadline, its end."""

    def __init__(self, pid: int, read_end: int, deadline_s: float) -> None:
        self._pid = pid
        self._read_end = read_end
        self._deadline_s = deadline_s
        self._answer = bytearray()
        self._status: int | None = None
        self._timed_out = False

    def is_done(self) -> bool:
        """Read what is there; True once the child is gone and reaped."""
        if self._at_end_of_answer():
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._end(status)
                return True
        if time.perf_counter() > self._deadline_s:
            self._timed_out = True
            self.kill()
            return True
        return False

    def wait(self, timeout_s: float) -> None:
        """Wait for something to read."""
        select.select([self._read_end], [], [], timeout_s)

    def kill(self) -> None:
        """End the child and reap it."""
        os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        self._end(status)

    def report(self) -> CensusReport:
        """What the child found, or why it did not."""
        if self._timed_out:
            return CensusReport(method="fork", error="the child took too long and was killed")
        try:
            return msgspec.msgpack.decode(bytes(self._answer), type=CensusReport)
        except msgspec.MsgspecError:
            code = os.waitstatus_to_exitcode(self._status or 0)
            return CensusReport(method="fork", error=f"the child ended with status {code}")

    def _at_end_of_answer(self) -> bool:
        while True:
            try:
                data = os.read(self._read_end, _READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._answer += data

    def _end(self, status: int) -> None:
        self._status = status
        os.close(self._read_end)
