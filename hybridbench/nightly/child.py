"""One command of ours in a process of its own: its words passed on, its end ours to ask for."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from hybridbench.safe_output import say
from hybridbench.targets.own_process import own_command

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_LAST_LINES: Final = 3


@dataclass(frozen=True)
class Ended:
    """How a command ended, with its last words on stderr."""

    exit_code: int
    last_words: str
    timed_out: bool = False


class Child:
    """The command that runs, if one does; signals that this process gets are passed on to it.

    The command has a session of its own, so that Ctrl-C on a terminal reaches it once, through us.
    When this process is killed, the kernel asks the command to end: it drains and stores what it
    has, and a later ``nightly cell`` goes on with that.
    """

    def __init__(self, words: TextIO = sys.stderr) -> None:
        self._words = words
        self._process: subprocess.Popen[str] | None = None
        self.stopped_by: signal.Signals | None = None

    def stop(self, number: signal.Signals) -> None:
        """Note the signal and pass it on.  Called from a signal handler."""
        self.stopped_by = self.stopped_by or number
        if self._process is not None:
            self._process.send_signal(number)

    def run(self, command: list[str], output: Path, patience_s: float) -> Ended:
        """Run ``command`` to its end; stdout is appended to ``output``.

        After ``patience_s`` it is killed: nothing of ours may hang for the rest of the night.
        """
        with output.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(
                own_command(command),
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # two system calls, and no threads yet
            )
        self._process = process
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(patience_s, kill)
        timer.daemon = True
        timer.start()
        try:
            last_words = self._pass_on(process)
            return Ended(process.wait(), last_words, late.is_set())
        finally:
            timer.cancel()
            self._process = None

    def _pass_on(self, process: subprocess.Popen[str]) -> str:
        last: deque[str] = deque(maxlen=_LAST_LINES)
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                say(self._words, line)
                if line.strip():
                    last.append(line.strip())
        return " | ".join(last)


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
