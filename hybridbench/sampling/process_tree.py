"""Read a tree of processes from /proc: its members, their roles, what each holds.

Not through psutil: one file has a process's parent, session, start, end and CPU time, even for
other users' processes.  psutil has neither session nor end, and reads more files.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hybridbench.foundation.metrics import MEMORY, SHARED
from hybridbench.records.processes import ProcessSample
from hybridbench.sampling.device_memory import DeviceMemory
from hybridbench.sampling.memory_maps import mapping_counts
from hybridbench.sampling.process import ProcessGoneError, read_pss_bytes
from hybridbench.sampling.roles import UNTITLED, role_of_command
from hybridbench.sampling.sampler import ProcessSource

_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# Indices of the fields after the name in /proc/PID/stat.
_STATE, _PARENT, _SESSION, _USER, _SYSTEM, _STARTED = 0, 1, 3, 11, 12, 19
_EXIT_SIGNAL, _WAIT_STATUS = 35, 49
_GONE: Final = frozenset("ZX")

# A name becomes a role once a process of that name has lived this long: an installer's 200
# short-lived children must not become roles.
PERSISTENT_S: Final = 5.0
# A child started by multiprocessing imports its program before it sets a title: vLLM's take a
# minute on one core.
UNTITLED_S: Final = 90.0
_ROLES_MAX: Final = 64
# A process changes its name when it executes another program or sets its own title; one that shows
# its activity in its title would never stop changing it.
_RENAMES_MAX: Final = 3
# Readings that walk page tables are taken of one process at a time, and at most this often of each.
_SLOW_EVERY_S: Final = 30.0
_NAMES_KEPT: Final = 100


@dataclass(frozen=True)
class TreeProcess:
    """One process of a tree; ``started_s`` is in seconds after the machine's boot.

    ``command`` is the program's name, or the whole command as the kernel shows it, including any
    secrets; use it only to name the process, and never store it.
    """

    pid: int
    parent: int
    session: int
    started_s: float
    command: tuple[str, ...]
    cpu_s: float = 0.0

    @property
    def key(self) -> tuple[int, float]:
        """Unique on this machine, even if the pid is reused."""
        return self.pid, self.started_s


RoleOf = Callable[[TreeProcess], str]
# Called for each zombie with its pid, its parent, its start and its wait status.
SawEnd = Callable[[int, int, float, int], None]


def role_by_command(process: TreeProcess) -> str:
    """Return a process's own title (``VLLM::EngineCore``), else the name of its program."""
    return role_of_command(process.command)


@dataclass
class _Known:
    """A process seen before; ``role`` is empty while it has none."""

    process: TreeProcess
    base: str = ""
    role: str = ""
    renames: int = 0
    slow_due_s: float = 0.0
    had_children: bool = False
    left_zombies: bool = False
    shares_memory: bool = False


class ProcessTree:
    """The process ``root`` and all its descendants, including orphaned ones.

    Concurrent processes of one role are numbered in order of their start; each keeps its number,
    and a restarted process takes over the number of the one that ended.

    Args:
        root: pid of the process at the root.
        role_of: names a process.
        mark: an environment entry, ``NAME=value``, unique to this tree: it finds processes that
            left both the session and their parent.
        now_s: seconds after the machine's boot.
        device: reads device memory by process.
    """

    def __init__(
        self,
        root: int,
        role_of: RoleOf = role_by_command,
        *,
        mark: str = "",
        proc: Path = _PROC,
        now_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        device: DeviceMemory | None = None,
    ) -> None:
        self._role_of = role_of
        self._mark = mark.encode()
        self._proc = proc
        self._now_s = now_s
        self._device = DeviceMemory() if device is None else device
        first = _process(root, proc)
        self._root = (root, first.started_s if first is not None else -1.0)
        self._known: dict[tuple[int, float], _Known] = {}
        self._strangers: set[tuple[int, float]] = set()
        self._persistent: set[str] = set()
        self._left_out: Counter[str] = Counter()
        self._unseen: dict[str, set[str]] = {}
        self._wait_status: dict[int, int] = {}
        self._zombies: Counter[int] = Counter()
        self._children: Counter[int] = Counter()

    @property
    def alive(self) -> bool:
        """Whether the root still runs; another process with its pid is not the root."""
        root = _process(self._root[0], self._proc)
        return root is not None and root.key == self._root

    @property
    def not_seen(self) -> list[str]:
        """What the samples lack, in words for the report."""
        missed = [
            f"{_listed(sorted(names))} of {role}, which belongs to another user"
            for role, names in sorted(self._unseen.items())
        ]
        if self._left_out:
            missed.append(
                f"short-lived processes, of which {self._left_out.total()} were seen: "
                f"{_counted(self._left_out)}"
            )
        young = Counter(known.base for known in self._known.values() if not known.role)
        if young:
            missed.append(f"processes that still had no series at the end: {_counted(young)}")
        return missed

    def wait_status(self, pid: int) -> int | None:
        """Return how a process of the tree ended, as ``os.waitpid`` reports it.

        None unless it was seen as a zombie, before its parent waited for it.
        """
        return self._wait_status.get(pid)

    def members(self) -> list[TreeProcess]:
        """Return all live processes, by start time."""
        self._zombies.clear()
        every = _all_processes(self._proc, self._saw_end)
        inside = _Membership(every, self._root, self._known.keys(), self._is_marked)
        found = [process for pid, process in every.items() if inside.has(pid)]
        self._strangers &= {process.key for process in every.values()}
        return sorted(found, key=lambda process: (process.started_s, process.pid))

    def read(self) -> list[ProcessSample]:
        """Read every process with a role, except those that end meanwhile."""
        members = self.members()
        self._children = _children_of(members)
        self._name([self._with_command(process) for process in members])
        named = [known for known in self._known.values() if known.role]
        slow = min(named, key=lambda known: known.slow_due_s, default=None)
        on_device = self._device.read()
        found = (self._sample(known, known is slow, on_device) for known in named)
        return [sample for sample in found if sample is not None]

    def _with_command(self, process: TreeProcess) -> TreeProcess:
        """Return ``process`` with its command; for members only: a forking process blocks this."""
        try:
            line = (self._proc / str(process.pid) / "cmdline").read_bytes()
        except OSError:
            return process
        words = line.decode("utf-8", "replace").rstrip("\0")
        return replace(process, command=tuple(words.split("\0"))) if words else process

    def signal(self, number: int) -> bool:
        """Send a signal to every process of the tree; False if none is left."""
        members = self.members()
        for process in members:
            self._signal(process, number)
        return bool(members)

    def _signal(self, process: TreeProcess, number: int) -> None:
        with suppress(OSError):
            handle = os.pidfd_open(process.pid)
            try:
                # The handle refers to one process, even if its pid is reused: check which one.
                now = _process(process.pid, self._proc)
                if now is not None and now.key == process.key:
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def _saw_end(self, pid: int, parent: int, started_s: float, wait_status: int) -> None:
        self._zombies[parent] += 1
        if (pid, started_s) in self._known:
            self._wait_status[pid] = wait_status
            while len(self._wait_status) > _NAMES_KEPT:
                del self._wait_status[next(iter(self._wait_status))]

    def _is_marked(self, process: TreeProcess) -> bool:
        if not self._mark or process.key in self._strangers or process.started_s < self._root[1]:
            return False
        with suppress(OSError):
            environment = (self._proc / str(process.pid) / "environ").read_bytes()
            if self._mark in environment.split(b"\0"):
                return True
        self._strangers.add(process.key)
        return False

    def _name(self, members: list[TreeProcess]) -> None:
        living = {process.key: process for process in members}
        for key in [key for key in self._known if key not in living]:
            ended = self._known.pop(key)
            if not ended.role and (ended.base in self._left_out or self._room_for_names):
                self._left_out[ended.base] += 1
        taken = {known.role for known in self._known.values() if known.role}
        for key, process in living.items():
            known = self._known.setdefault(key, _Known(process))
            known.process = process
            base = self._role_of(process)
            if base != known.base and known.renames <= _RENAMES_MAX:
                taken.discard(known.role)
                known.base, known.role = base, ""
                known.renames += 1
            if not known.role and self._persists(known) and len(taken) < _ROLES_MAX:
                known.role = _free_name(known.base, taken)
                taken.add(known.role)

    @property
    def _room_for_names(self) -> bool:
        return len(self._left_out) < _NAMES_KEPT

    def _persists(self, known: _Known) -> bool:
        patience_s = UNTITLED_S if known.base in UNTITLED else PERSISTENT_S
        old = self._now_s() - known.process.started_s >= patience_s
        if known.process.key == self._root or (old and len(self._persistent) < _NAMES_KEPT):
            self._persistent.add(known.base)
        return known.base in self._persistent

    def _sample(
        self, known: _Known, slow: bool, on_device: Mapping[int, int]
    ) -> ProcessSample | None:
        pid = known.process.pid
        try:
            source = ProcessSource(pid, self._proc)
            values = dict(source.read())
            if not values:
                return None
            self._note_unseen(known.role, values)
            known.shares_memory |= source.shared_bytes > 0
            if known.shares_memory:
                values[SHARED] = source.shared_bytes
            if slow and self._now_s() >= known.slow_due_s:
                known.slow_due_s = self._now_s() + _SLOW_EVERY_S
                values |= self._slow(known)
        except ProcessGoneError:
            return None
        values["worker_cpu_s"] = known.process.cpu_s
        known.had_children |= self._children[pid] > 0
        if known.had_children:
            values["children"] = self._children[pid]
        known.left_zombies |= self._zombies[pid] > 0
        if known.left_zombies:
            values["zombies"] = self._zombies[pid]
        if pid in on_device:
            values["device_used_bytes"] = on_device[pid]
        return ProcessSample(known.role, pid, known.process.started_s, values)

    def _slow(self, known: _Known) -> dict[str, float]:
        pid = known.process.pid
        pss_bytes = read_pss_bytes(pid, self._proc)
        if pss_bytes is None:
            self._unseen.setdefault(known.role, set()).add("proportional set size (PSS)")
        counts: dict[str, float] = {
            f"mappings.{size_bytes // 1024}KiB": count
            for size_bytes, count in mapping_counts(pid, self._proc).items()
        }
        return counts if pss_bytes is None else {**counts, "pss_bytes": pss_bytes}

    def _note_unseen(self, role: str, values: Mapping[str, float]) -> None:
        for name, words in (("open_fds", "open files"), (MEMORY, "private memory")):
            if name not in values:
                self._unseen.setdefault(role, set()).add(words)


@dataclass
class _Membership:
    """Decides which processes belong to the root, by parent, session, mark or earlier calls."""

    every: Mapping[int, TreeProcess]
    root: tuple[int, float]
    before: Container[tuple[int, float]]
    marked: Callable[[TreeProcess], bool]

    def __post_init__(self) -> None:
        leader = self.every.get(self.root[0])
        # The root's pid is reused only after its whole session has ended.
        self._session = self.root[0] if leader is None or leader.key == self.root else -1
        self._inside: dict[int, bool] = {}

    def has(self, pid: int) -> bool:
        if pid not in self._inside:
            self._inside[pid] = False  # terminates cycles, which a reused pid may cause
            process = self.every.get(pid)
            self._inside[pid] = process is not None and self._belongs(process)
        return self._inside[pid]

    def _belongs(self, process: TreeProcess) -> bool:
        return (
            process.key == self.root
            or process.session == self._session
            or process.key in self.before
            or self.has(process.parent)
            or self.marked(process)
        )


def _all_processes(proc: Path, saw_end: SawEnd) -> dict[int, TreeProcess]:
    pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    found = (_process(pid, proc, saw_end) for pid in pids)
    return {process.pid: process for process in found if process is not None}


def _process(pid: int, proc: Path, saw_end: SawEnd | None = None) -> TreeProcess | None:
    """Return the process, or None if it has ended or cannot be seen."""
    folder = proc / str(pid)
    try:
        head, _, rest = (folder / "stat").read_text("utf-8", "replace").rpartition(")")
        words = rest.split()
        started_s = int(words[_STARTED]) / _TICKS_PER_S
        if words[_EXIT_SIGNAL] == "0":
            return None  # a probe's counting child: programs never set exit signal 0
        if words[_STATE] in _GONE:
            if saw_end is not None:
                saw_end(pid, int(words[_PARENT]), started_s, int(words[_WAIT_STATUS]))
            return None
        parent, session = int(words[_PARENT]), int(words[_SESSION])
        cpu_s = (int(words[_USER]) + int(words[_SYSTEM])) / _TICKS_PER_S
    except (OSError, IndexError, ValueError):
        return None
    return TreeProcess(pid, parent, session, started_s, (head.partition("(")[2],), cpu_s)


def _children_of(members: list[TreeProcess]) -> Counter[int]:
    """Count the children of each process; orphans count as children of the first."""
    pids = {process.pid for process in members}
    return Counter(
        process.parent if process.parent in pids else members[0].pid for process in members[1:]
    )


def _free_name(role: str, taken: Container[str]) -> str:
    name, number = role, 1
    while name in taken:
        number += 1
        name = f"{role}-{number}"
    return name


def _counted(programs: Counter[str]) -> str:
    named = [f"{name} ({count})" for name, count in programs.most_common(5)]
    more = len(programs) - len(named)
    return f"{', '.join(named)}{f' and {more} other programs' if more else ''}"


def _listed(names: list[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
