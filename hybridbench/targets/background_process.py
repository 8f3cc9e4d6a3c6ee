"""A command of ours beside this process: started, waited for, ended; nothing of it stays behind."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final, Self, TextIO

from hybridbench.safe_output import say
from hybridbench.targets.own_process import own_command

# For processes that only judge or report: the engine and its clients need the other cores.
ONE_THREAD: Final[Mapping[str, str]] = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_LAST_LINES: Final = 3
_KILL_PATIENCE_S: Final = 10.0


@dataclass(frozen=True)
class Completed:
    """How a command ended, with its last words on stderr."""

    exit_code: int
    last_words: str
    timed_out: bool = False


class BackgroundProcess:
    """Owns one process from its start to its end, which ``close`` brings about.

    It leads a session of its own, so that a Ctrl-C at the terminal reaches only this process.
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
        """Start ``command``, a Python of ours.

        Args:
            command: the interpreter and its arguments.
            settings: set in its environment on top of the caller's.
            output: where its stdout goes; None throws it away.
            keep_errors: whether its stderr is read, by ``run``, or thrown away.
            pass_fds: descriptors that it inherits.
            ends_with_parent: have the kernel ask it to end when this process is killed.

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
            preexec_fn=_end_with_parent if ends_with_parent else None,  # noqa: PLW1509 - two system calls
        )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Pass a signal on, if it still runs."""
        self._process.send_signal(number)

    def run(self, patience_s: float, words: TextIO | None = None) -> Completed:
        """Wait for its end, its stderr passed on to ``words``; kill it after ``patience_s``.

        Needs ``keep_errors``.
        """
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(patience_s, kill)
        timer.daemon = True
        timer.start()
        try:
            last_words = self._pass_on(words)
            return Completed(self._process.wait(), last_words, late.is_set())
        finally:
            timer.cancel()

    def close(self, patience_s: float = 0.0) -> None:
        """Wait for its end up to ``patience_s``, then kill it."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_KILL_PATIENCE_S)
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


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
