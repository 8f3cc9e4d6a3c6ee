"""The steps of ``make gpu``: commands that run in parallel, with time limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Time for a terminated soak to write its verdict.
GRACE_S = 15.0


@dataclass(frozen=True)
class Command:
    """A command: arguments for the interpreter, and the expected result."""

    name: str
    arguments: tuple[str, ...]
    says: str
    """Text that the output contains on success; for a soak, the verdict."""
    store: Path | None = None
    """Directory in which a soak stores its run."""


@dataclass(frozen=True)
class Ended:
    """A finished command; ``exit_code`` is None if it was stopped."""

    command: Command
    exit_code: int | None
    took_s: float
    output: str
    errors: str = ""
    verdict: Mapping[str, Any] | None = None

    @property
    def failure(self) -> str:
        """How the command failed, as a phrase; empty if it succeeded."""
        if self.exit_code is None:
            return f"stopped after {self.took_s:.0f} s"
        if self.command.store is not None:
            if self.verdict is None:
                return f"exit code {self.exit_code}, no verdict"
            given, right = self.verdict["verdict"], self.command.says
            return "" if given == right else f"{given} instead of {right}"
        if self.exit_code:
            return f"exit code {self.exit_code}"
        return "" if self.command.says in self.output else f"its output lacks {self.command.says!r}"


@dataclass(frozen=True)
class Step:
    """Commands that run in parallel and make one section of the page.

    Attributes:
        least_s: the least time left with which the step is started.
        limit_s: the time after which the step is stopped.
    """

    title: str
    least_s: int
    limit_s: int
    commands: tuple[Command, ...]
    show: Callable[[Sequence[Ended]], Iterator[str]]


@dataclass(frozen=True)
class Result:
    """The result of a step; an empty ``ended`` means that it was not run, because of ``reason``."""

    step: Step
    ended: tuple[Ended, ...] = ()
    reason: str = "the script ended before it"

    @property
    def is_right(self) -> bool:
        return bool(self.ended) and not any(ended.failure for ended in self.ended)


def run_step(step: Step, environment: Mapping[str, str], limit_s: float, logs: Path) -> Result:
    """Start all commands, wait for at most ``limit_s``, and stop the rest."""
    began_s = time.monotonic()
    running = [_Running(command, environment, logs) for command in step.commands]
    while any(each.runs for each in running) and time.monotonic() < began_s + limit_s:
        time.sleep(0.1)
    for each in running:
        each.ask_to_end()
    while any(each.runs for each in running) and time.monotonic() < began_s + limit_s + GRACE_S:
        time.sleep(0.1)
    return Result(step, tuple(each.ended() for each in running))


class _Running:
    """A running command with all the processes that it starts."""

    def __init__(self, command: Command, environment: Mapping[str, str], logs: Path) -> None:
        self._command = command
        self._output = logs / f"{command.name}.out"
        self._errors = logs / f"{command.name}.err"
        self._asked = False
        self._began_s = time.monotonic()
        self._took_s: float | None = None
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *command.arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                cwd=ROOT, env=dict(environment), start_new_session=True,
            )  # fmt: skip

    @property
    def runs(self) -> bool:
        if self._took_s is None and self._process.poll() is not None:
            self._took_s = time.monotonic() - self._began_s
        return self._took_s is None

    def ask_to_end(self) -> None:
        if self.runs:
            self._asked = True
            self._process.terminate()

    def ended(self) -> Ended:
        if self._asked:
            # Also kill its child processes, even if the command itself has ended.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        took_s = self._took_s or time.monotonic() - self._began_s
        return Ended(
            self._command,
            None if self._asked else self._process.returncode,
            took_s,
            self._output.read_text(encoding="utf-8", errors="replace"),
            self._errors.read_text(encoding="utf-8", errors="replace"),
            _verdict_in(self._command.store),
        )


def _verdict_in(store: Path | None) -> Mapping[str, Any] | None:
    for path in () if store is None else store.glob("*/verdict.json"):
        verdict: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return verdict
    return None
