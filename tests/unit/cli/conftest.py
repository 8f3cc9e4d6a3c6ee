"""The command line in this process: an interpreter of its own costs more than what it runs."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import typer.main

from hybridbench.cli.app import main


class CommandLine(Protocol):
    """The entry point of the console script."""

    def __call__(
        self, *arguments: str, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Exit code and what was printed; a traceback is raised here as the exception it is of."""


# Typer makes all commands and their options anew at every call, which costs more than most calls.
_built_once = functools.cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def _commands_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("typer.main.get_command", "typer.testing._get_command"):
        monkeypatch.setattr(place, _built_once)


@pytest.fixture
def hybridbench(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandLine]:
    # What the entry point changes for its whole process is undone after the test.
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
