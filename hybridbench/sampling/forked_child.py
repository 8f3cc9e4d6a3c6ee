"""A forked copy of the process that does one piece of work, answers through a pipe and is gone.

The copy sees the heap of the moment it was made and may wreck it.  It yields to the engine, lives
no longer than its deadline or its parent, and leaves by ``os._exit``: no finalizers, no ``atexit``,
no flushing of buffers that the parent will flush too.

It needs the Python heap, not gigabytes of pool: a fork copies page tables, and afterwards each page
that the engine writes is copied once.  Pages marked ``MADV_DONTFORK`` cost neither.  The child must
not read them: it would die of a segmentation fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import msgspec

from hybridbench.sampling.runnable_time import RunnableTime

_CHILD_NICENESS = 5
# Opened once: each CDLL object leaves a reference cycle behind, which a heap scan would then find.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 16
_POLL_S = 0.05
_LAST_RESORT = 20.0
_MADV_DONTFORK = 10
_MADV_DOFORK = 11
_Answer = TypeVar("_Answer")


class ForkedChild:
    """The parent's side: the pipe, the deadline, the end.  Owns the child until it is reaped."""

    def __init__(self, pid: int, read_end: int, timeout_s: float) -> None:
        self._pid = pid
        self._read_end = read_end
        self._timeout_s = timeout_s
        self._could_run = RunnableTime(pid)
        self._status: int | None = None
        self._timed_out = False
        self.answer = bytearray()

    def is_done(self) -> bool:
        """Read what is there; True once the child is gone and reaped.  Never waits."""
        if self._status is not None:
            return True
        if self._at_end_of_answer():
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._end(status)
                return True
        if self._could_run.elapsed_s() > self._timeout_s:
            self._timed_out = True
            self.kill()
            return True
        return False

    def wait(self) -> None:
        """Until the child is gone, its deadline at the latest."""
        while not self.is_done():
            select.select([self._read_end], [], [], _POLL_S)

    def kill(self) -> None:
        """End the child and reap it."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            _, status = os.waitpid(self._pid, 0)
            self._end(status)

    @property
    def failure(self) -> str:
        """Why there is no answer to use; empty when the child came to its end."""
        if self._timed_out:
            return "the child took too long and was killed"
        code = os.waitstatus_to_exitcode(self._status or 0)
        return f"the child ended with status {code}" if code else ""

    def decoded(self, kind: type[_Answer]) -> _Answer | str:
        """The answer of a child that is done, in MessagePack; or why there is none."""
        if self.failure:
            return self.failure
        try:
            return msgspec.msgpack.decode(bytes(self.answer), type=kind)
        except msgspec.MsgspecError as error:
            return f"the child's answer cannot be read: {error}"

    def _at_end_of_answer(self) -> bool:
        while True:
            try:
                data = os.read(self._read_end, _READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return True
            self.answer += data

    def _end(self, status: int) -> None:
        self._status = status
        os.close(self._read_end)


def fork_child(
    work: Callable[[], bytes], close_in_child: Sequence[int], timeout_s: float
) -> ForkedChild:
    """Fork a child that sends what ``work`` returns.  An error in it sends nothing: status 1.

    Args:
        close_in_child: descriptors the child must let go of at once, or it would keep them open
            beyond its parent's death.

    Raises:
        OSError: the kernel refused (no memory, too many processes).
    """
    read_end, write_end = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if pid == 0:
        _be_the_child(work, (read_end, *close_in_child), write_end, timeout_s)
    os.close(write_end)
    os.set_blocking(read_end, False)
    return ForkedChild(pid, read_end, timeout_s)


def live_no_longer_than(timeout_s: float) -> None:
    """The caller, a child, kills itself when it hangs, dies with its parent, yields to others.

    Its parent kills it after ``timeout_s`` in which it could have run.  This clock also counts what
    it waits for a processor, so it leaves the parent time to do so.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _LAST_RESORT * timeout_s)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_CHILD_NICENESS)


def write_all(descriptor: int, data: bytes) -> None:
    """Write ``data``, however many calls that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _be_the_child(
    work: Callable[[], bytes], to_close: Sequence[int], write_end: int, timeout_s: float
) -> NoReturn:
    status = 1
    try:
        for descriptor in to_close:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        live_no_longer_than(timeout_s)
        write_all(write_end, work())
        status = 0
    finally:
        # Nothing may travel up into the copied program, an exception least of all.
        os._exit(status)


@dataclass(frozen=True)
class MemoryRange:
    """``size_bytes`` bytes from ``address`` on, which stay there while the process lives."""

    address: int
    size_bytes: int

    def whole_pages(self) -> MemoryRange | None:
        """The part made of whole pages; the rest may share its page with other objects."""
        page = mmap.PAGESIZE
        start = -(-self.address // page) * page
        end = (self.address + self.size_bytes) // page * page
        return MemoryRange(start, end - start) if end > start else None

    def overlaps(self, address: int, size_bytes: int) -> bool:
        """Whether any of ``size_bytes`` bytes from ``address`` on lies inside."""
        return self.address < address + size_bytes and address < self.address + self.size_bytes


def exclude_from_forks(ranges: Iterable[MemoryRange]) -> tuple[MemoryRange, ...]:
    """Mark the whole pages of ``ranges``; return those that the kernel accepted."""
    return tuple(part for part in _parts(ranges) if _advise(part, _MADV_DONTFORK))


def include_in_forks(ranges: Iterable[MemoryRange]) -> None:
    """Undo ``exclude_from_forks``, before the memory is given back."""
    for part in _parts(ranges):
        _advise(part, _MADV_DOFORK)


def _parts(ranges: Iterable[MemoryRange]) -> list[MemoryRange]:
    return [part for part in (given.whole_pages() for given in ranges) if part is not None]


def _advise(part: MemoryRange, advice: int) -> bool:
    madvise = _LIBC.madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise.restype = ctypes.c_int
    return bool(madvise(part.address, part.size_bytes, advice) == 0)
