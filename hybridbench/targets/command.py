"""Run a user's command as a target: start it, observe it from outside, end all its processes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hybridbench.foundation.errors import ConfigError, ErrorCode
from hybridbench.sampling.process import require_proc
from hybridbench.sampling.process_tree import ProcessTree, RoleOf, role_by_command
from hybridbench.sampling.redaction import redacted_text, without_values
from hybridbench.targets import exec_command
from hybridbench.targets.own_process import await_end, await_killed
from hybridbench.targets.seen_tree import SeenTree
from hybridbench.targets.stderr_file import StderrFile
from hybridbench.targets.target import ExitStatus

# Set in the command's environment, to find descendants that left its session and parent.
_MARK: Final = "HYBRIDBENCH_TARGET"
# Patience for the remaining processes once the root has ended.
_REST_S: Final = 5.0
_POLL_S: Final = 0.05


class LaunchedCommand(SeenTree):
    """Owns the processes of a command from start to end.

    The command leads its own session, so that a Ctrl-C at the terminal reaches only the bench.
    Its first process dies with the bench, however the bench ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        stderr_path: Path,
        role_of: RoleOf = role_by_command,
        folder: Path | None = None,
    ) -> None:
        """Start the command.

        Args:
            command: the program and its arguments.
            environment: its whole environment; None for the caller's.
            stderr_path: file for its stdout and stderr.
            role_of: names its processes.
            folder: its working directory; None for the caller's.

        Raises:
            ConfigError: it cannot be started; the message says why.
        """
        require_proc()
        if not command or not command[0]:
            raise ConfigError("there is no command to start.", code=ErrorCode.MISSING_ARGUMENT)
        self._command, self._environment, self._folder = command, environment, folder
        self._role_of = role_of
        self._stderr = StderrFile(stderr_path)
        self._begin()

    def _begin(self) -> None:
        mark = f"{_MARK}={secrets.token_hex(8)}"
        self._process = _start(self._command, mark, self._stderr, self._environment, self._folder)
        pid = self._process.pid
        super().__init__(pid, ProcessTree(pid, self._role_of, mark=mark))

    def restart(self) -> None:
        """Kill the command's remaining processes and start it again.

        Raises:
            ConfigError: it can no longer be started.
        """
        self.kill()
        self._begin()

    def exit_of(self, pid: int) -> ExitStatus | None:
        return self._ended if pid == self.pid else super().exit_of(pid)

    def exit_status(self) -> ExitStatus | None:
        """Return how the command ended; None while it, or a daemon that it started, runs."""
        ended = self._ended
        return None if ended == ExitStatus(0, None) and self._has_daemon else ended

    @property
    def _ended(self) -> ExitStatus | None:
        returncode = self._process.poll()
        return None if returncode is None else ExitStatus.from_returncode(returncode)

    @property
    def _has_daemon(self) -> bool:
        """Whether a process of the tree lives in a session of its own, as daemons do."""
        return any(member.session != self.pid for member in self._tree.members())

    def stderr_tail(self) -> list[str]:
        """Return its last lines, with values that may have been sent to it removed."""
        return without_values([redacted_text(line) for line in self._stderr.tail()])

    def limit_stderr(self) -> None:
        self._stderr.trim()

    def stop(self, patience_s: float) -> ExitStatus | None:
        """Send every process SIGTERM, wait for the first one to end, and kill the rest."""
        self._tree.signal(signal.SIGTERM)
        if await_end(self._process, patience_s) is not None:
            deadline_s = time.monotonic() + min(patience_s, _REST_S)
            while self._tree.members() and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
        self.kill()
        return self.exit_status()

    def kill(self) -> bool:
        """Kill every process of the tree; return whether the end of all was seen."""
        deadline_s = time.monotonic() + _REST_S
        # A process may start another one while the list is read.
        while left := self._tree.signal(signal.SIGKILL):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(_POLL_S)
        return await_killed(self._process) is not None and not left


def _start(
    command: Sequence[str],
    mark: str,
    log: StderrFile,
    environment: Mapping[str, str] | None,
    folder: Path | None,
) -> subprocess.Popen[bytes]:
    read_end, write_end = os.pipe()
    becomes = [sys.executable, "-I", "-S", exec_command.__file__, str(write_end)]
    try:
        with log.open_for_worker() as stderr, os.fdopen(read_end, "rb") as refusal:
            process = subprocess.Popen(
                [*becomes, str(os.getpid()), mark, *command],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=environment,
                cwd=folder,
                pass_fds=(write_end,),
                start_new_session=True,
            )
            os.close(write_end)
            write_end = -1
            reason = refusal.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise _not_started(command, str(error)) from error
    finally:
        if write_end >= 0:
            os.close(write_end)
    if reason:
        process.wait()
        raise _not_started(command, reason)
    return process


def _not_started(command: Sequence[str], reason: str) -> ConfigError:
    program = redacted_text(command[0])
    return ConfigError(f"cannot start {program}: {reason}.")
