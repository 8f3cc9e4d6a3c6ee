"""Start programs with the probe, scan them while they run, and compare with runs without it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hybridbench.sampling.probe_client import ProbeClient, ProbeError, probe_environment

DEADLINE_S = 60.0


def interpreters() -> list[str]:
    """Return this Python and all others from 3.9 on that are installed next to it."""
    found = {sys.version_info[:2]: sys.executable}
    for path in sorted(Path(sys.base_prefix).parent.glob("*/bin/python3.*")):
        minor = path.name.removeprefix("python3.")
        if minor.isdigit() and int(minor) >= 9:
            found.setdefault((3, int(minor)), str(path))
    return list(found.values())


@dataclass
class Probed:
    """A program that runs with the probe, and a client for the probe."""

    process: subprocess.Popen[str]
    folder: Path
    client: ProbeClient = field(init=False)

    def __post_init__(self) -> None:
        self.client = ProbeClient(self.folder)

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def probed(
    folder: Path,
    program: str,
    *,
    python: str = sys.executable,
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    instrument: Sequence[str] = (),
) -> Iterator[Probed]:
    """Run ``program`` until the end of the block; it prints a line when it is ready."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    sockets = folder / "sockets"
    base = {**os.environ, **(environment or {})}
    process = subprocess.Popen(
        [python, *options, str(script), *arguments],
        env=probe_environment(sockets, instrument, base),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Probed(process, sockets)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)


@dataclass(frozen=True)
class Ended:
    """A program's exit code and output."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True)
class Looks:
    """Results of heap scans of a running process: number of answers, and error sentences."""

    taken: int
    sentences: frozenset[str]


def run(
    folder: Path,
    program: str,
    *,
    with_probe: bool,
    python: str = sys.executable,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    look: Callable[[ProbeClient, int], object] | None = None,
) -> tuple[Ended, Looks]:
    """Run ``program`` to its end; with the probe, scan it continuously."""
    folder.mkdir(exist_ok=True)
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    sockets = folder / "sockets"
    base = {**os.environ, **(environment or {})}
    base.pop("PYTHONPATH", None) if not environment else None
    process = subprocess.Popen(
        [python, *options, str(script)],
        env=probe_environment(sockets, [], base) if with_probe else base,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    ended = threading.Event()
    looks: list[Looks] = []
    watcher = threading.Thread(
        target=lambda: looks.append(_look_until(ended, ProbeClient(sockets), look))
    )
    if with_probe:
        watcher.start()
    try:
        output, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        ended.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if with_probe:
            watcher.join(DEADLINE_S)
    ProbeClient(sockets).pids()
    said = looks[0] if looks else Looks(0, frozenset())
    return Ended(process.returncode, output, errors), said


def _look_until(
    ended: threading.Event,
    client: ProbeClient,
    look: Callable[[ProbeClient, int], object] | None,
) -> Looks:
    taken, sentences = 0, set()
    while not ended.is_set():
        for pid in client.pids():
            try:
                (look or _census)(client, pid)
                taken += 1
            except ProbeError as error:
                sentences.add(str(error).replace(str(pid), "PID"))
        time.sleep(0.002)
    return Looks(taken, frozenset(sentences))


def _census(client: ProbeClient, pid: int) -> None:
    client.census(pid, whole=False)
    client.idle_look(pid)
