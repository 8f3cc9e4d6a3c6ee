"""The user's own load tool for a watched target: start, pause, resume and stop it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.errors import UsageError
from hybridbench.targets.own_process import await_end, await_killed, end_with_parent
from hybridbench.targets.stderr_file import StderrFile
from hybridbench.targets.target import ExitStatus

# Only an error sooner than this counts as a failure; after this many failures in a row, give up.
_SOON_S: Final = 10.0
_FAILURES_MAX: Final = 3
_PAUSE_BEFORE_NEXT_S: Final = 0.5
_END_PATIENCE_S: Final = 5.0


class LoadCommand:
    """Own the tool from ``start`` to ``stop``; restart it when it ends by itself.

    Args:
        command: the program and its arguments.
        environment: its entire environment.
        output: the file for its output.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], output: Path, clock: Clock
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._output = StderrFile(output)
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._due_s: float | None = None
        self._paused = False
        self._failures = 0  # in a row
        self.rounds = 0
        self.failure = ""

    @property
    def wanted(self) -> bool:
        """Whether the tool has been started and not stopped."""
        return self._process is not None or self._due_s is not None

    def start(self) -> None:
        """Begin a round.

        Raises:
            UsageError: the system cannot start it.
        """
        self._due_s = None
        try:
            with self._output.open_for_worker() as output:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self._environment,
                    start_new_session=True,
                    preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call
                )
        except OSError as error:
            raise UsageError(
                f"{self._command[0]}: it cannot be started ({error.strerror}).", option="--load"
            ) from error
        self._started_s = self._clock.monotonic_s()
        self.rounds += 1

    def tend(self) -> None:
        """Restart it if it has ended; after three failures in a row ``failure`` gives the reason
        instead.
        """
        now_s = self._clock.monotonic_s()
        if self._due_s is not None and not self._paused and now_s >= self._due_s:
            self.start()
        if self._process is None or self._process.poll() is None or self.failure:
            return
        self._learn(self._process.returncode, now_s - self._started_s)
        # Its children may outlive it, and would send during the next round and after the run.
        _to_group(self._process, signal.SIGKILL)
        self._process = None
        self._output.trim()
        self._due_s = now_s + _PAUSE_BEFORE_NEXT_S

    def pause(self) -> None:
        """Stop it from sending; requests already sent are still answered."""
        self._paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue."""
        self._paused = False
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Terminate the tool, or kill it if it does not end; leave none of its processes behind."""
        process, self._process, self._due_s = self._process, None, None
        if process is None:
            return
        _to_group(process, signal.SIGTERM)
        _to_group(process, signal.SIGCONT)
        await_end(process, _END_PATIENCE_S)
        _to_group(process, signal.SIGKILL)
        await_killed(process)

    def _learn(self, returncode: int, lasted_s: float) -> None:
        failed = returncode != 0 and lasted_s < _SOON_S
        self._failures = self._failures + 1 if failed else 0
        if self._failures >= _FAILURES_MAX:
            how = ExitStatus.from_returncode(returncode).text
            self.failure = f"the load command failed {self._failures} times in a row ({how})"

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            _to_group(self._process, number)


def _to_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
