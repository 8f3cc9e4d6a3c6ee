"""A command of the user as a target: started here, seen from outside, and ended with all it
started.
"""

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

from hybridbench.errors import ConfigError, ErrorCode
from hybridbench.records.processes import ProcessSample
from hybridbench.sampling.process import require_proc
from hybridbench.sampling.process_tree import ProcessTree, RoleOf, role_by_command
from hybridbench.sampling.redaction import redacted_text, without_values
from hybridbench.sampling.runnable_time import RunnableTime
from hybridbench.targets import exec_command
from hybridbench.targets.own_process import await_end, await_killed
from hybridbench.targets.stderr_file import StderrFile
from hybridbench.targets.target import ExitStatus

# In the environment of the command, so that what leaves its session and its parent is found again.
_MARK: Final = "HYBRIDBENCH_TARGET"
# For what is left when the root has ended.
_REST_S: Final = 5.0
_POLL_S: Final = 0.05


class LaunchedCommand:
    """Owns the processes of a command from their start to their end.

    The command leads a session of its own, so that a Ctrl-C at the terminal reaches only the bench.
    Its first process dies with the bench, whatever kills that.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        stderr_path: Path,
        role_of: RoleOf = role_by_command,
    ) -> None:
        """Start it.

        Args:
            command: the program and its arguments.
            environment: all of its environment; None for the caller's.
            stderr_path: gets what it writes to stdout and stderr.
            role_of: names its processes.

        Raises:
            ConfigError: it cannot be started; the sentence says why.
        """
        require_proc()
        if not command or not command[0]:
            raise ConfigError("there is no command to start.", code=ErrorCode.MISSING_ARGUMENT)
        mark = f"{_MARK}={secrets.token_hex(8)}"
        self._stderr = StderrFile(stderr_path)
        self._process = _start(command, mark, self._stderr, environment)
        self._tree = ProcessTree(self.pid, role_of, mark=mark)
        self._could_run = RunnableTime(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def not_seen(self) -> list[str]:
        """What a reader of its samples misses, in words."""
        return self._tree.not_seen

    def processes(self) -> Sequence[ProcessSample]:
        return self._tree.read()

    def counters(self) -> Mapping[str, float]:
        return {}

    def exit_of(self, pid: int) -> ExitStatus | None:
        if pid == self.pid:
            return self.exit_status()
        status = self._tree.wait_status(pid)
        return None if status is None else exit_status_of(status)

    def exit_status(self) -> ExitStatus | None:
        returncode = self._process.poll()
        return None if returncode is None else ExitStatus.from_returncode(returncode)

    def could_run_s(self) -> float:
        return self._could_run.elapsed_s()

    def stderr_tail(self) -> list[str]:
        """What its last lines say of its end, without what may have been sent to it."""
        return without_values([redacted_text(line) for line in self._stderr.tail()])

    def limit_stderr(self) -> None:
        self._stderr.trim()

    def stop(self, patience_s: float) -> ExitStatus | None:
        """Ask every process to end; kill those that have not when the first one's time is up."""
        self._tree.signal(signal.SIGTERM)
        if await_end(self._process, patience_s) is not None:
            self._await_rest(min(patience_s, _REST_S))
        self.kill()
        return self.exit_status()

    def kill(self) -> bool:
        """Kill every process of the tree; whether the end of all was seen."""
        deadline_s = time.monotonic() + _REST_S
        # A process may have started another one while the list was read.
        while left := self._tree.signal(signal.SIGKILL):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(_POLL_S)
        return await_killed(self._process) is not None and not left

    def _await_rest(self, patience_s: float) -> None:
        deadline_s = time.monotonic() + patience_s
        while self._tree.members() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)


def exit_status_of(wait_status: int) -> ExitStatus:
    """From the value that ``os.waitpid`` and the kernel's list of processes give."""
    return ExitStatus.from_returncode(os.waitstatus_to_exitcode(wait_status))


def _start(
    command: Sequence[str], mark: str, log: StderrFile, environment: Mapping[str, str] | None
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
    return ConfigError(f"cannot start {program}: {reason}.", code=ErrorCode.WORKER_NOT_STARTED)
