"""Run the command line in this process; starting an interpreter costs more than most commands."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from hybridbench.cli.app import main


class CommandLine(Protocol):
    """The entry point of the console script."""

    def __call__(
        self, *arguments: str, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Return exit code and output; an unhandled exception is raised here."""


@pytest.fixture
def hybridbench(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandLine]:
    # The entry point changes settings of the process; they are restored after the test.
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    handler = signal.getsignal(signal.SIGUSR1)

    def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["hybridbench", *arguments])
        if cwd is not None:
            monkeypatch.chdir(cwd)
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    yield run
    signal.signal(signal.SIGUSR1, handler)
