"""A tree of processes that runs already: it is looked at, and never signalled."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from hybridbench.errors import ConfigError, ErrorCode
from hybridbench.records.processes import ProcessSample
from hybridbench.sampling.process import require_proc
from hybridbench.sampling.process_tree import ProcessTree, RoleOf, role_by_command
from hybridbench.sampling.runnable_time import RunnableTime
from hybridbench.targets.command import exit_status_of
from hybridbench.targets.target import ExitStatus

# Nobody but its parent learns how a process ended.
_UNKNOWN: Final = ExitStatus(None, None)


class AttachedTree:
    """The process ``pid`` and all that it has started; who gets that pid later is another one."""

    def __init__(self, pid: int, role_of: RoleOf = role_by_command) -> None:
        """
        Raises:
            ConfigError: there is no such process, or it is this one or one that started it.
        """
        require_proc()
        self._pid = pid
        self._tree = ProcessTree(pid, role_of)
        if not self._tree.alive:
            raise ConfigError(
                f"there is no process {pid} here, or it is not visible to this user.",
                code=ErrorCode.NOT_FOUND,
            )
        if any(member.pid == os.getpid() for member in self._tree.members()):
            raise ConfigError(
                f"process {pid} has started hybridbench itself; name the server's own process.",
                code=ErrorCode.BAD_VALUE,
            )
        self._could_run = RunnableTime(pid)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def not_seen(self) -> list[str]:
        """What a reader of its samples misses, in words."""
        return self._tree.not_seen

    def processes(self) -> Sequence[ProcessSample]:
        return self._tree.read()

    def counters(self) -> Mapping[str, float]:
        return {}

    def exit_of(self, pid: int) -> ExitStatus | None:
        status = self._tree.wait_status(pid)
        return None if status is None else exit_status_of(status)

    def exit_status(self) -> ExitStatus | None:
        """Without code and signal unless the end was seen; None while any process of it lives."""
        if self._tree.alive or self._tree.members():
            return None
        return self.exit_of(self._pid) or _UNKNOWN

    def could_run_s(self) -> float:
        return self._could_run.elapsed_s()

    def stderr_tail(self) -> list[str]:
        return []

    def limit_stderr(self) -> None:
        """What it writes is not ours to cut."""

    def stop(self, patience_s: float) -> ExitStatus | None:
        """The processes go on; nothing is asked of them, and nothing awaited."""
        del patience_s
        return self.exit_status()

    def kill(self) -> bool:
        """Whether they have ended by themselves; nothing is done to them."""
        return self.exit_status() is not None
