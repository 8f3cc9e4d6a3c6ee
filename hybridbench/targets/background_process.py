"""Run one of our own commands as a child process: start it, wait for it, and clean up."""

from __future__ import annotations

import io
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final, Self, TextIO

from hybridbench.foundation.safe_output import say
from hybridbench.sampling.runnable_time import RunnableTime
from hybridbench.targets.own_process import await_end, await_killed, end_with_parent, own_command

# For processes that only judge or report, so that the engine and its clients get the other cores.
ONE_THREAD: Final[Mapping[str, str]] = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

_LAST_LINES: Final = 3
_POLL_S: Final = 0.2
# Time for a process to end after SIGTERM: a soak drains its engine, judges and reports.
_LAST_WORDS_S: Final = 300.0


@dataclass(frozen=True)
class Completed:
    """How a command ended, with its last lines on stderr."""

    exit_code: int
    last_words: str
    timed_out: bool = False


@dataclass(frozen=True)
class Answer:
    """A command's two outputs, and how it ended."""

    exit_code: int
    output: bytes
    errors: str
    timed_out: bool


def answer_of(
    command: Sequence[str], patience_s: float, settings: Mapping[str, str] | None = None
) -> Answer:
    """Run ``command``, one of our Python programs; end it after ``patience_s`` of runnable time.

    Raises:
        OSError: the system cannot start it.
    """
    errors = io.StringIO()
    with tempfile.TemporaryFile() as output:
        process = BackgroundProcess(command, settings=settings, output=output, keep_errors=True)
        ended = process.run(patience_s, errors)
        output.seek(0)
        return Answer(ended.exit_code, output.read(), errors.getvalue(), ended.timed_out)


class BackgroundProcess:
    """Owns one process from its start until ``close`` ends it.

    It leads its own session, so that a Ctrl-C at the terminal reaches only the parent process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        settings: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
        keep_errors: bool = False,
        pass_fds: Sequence[int] = (),
        ends_with_parent: bool = False,
    ) -> None:
        """Start ``command``, one of our Python programs.

        Args:
            command: the interpreter and its arguments.
            settings: environment variables added to the caller's.
            output: where its stdout goes; None discards it.
            keep_errors: whether ``run`` reads its stderr; otherwise it is discarded.
            pass_fds: descriptors that it inherits.
            ends_with_parent: have the kernel send it SIGTERM when this process dies.

        Raises:
            OSError: the system cannot start it.
        """
        self._process = subprocess.Popen(
            own_command(command, settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if output is None else output,
            stderr=subprocess.PIPE if keep_errors else subprocess.DEVNULL,
            text=True,
            errors="replace",
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=end_with_parent if ends_with_parent else None,  # noqa: PLW1509 - one system call
        )
        self._could_run = RunnableTime(self._process.pid)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while the process runs, negative for a signal."""
        return self._process.poll()

    @property
    def could_run_s(self) -> float:
        """Its runnable time since its start, without waits for a processor."""
        return self._could_run.elapsed_s()

    def send_signal(self, number: signal.Signals) -> None:
        """Forward a signal if the process still runs."""
        self._process.send_signal(number)

    def run(self, patience_s: float, words: TextIO | None = None) -> Completed:
        """Wait for the end and copy stderr to ``words``; needs ``keep_errors``.

        After ``patience_s`` of runnable time, the process gets SIGTERM, so that a soak still judges
        what it has; later it is killed.
        """
        late, over = threading.Event(), threading.Event()

        def watch() -> None:
            while not over.wait(_POLL_S):
                if not late.is_set() and self.could_run_s > patience_s:
                    late.set()
                    self._process.terminate()
                elif self.could_run_s > patience_s + _LAST_WORDS_S:
                    self._process.kill()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            last_words = self._pass_on(words)
            # The process may close its stderr before it ends.
            code = await_end(self._process, patience_s + _LAST_WORDS_S)
        finally:
            over.set()
            watcher.join()
        if code is None:
            late.set()
            self._process.kill()
            code = await_killed(self._process)
        return Completed(-signal.SIGKILL if code is None else code, last_words, late.is_set())

    def close(self, patience_s: float = 0.0) -> None:
        """Wait up to ``patience_s`` of runnable time for the end, then kill the process."""
        if await_end(self._process, patience_s) is None:
            self._process.kill()
            await_killed(self._process)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _pass_on(self, words: TextIO | None) -> str:
        last: deque[str] = deque(maxlen=_LAST_LINES)
        assert self._process.stderr is not None, "nothing was kept"
        with self._process.stderr as lines:
            for line in lines:
                if words is not None:
                    say(words, line)
                if line.strip():
                    last.append(line.strip())
        return " | ".join(last)
