"""A copy of this process in which the heap is read, made so that the program cannot notice.

``os.fork`` would run the program's own at-fork hooks and take its locks, and its SIGCHLD and
``waitpid(-1)`` would find the child.  So the kernel is asked for a child without an exit signal:
a plain ``wait`` does not see it.

Such a child is a copy of a moment at which other threads waited for the interpreter's lock.  If one
of them has asked for it, the child must hand the lock to another thread before it can go on, and
there is none.  So the same bytecode instruction that makes the child starts threads in it that take
the lock once and end: one for each waiter whose wake-up may go astray.
"""

from __future__ import annotations

import _thread
import itertools
import os
import resource  # noqa: F401 (os.wait4 imports it, which the program could notice)
import signal
import sys
import time

from .clib import LIBC

if LIBC is not None:
    import ctypes

_CLONE = {"x86_64": 56, "aarch64": 220}
_CLOSE_RANGE = 436
_CLONE_PARENT_SETTID = 0x00100000
_WAIT_CLONE = 0x40000000  # __WALL: children without an exit signal too
_MADV_DONTFORK, _MADV_DOFORK = 10, 11
_PARTNERS = 8
_NICENESS = 19
_LAST_DESCRIPTOR = 0xFFFFFFFF
_PR_SET_NAME = 15
_NAME_ANSWERING = b"hb-answer"


class Forker:
    """Makes one child at a time."""

    def __init__(self) -> None:
        self._clone = _CLONE.get(os.uname().machine)
        if LIBC is None or self._clone is None:
            return
        self._syscall = LIBC.syscall
        self._syscall.restype = ctypes.c_long
        self._madvise = LIBC.madvise
        self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._pid = ctypes.c_int(0)
        number = ctypes.c_long
        self._arguments = [
            (number(self._clone),),
            (number(_CLONE_PARENT_SETTID),),
            (None,),
            (ctypes.byref(self._pid),),
            (None,),
            (None,),
        ]
        # Looked up by the 0 that the child gets from the kernel, once for each partner.
        self._partner = {0: (int, ())}.__getitem__

    @property
    def why_not(self) -> str:
        """Why no child can be made here; empty if one can."""
        if LIBC is None or self._clone is None:
            return "this Python or processor has no way to fork unnoticed"
        is_locked = vars(sys).get("_is_gil_enabled")  # from Python 3.13 on
        if is_locked is not None and not is_locked():
            return "this Python has no global interpreter lock"
        return ""

    def fork(self, left_out: list[list[int]]) -> tuple[int, float]:
        """The child's pid, 0 in the child; and for how many seconds the process stood still.

        Args:
            left_out: ranges of memory, as address and size, that the child does not get.

        Raises:
            OSError: the kernel refused.
        """
        self._pid.value = 0
        # A lock just taken has not been asked for yet.
        time.sleep(0)
        started_s = time.perf_counter()
        for address, size in left_out:
            self._madvise(address, size, _MADV_DONTFORK)
        child = itertools.filterfalse(None, map(self._syscall, *self._arguments))
        partners = itertools.chain.from_iterable(map(itertools.repeat, child, (_PARTNERS,)))
        begun = tuple(itertools.starmap(_thread.start_new_thread, map(self._partner, partners)))
        if begun:
            return 0, 0.0
        for address, size in left_out:
            self._madvise(address, size, _MADV_DOFORK)
        pause_s = time.perf_counter() - started_s
        if not self._pid.value:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return self._pid.value, pause_s

    def confine(self, answer: int, deadline_s: int) -> None:
        """In the child: keep ``answer`` as descriptor 0 and nothing else, yield, end in time."""
        libc = LIBC
        assert libc is not None
        libc.signal(signal.SIGALRM, None)
        libc.alarm(deadline_s)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        libc.setpriority(0, 0, _NICENESS)
        if answer != 0:
            libc.dup2(answer, 0)
        if self._syscall(ctypes.c_long(_CLOSE_RANGE), 1, ctypes.c_uint(_LAST_DESCRIPTOR), 0) != 0:
            os.closerange(1, 1 << 16)
        os.set_blocking(0, True)

    def write(self, data: bytes) -> None:
        """In the child: all of ``data`` to descriptor 0, without letting go of the lock."""
        assert LIBC is not None
        LIBC.prctl(_PR_SET_NAME, _NAME_ANSWERING)
        view = memoryview(data)
        write = LIBC.write
        write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
        while view:
            part = bytes(view[: 1 << 16])
            count = write(0, part, len(part))
            if count <= 0:
                return
            view = view[count:]

    def leave(self, status: int) -> None:
        """In the child: end it, with no finalizer and no flush."""
        assert LIBC is not None
        LIBC._exit(status)


class Child:
    """The parent's side of a child: it alone reaps it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.cpu_s = 0.0
        self.status: int | None = None
        self._seen_cpu = -1
        self._seen_s = self.started_s = time.perf_counter()

    def is_done(self) -> bool:
        """Reap it if it has ended; never waits."""
        if self.status is None:
            try:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG | _WAIT_CLONE)
            except ChildProcessError:
                pid, status, usage = self.pid, 1, None
            if pid:
                self.status = status
                self.cpu_s = usage.ru_utime + usage.ru_stime if usage else 0.0
        return self.status is not None

    def kill(self) -> None:
        """End it and reap it."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            while not self.is_done():
                time.sleep(0.001)

    def is_stuck(self, after_s: float) -> bool:
        """Whether it has slept for ``after_s``: it waits for a lock that none can release.

        The heap was copied while a thread without the interpreter's lock held one of malloc's, say.
        One that waits for its reader is not stuck.
        """
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                name, _, rest = file.read().rpartition(b")")
        except OSError:
            return False
        if name.endswith(_NAME_ANSWERING):
            return False
        words = rest.split()
        cpu = int(words[11]) + int(words[12])
        now_s = time.perf_counter()
        if words[0] != b"S" or cpu != self._seen_cpu:
            self._seen_cpu, self._seen_s = cpu, now_s
        return now_s - self._seen_s > after_s
