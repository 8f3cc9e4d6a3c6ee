"""A process tree that is already running: it is observed, and never signalled."""

from __future__ import annotations

import os
from typing import Final

from hybridbench.foundation.errors import ConfigError, ErrorCode
from hybridbench.sampling.process import require_proc
from hybridbench.sampling.process_tree import ProcessTree, RoleOf, role_by_command
from hybridbench.targets.seen_tree import SeenTree
from hybridbench.targets.target import ExitStatus

# Only a parent learns how a process ended.
_UNKNOWN: Final = ExitStatus(None, None)


class AttachedTree(SeenTree):
    """The process ``pid`` and all its descendants; a later process with the same pid is ignored."""

    def __init__(self, pid: int, role_of: RoleOf = role_by_command) -> None:
        """Attach to the process ``pid``.

        Raises:
            ConfigError: there is no such process, or it is this process or an ancestor of it.
        """
        require_proc()
        tree = ProcessTree(pid, role_of)
        if not tree.alive:
            raise ConfigError(
                f"there is no process {pid} here, or it is not visible to this user.",
                code=ErrorCode.NOT_FOUND,
            )
        if any(member.pid == os.getpid() for member in tree.members()):
            raise ConfigError(
                f"process {pid} has started hybridbench itself; name the server's own process.",
                code=ErrorCode.BAD_VALUE,
            )
        super().__init__(pid, tree)

    def exit_status(self) -> ExitStatus | None:
        """Return how the process ended, if seen; None while any process of the tree lives."""
        if self._tree.alive or self._tree.members():
            return None
        return self.exit_of(self._pid) or _UNKNOWN

    def stderr_tail(self) -> list[str]:
        return []

    def limit_stderr(self) -> None:
        """Do nothing: its output is not ours to cut."""

    def stop(self, patience_s: float) -> ExitStatus | None:
        """Leave the processes running; neither signal them nor wait."""
        return self.exit_status()

    def kill(self) -> bool:
        """Kill nothing; return whether the processes have ended by themselves."""
        return self.exit_status() is not None
