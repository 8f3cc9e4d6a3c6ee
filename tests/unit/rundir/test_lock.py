"""One writer per run directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridbench.errors import RunDirectoryError
from hybridbench.rundir.layout import LOCK
from hybridbench.rundir.lock import locked_run

HOLD = """
import sys
from pathlib import Path
from hybridbench.rundir.lock import locked_run
with locked_run(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with (
        locked_run(tmp_path),
        pytest.raises(RunDirectoryError, match=f"written by process {os.getpid()}"),
        locked_run(tmp_path),
    ):
        pass


def test_the_lock_is_free_again_and_leaves_no_file(tmp_path: Path) -> None:
    for _ in range(2):
        with locked_run(tmp_path):
            assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_dead_process_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("1\n")

    with locked_run(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"


def test_a_killed_writer_gives_its_lock_back(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunDirectoryError, match=str(holder.pid)), locked_run(tmp_path):
            pass
        holder.kill()
    with locked_run(tmp_path):
        pass
