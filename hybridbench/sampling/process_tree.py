"""A tree of processes as the kernel shows it: who belongs to it, its roles, what each holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hybridbench.records.processes import ProcessSample
from hybridbench.sampling.process import read_cpu_s
from hybridbench.sampling.sampler import ProcessSource

_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# Behind the name in /proc/PID/stat.
_STATE, _PARENT, _SESSION, _STARTED = 0, 1, 3, 19
_GONE: Final = frozenset("ZX")


@dataclass(frozen=True)
class TreeProcess:
    """One process of a tree; ``started_s`` is in seconds after the machine's boot."""

    pid: int
    parent: int
    session: int
    started_s: float
    command: tuple[str, ...]


RoleOf = Callable[[TreeProcess], str]


def role_by_command(process: TreeProcess) -> str:
    """What a process calls itself (``VLLM::EngineCore``), else its program or Python's script."""
    words = [Path(word).name for word in process.command if word and not word.startswith("-")]
    if len(words) > 1 and words[0].startswith("python"):
        return words[1].removesuffix(".py")
    return words[0] if words else "unnamed"


class ProcessTree:
    """The process ``root`` and all that it started, also what its parent has left behind.

    Two processes of one role at one time get numbers, in the order of their start; each keeps its
    number, and one that is started anew takes that of the one that ended.
    """

    def __init__(self, root: int, role_of: RoleOf = role_by_command, proc: Path = _PROC) -> None:
        self._root = root
        self._role_of = role_of
        self._proc = proc
        self._roles: dict[tuple[int, float], str] = {}

    def read(self) -> list[ProcessSample]:
        """What can be seen now of each process; one that ends meanwhile is left out."""
        members = _members(self._root, _all_processes(self._proc))
        self._name(members)
        found = (self._sample(process) for process in members)
        return [sample for sample in found if sample is not None]

    def _name(self, members: list[TreeProcess]) -> None:
        known = {(p.pid, p.started_s): p for p in members}
        self._roles = {key: role for key, role in self._roles.items() if key in known}
        taken = set(self._roles.values())
        for key, process in known.items():
            if key in self._roles:
                continue
            # A name that a process gives itself may come a moment after its start.
            role, number = self._role_of(process), 1
            while (name := role if number == 1 else f"{role}-{number}") in taken:
                number += 1
            self._roles[key] = name
            taken.add(name)

    def _sample(self, process: TreeProcess) -> ProcessSample | None:
        values = dict(ProcessSource(process.pid).read())
        cpu_s = read_cpu_s(process.pid, self._proc)
        if cpu_s is not None:
            values["worker_cpu_s"] = cpu_s
        if not values:
            return None
        role = self._roles[process.pid, process.started_s]
        return ProcessSample(role, process.pid, process.started_s, values)


def _members(root: int, every: Mapping[int, TreeProcess]) -> list[TreeProcess]:
    """By start; a child whose parent ended keeps the session that ``root`` leads."""
    inside: dict[int, bool] = {root: True}

    def belongs(pid: int) -> bool:
        process = every.get(pid)
        if pid not in inside:
            inside[pid] = False  # so that a circle, which a reused pid may make, ends
            inside[pid] = process is not None and (
                process.session == root or belongs(process.parent)
            )
        return inside[pid]

    return sorted(
        (process for pid, process in every.items() if belongs(pid)),
        key=lambda process: (process.started_s, process.pid),
    )


def _all_processes(proc: Path) -> dict[int, TreeProcess]:
    pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    found = (_process(pid, proc) for pid in pids)
    return {process.pid: process for process in found if process is not None}


def _process(pid: int, proc: Path) -> TreeProcess | None:
    folder = proc / str(pid)
    try:
        words = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        command = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
        if words[_STATE] in _GONE:
            return None
        started_s = int(words[_STARTED]) / _TICKS_PER_S
        parent, session = int(words[_PARENT]), int(words[_SESSION])
    except (OSError, IndexError, ValueError):
        return None
    return TreeProcess(pid, parent, session, started_s, tuple(command.rstrip("\0").split("\0")))
