"""One command of ours in a process of its own: its words passed on, its end ours to ask for."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TextIO

from hybridbench.targets.background_process import BackgroundProcess, Completed


class Child:
    """The command that runs, if one does; signals that this process gets are passed on to it.

    The command has a session of its own, so that Ctrl-C on a terminal reaches it once, through us.
    When this process is killed, the kernel asks the command to end: it drains and stores what it
    has, and a later ``nightly cell`` goes on with that.
    """

    def __init__(self, words: TextIO = sys.stderr) -> None:
        self._words = words
        self._process: BackgroundProcess | None = None
        self.stopped_by: signal.Signals | None = None

    def stop(self, number: signal.Signals) -> None:
        """Note the signal and pass it on.  Called from a signal handler."""
        self.stopped_by = self.stopped_by or number
        if self._process is not None:
            self._process.send_signal(number)

    def run(self, command: list[str], output: Path, patience_s: float) -> Completed:
        """Run ``command`` to its end; stdout is appended to ``output``.

        After ``patience_s`` it is ended: nothing of ours may hang for the rest of the run.
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
