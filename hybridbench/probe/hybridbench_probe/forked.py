"""Fork a copy of this process for reading its heap, without the program noticing.

``os.fork`` would run the program's at-fork hooks and take its locks, and the program's SIGCHLD
handler and ``waitpid(-1)`` would find the child.  So the child is cloned without an exit signal: a
plain ``wait`` does not see it.

At the moment of the copy, other threads may hold locks or wait for the GIL.  The child cannot run a
single bytecode before Python has reinitialised these.  So it first runs a list of C calls within
the instruction that cloned it, in this order: close every descriptor; reference every object, so
that none is finalized; read the variables of running functions, whose frames disappear with their
threads; clear the program's at-fork hooks; and only then notify Python of the fork.
"""

from __future__ import annotations

import _imp
import _thread
import contextlib
import gc
import itertools
import operator
import os
import signal
import sys
import time
import types
from functools import partial
from typing import Any

from .clib import LIBC

if LIBC is not None:
    import ctypes

_CLONE = {"x86_64": 56, "aarch64": 220}
_CLOSE_RANGE = 436
_CLONE_PARENT_SETTID = 0x00100000
_WAIT_CLONE = 0x40000000  # __WALL: children without an exit signal too
_MADV_DONTFORK, _MADV_DOFORK = 10, 11
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_NAME_ANSWERING = b"hb-answer"
_NICENESS = 19
# At rest the program computes nothing, and its clients wait for the scan: on a crowded machine, the
# lowest priority would make them wait for minutes.
_NICER_AT_REST = 5
_LAST_DESCRIPTOR = 0xFFFFFFFF
_FRAMES_MAX = 200
_call = partial.__call__
_OF_FUNCTION = 0x0003  # CO_OPTIMIZED and CO_NEWLOCALS: f_locals is a plain dict


class Copied:
    """The state of the process at the moment of the fork, as seen by the child.

    Attributes:
        objects: all objects that the collector tracked, including frozen ones.
        codes: the code running in other threads, including modules, and its globals.
        frames: code, global and local variables of each function running in another thread.
    """

    def __init__(self) -> None:
        self.frozen = gc.get_freeze_count()
        self.objects: list[object] = []
        running = running_frames()
        self.codes = [(frame.f_code, frame.f_globals) for frame in running]
        self._frames = [frame for frame in running if _is_of_function(frame)]
        self._locals: list[dict[str, object]] = []
        self.code_and_globals = [(frame.f_code, frame.f_globals) for frame in self._frames]

    @property
    def frames(self) -> list[tuple[types.CodeType, dict[str, object], dict[str, object]]]:
        """Code, globals and locals."""
        return [(*pair, found) for pair, found in zip(self.code_and_globals, self._locals)]

    def steps(self) -> list[partial[Any]]:
        """Calls of C code that fill this record."""
        later: map[list[object]] = map(partial.__call__, [partial(gc.get_objects)])
        variables = map(dict, map(operator.attrgetter("f_locals"), self._frames))
        return [
            partial(gc.disable),
            # The collector does not list frozen objects.
            partial(gc.unfreeze),
            partial(self.objects.extend, itertools.chain.from_iterable(later)),
            partial(self._locals.extend, variables),
        ]


class Forker:
    """Forks one child at a time.

    Args:
        hook: a function registered with ``os.register_at_fork`` for children.
    """

    def __init__(self, hook: object) -> None:
        clone = _CLONE.get(os.uname().machine, 0)
        hooks = [found for found in gc.get_referrers(hook) if type(found) is list]
        self._can = LIBC is not None and clone > 0 and len(hooks) == 1
        if LIBC is None or not self._can:
            return
        self._hooks = hooks[0]
        self._syscall = LIBC.syscall
        self._syscall.restype = ctypes.c_long
        self._madvise = LIBC.madvise
        self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._after_fork = ctypes.pythonapi.PyOS_AfterFork_Child
        self._pid = ctypes.c_int(0)
        self._arguments = [
            (ctypes.c_long(clone),),
            (ctypes.c_long(_CLONE_PARENT_SETTID),),
            (None,),
            (ctypes.byref(self._pid),),
            (None,),
            (None,),
        ]

    @property
    def why_not(self) -> str:
        """Why forking is impossible here; empty if it is possible."""
        if not self._can:
            return "this Python or processor has no way to fork unnoticed"
        has_lock = vars(sys).get("_is_gil_enabled")  # from Python 3.13 on
        if has_lock is not None and not has_lock():
            return "this Python has no global interpreter lock"
        return ""

    def fork(self, answer: int, left_out: list[list[int]]) -> tuple[int, float, Copied]:
        """Fork; return the child's PID (0 in the child), the pause in seconds, and the state.

        Args:
            answer: the descriptor that the child keeps, as its descriptor 0.
            left_out: memory ranges, as address and size, that the child does not inherit.

        Raises:
            OSError: the kernel refused.
        """
        self._pid.value = 0
        # Reacquire the GIL: after a longer hold, another thread would request it.
        time.sleep(0)
        started_s = time.perf_counter()
        copied = Copied()
        steps = [*self._first_steps(answer), *copied.steps(), *self._last_steps()]
        for address, size in left_out:
            self._madvise(address, size, _MADV_DONTFORK)
        # Lazy and in C throughout; the steps run only if clone returned 0, which is in the child.
        child = itertools.filterfalse(None, map(self._syscall, *self._arguments))
        of_child = itertools.chain.from_iterable(map({0: steps}.__getitem__, child))
        try:
            # A list: a tuple cannot be filled once others, such as ``gc.get_objects``, refer to it.
            if list(map(_call, of_child)):
                return 0, 0.0, copied
        except BaseException:
            if not self._pid.value:
                self.leave(1)
            raise
        for address, size in left_out:
            self._madvise(address, size, _MADV_DOFORK)
        pause_s = time.perf_counter() - started_s
        if not self._pid.value:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return self._pid.value, pause_s, copied

    def _first_steps(self, answer: int) -> list[partial[Any]]:
        assert LIBC is not None
        others = (ctypes.c_uint(1), ctypes.c_uint(_LAST_DESCRIPTOR), ctypes.c_uint(0))
        return [
            # The child dies with the thread that forked it.
            partial(LIBC.prctl, _PR_SET_PDEATHSIG, int(signal.SIGKILL)),
            partial(LIBC.dup2, answer, 0),
            partial(self._syscall, ctypes.c_long(_CLOSE_RANGE), *others),
        ]

    def _last_steps(self) -> list[partial[Any]]:
        steps: list[partial[Any]] = [partial(self._hooks.clear)]
        if sys.version_info >= (3, 13):
            # From 3.13 on, Python releases the import lock in a child; before, it reinitialised it.
            steps.append(partial(_imp.acquire_lock))
        steps.append(partial(self._after_fork))
        return steps

    def confine(self, deadline_s: int, parent: int, *, at_rest: bool) -> None:
        """In the child: lower the priority, and set a deadline."""
        assert LIBC is not None
        if os.getppid() != parent:
            self.leave(1)
        LIBC.signal(int(signal.SIGALRM), None)
        LIBC.alarm(deadline_s)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        if at_rest:
            LIBC.nice(_NICER_AT_REST)
        else:
            LIBC.setpriority(0, 0, _NICENESS)
        # For kernels without close_range.
        os.closerange(1, 1 << 16)
        # If memory runs out, the OOM killer takes the child and not the program.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
            file.write(b"1000")

    def write(self, data: bytes) -> None:
        """In the child: write all of ``data`` to descriptor 0."""
        assert LIBC is not None
        LIBC.prctl(_PR_SET_NAME, _NAME_ANSWERING)
        view = memoryview(data)
        while view:
            view = view[os.write(0, view) :]

    def leave(self, status: int) -> None:
        """In the child: exit without finalizers and flushes."""
        os._exit(status)


class Child:
    """The parent's handle on a child; nothing else reaps the child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self._seen_cpu = -1
        self._seen_s = self.started_s = time.perf_counter()

    def is_done(self) -> bool:
        """Reap the child if it has ended; never wait."""
        if self.status is None:
            # Not wait4, which leaks an object per call in Python 3.12 and 3.13.
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG | _WAIT_CLONE)
            except ChildProcessError:
                pid, status = self.pid, 1
            if pid:
                self.status = status
        return self.status is not None

    def kill(self) -> None:
        """Kill and reap the child."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            while not self.is_done():
                time.sleep(0.001)

    def is_stuck(self, after_s: float) -> bool:
        """Whether it has slept for ``after_s``, waiting for a lock that no thread can release.

        For example, a thread without the GIL held a malloc lock at the fork.  A child that waits
        for its reader is not stuck.
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


def running_frames() -> list[types.FrameType]:
    """The frames of all other threads, innermost first."""
    found = []
    own = _thread.get_ident()
    for thread, frame in sys._current_frames().items():
        above: types.FrameType | None = frame
        for _ in range(_FRAMES_MAX):
            if above is None or thread == own:
                break
            found.append(above)
            above = above.f_back
    return found


def _is_of_function(frame: types.FrameType) -> bool:
    return frame.f_code.co_flags & _OF_FUNCTION == _OF_FUNCTION
