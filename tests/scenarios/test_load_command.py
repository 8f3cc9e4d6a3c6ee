"""An external load tool, tested with small real processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hybridbench.foundation.clock import SystemClock
from hybridbench.foundation.errors import UsageError
from hybridbench.runs.load_command import LoadCommand

# Counts up in a file until it is stopped; with an argument, it ends by itself.
TICKS = """
import sys, time
n = 0
while True:
    n += 1
    open(sys.argv[1], "w").write(str(n))
    time.sleep(0.01)
"""


@contextmanager
def tool(folder: Path, program: str, *words: str) -> Iterator[LoadCommand]:
    command = [sys.executable, "-S", "-c", program, *words]
    load = LoadCommand(command, os.environ, folder / "load.txt", SystemClock())
    try:
        yield load
    finally:
        load.stop()


def wait_until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    limit_s = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < limit_s, "it did not come"
        time.sleep(0.01)


def read(path: Path) -> int:
    return int((path.read_text() if path.exists() else "") or 0)


def tend_until(load: LoadCommand, done: Callable[[], bool]) -> None:
    def tended() -> bool:
        load.tend()
        return done()

    wait_until(tended)


def test_a_pause_stops_it_and_it_goes_on_where_it_was(tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    with tool(tmp_path, TICKS, str(ticks)) as load:
        load.start()
        wait_until(lambda: read(ticks) > 3)
        load.pause()
        time.sleep(0.05)
        before = read(ticks)
        time.sleep(0.2)
        assert read(ticks) == before
        load.resume()
        wait_until(lambda: read(ticks) > before)
        assert load.rounds == 1


# Starts a child that keeps running, and ends.
LEAVES = """
import subprocess, sys
left = subprocess.Popen(["sleep", "60"])
open(sys.argv[1], "w").write(str(left.pid))
"""


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    left = tmp_path / "left"

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{read(left)}/stat").read_text().split()[2] == "Z"
        except OSError:
            return True

    with tool(tmp_path, LEAVES, str(left)) as load:
        load.start()
        wait_until(lambda: read(left) > 0)
        tend_until(load, has_ended)


def test_one_that_is_paused_can_be_ended(tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    with tool(tmp_path, TICKS, str(ticks)) as load:
        load.start()
        wait_until(lambda: read(ticks) > 0)
        load.pause()
        load.stop()
        assert not load.wanted
        before = read(ticks)
        time.sleep(0.1)
        assert read(ticks) == before


def test_one_that_ends_is_started_again(tmp_path: Path) -> None:
    with tool(tmp_path, "pass") as load:
        load.start()
        tend_until(load, lambda: load.rounds >= 3)
        assert not load.failure


def test_one_that_ends_in_a_pause_waits_for_its_end(tmp_path: Path) -> None:
    with tool(tmp_path, "pass") as load:
        load.start()
        tend_until(load, lambda: load.rounds >= 1)
        load.pause()
        for _ in range(80):
            load.tend()
            time.sleep(0.01)
        rounds = load.rounds
        load.resume()
        tend_until(load, lambda: load.rounds > rounds)


def test_one_that_fails_at_once_is_given_up_and_says_why(tmp_path: Path) -> None:
    with tool(tmp_path, "import sys; sys.exit(3)") as load:
        load.start()
        tend_until(load, lambda: bool(load.failure))
        assert load.failure == "the load command failed 3 times in a row (exit code 3)"


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    load = LoadCommand(["/no/such/tool"], os.environ, tmp_path / "load.txt", SystemClock())
    with pytest.raises(UsageError, match="No such file or directory"):
        load.start()
