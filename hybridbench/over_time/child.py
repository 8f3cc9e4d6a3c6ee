"""Run one of our commands in a separate process, pass on its output, and stop it on request."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TextIO

from hybridbench.targets.background_process import BackgroundProcess, Completed


class Child:
    """The running command, if any; signals to this process are passed on to it.

    The command runs in its own session, so that Ctrl-C on a terminal reaches it once, through us.
    If this process is killed, the kernel terminates the command: it drains and stores its results,
    and a later ``nightly cell`` continues from there.
    """

    def __init__(self, words: TextIO = sys.stderr) -> None:
        self._words = words
        self._process: BackgroundProcess | None = None
        self.stopped_by: signal.Signals | None = None

    def stop(self, number: signal.Signals) -> None:
        """Record the signal and pass it on.  Called from a signal handler."""
        self.stopped_by = self.stopped_by or number
        if self._process is not None:
            self._process.send_signal(number)

    def run(self, command: list[str], output: Path, patience_s: float) -> Completed:
        """Run ``command`` until it ends; append its stdout to ``output``.

        It is killed after ``patience_s``, so that no command can hang for the rest of the run.
        """
        with (
            output.open("ab") as file,
            BackgroundProcess(
                command, output=file, keep_errors=True, ends_with_parent=True
            ) as process,
        ):
            self._process = process
            try:
                return process.run(patience_s, self._words)
            finally:
                self._process = None
