"""Measure how long a process could have run, to decide whether it is late, hung or dead.

On a crowded machine a process waits for a CPU, and a stopped one waits for a signal.  Neither is
its fault, so that time does not count.  A sleeping process could run at any moment: for a
deadlocked one, this clock runs as fast as wall time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Read at most this often, because reading ten threads takes 0.3 ms.
_READ_EVERY_S: Final = 0.5
# If a caller reads the clock after a longer time, it was delayed itself: the excess does not count.
_ATTENTION_S: Final = 2.0
# A process that did not run at all for this long will not run again: time then counts, so that no
# wait is endless.
_FROZEN_MAX_S: Final = 300.0
_SLEEPS: Final = frozenset("SI")
_GONE: Final = frozenset("ZX")
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12  # indices after the name in /proc/PID/stat
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Thread:
    state: str
    ran_s: float
    waited_s: float  # in a run queue; 0 if the kernel does not report it


class RunnableTime:
    """Sums up the time in which a process could have run; read it at least every two seconds."""

    def __init__(
        self,
        pid: int,
        now_s: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
    ) -> None:
        self._tasks = proc / str(pid) / "task"
        self._now_s = now_s
        self._read_s = now_s()
        self._threads = self._read()
        self._could_run_s = self._frozen_s = 0.0

    def elapsed_s(self) -> float:
        """Return the seconds since creation in which the process could have run.

        A thread that waits for a CPU may block all others.  For a process that has ended every
        second counts, because there is nothing to wait for.
        """
        now_s = self._now_s()
        passed_s = now_s - self._read_s
        if passed_s >= _READ_EVERY_S:
            before, self._threads, self._read_s = self._threads, self._read(), now_s
            self._could_run_s += self._credit_s(before, min(passed_s, _ATTENTION_S))
        return self._could_run_s

    def _credit_s(self, before: Mapping[str, _Thread], passed_s: float) -> float:
        nothing = _Thread("", 0.0, 0.0)
        pairs = [(before.get(tid, nothing), now) for tid, now in self._threads.items()]
        credit_s = min((_could_run_s(*pair, passed_s) for pair in pairs), default=passed_s)
        if credit_s > 0.0 or any(now.ran_s > then.ran_s for then, now in pairs):
            self._frozen_s = 0.0
            return credit_s
        self._frozen_s += passed_s
        return passed_s if self._frozen_s > _FROZEN_MAX_S else 0.0

    def _read(self) -> dict[str, _Thread]:
        try:
            names = os.listdir(self._tasks)
        except OSError:
            return {}
        found = ((name, _thread(self._tasks / name)) for name in names)
        return {name: one for name, one in found if one is not None and one.state not in _GONE}


def _could_run_s(then: _Thread, now: _Thread, passed_s: float) -> float:
    """Return the part of ``passed_s`` in which this thread ran or could have run.

    The kernel accounts for a wait only when it ends, so for a thread that is waiting for a CPU now
    (or for a disk, or for SIGCONT) only its running time is known.
    """
    if now.state in _SLEEPS:
        return max(0.0, passed_s - (now.waited_s - then.waited_s))
    return min(passed_s, now.ran_s - then.ran_s)


def _thread(folder: Path) -> _Thread | None:
    try:
        words = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        ticks = int(words[_USER_TICKS]) + int(words[_SYSTEM_TICKS])
    except (OSError, IndexError, ValueError):
        return None
    try:
        ran_ns, waited_ns, *_ = map(int, (folder / "schedstat").read_text("utf-8").split())
    except (OSError, ValueError):
        return _Thread(words[_STATE], ticks / _TICKS_PER_S, 0.0)
    return _Thread(words[_STATE], ran_ns / 1e9, waited_ns / 1e9)
