"""A forked copy of the process that does one piece of work, answers through a pipe and exits.

The copy has the heap as it was at the fork and may destroy it.  It runs at low priority, lives no
longer than its deadline or its parent, and exits by ``os._exit``: no finalizers, no ``atexit``, no
flushing of buffers that the parent will flush too.

It needs the Python heap, but not gigabytes of pools: a fork copies page tables, and then each page
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
from typing import Final, NoReturn, TypeVar

import msgspec

from hybridbench.sampling.runnable_time import RunnableTime

CHILD_NAME: Final = "heap-scan"
"""Process name of such a copy, which distinguishes it from the engine's own children."""
_CHILD_NICENESS = 5
# Opened once: each CDLL object leaves a reference cycle, which a heap scan would then find.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_GET_NAME = 1, 15, 16
_OWN_NAME = ctypes.create_string_buffer(16)
_READ_BYTES = 1 << 16
_POLL_S = 0.05
_LAST_RESORT = 20.0
_MADV_DONTFORK = 10
_MADV_DOFORK = 11
_Answer = TypeVar("_Answer")


class ForkedChild:
    """The parent's side: pipe, deadline, exit status.  Owns the child until it is reaped."""

    def __init__(self, pid: int, read_end: int, timeout_s: float) -> None:
        self._pid = pid
        self._read_end = read_end
        self._timeout_s = timeout_s
        self._could_run = RunnableTime(pid)
        self._status: int | None = None
        self._timed_out = False
        self.answer = bytearray()

    def is_done(self) -> bool:
        """Read available output; True once the child has exited and is reaped.  Never waits."""
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
        """Wait until the child has exited, at the latest at its deadline."""
        while not self.is_done():
            select.select([self._read_end], [], [], _POLL_S)

    def kill(self) -> None:
        """Kill the child and reap it."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            _, status = os.waitpid(self._pid, 0)
            self._end(status)

    @property
    def failure(self) -> str:
        """Why there is no usable answer; empty if the child succeeded."""
        if self._timed_out:
            return "the child took too long and was killed"
        code = os.waitstatus_to_exitcode(self._status or 0)
        return f"the child ended with status {code}" if code else ""

    def decoded(self, kind: type[_Answer]) -> _Answer | str:
        """Decode a finished child's answer from MessagePack, or return why there is none."""
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
    """Fork a child that sends what ``work`` returns; on an error it exits with status 1 instead.

    Args:
        close_in_child: descriptors that the child closes at once; otherwise they would stay open
            beyond its parent's death.

    Raises:
        OSError: the kernel refused (no memory, too many processes).
    """
    read_end, write_end = os.pipe()
    # Set before the fork and inherited, so that the child never has another name.
    _LIBC.prctl(_PR_GET_NAME, _OWN_NAME)
    _LIBC.prctl(_PR_SET_NAME, CHILD_NAME.encode())
    try:
        pid = os.fork()
    except OSError:
        _LIBC.prctl(_PR_SET_NAME, _OWN_NAME)
        os.close(read_end)
        os.close(write_end)
        raise
    if pid == 0:
        _be_the_child(work, (read_end, *close_in_child), write_end, timeout_s)
    _LIBC.prctl(_PR_SET_NAME, _OWN_NAME)
    os.close(write_end)
    os.set_blocking(read_end, False)
    return ForkedChild(pid, read_end, timeout_s)


def live_no_longer_than(timeout_s: float) -> None:
    """Make the calling child kill itself when it hangs, die with its parent, and yield to others.

    The parent kills it after it could have run for ``timeout_s``.  The child's own timer is much
    longer, because it also counts the time waited for a CPU.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _LAST_RESORT * timeout_s)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_CHILD_NICENESS)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, in as many calls as it takes."""
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
        # Nothing may propagate into the copied program, least of all an exception.
        os._exit(status)


@dataclass(frozen=True)
class MemoryRange:
    """``size_bytes`` bytes from ``address`` on, allocated for the life of the process."""

    address: int
    size_bytes: int

    def whole_pages(self) -> MemoryRange | None:
        """Return the part made of whole pages; the rest may share pages with other objects."""
        page = mmap.PAGESIZE
        start = -(-self.address // page) * page
        end = (self.address + self.size_bytes) // page * page
        return MemoryRange(start, end - start) if end > start else None

    def overlaps(self, address: int, size_bytes: int) -> bool:
        """Whether any of the ``size_bytes`` bytes starting at ``address`` lies inside."""
        return self.address < address + size_bytes and address < self.address + self.size_bytes


def exclude_from_forks(ranges: Iterable[MemoryRange]) -> tuple[MemoryRange, ...]:
    """Mark the whole pages of ``ranges``; return those that the kernel accepted."""
    return tuple(part for part in _parts(ranges) if _advise(part, _MADV_DONTFORK))


def include_in_forks(ranges: Iterable[MemoryRange]) -> None:
    """Undo ``exclude_from_forks`` before the memory is freed."""
    for part in _parts(ranges):
        _advise(part, _MADV_DOFORK)


def _parts(ranges: Iterable[MemoryRange]) -> list[MemoryRange]:
    return [part for part in (given.whole_pages() for given in ranges) if part is not None]


def _advise(part: MemoryRange, advice: int) -> bool:
    madvise = _LIBC.madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise.restype = ctypes.c_int
    return bool(madvise(part.address, part.size_bytes, advice) == 0)
