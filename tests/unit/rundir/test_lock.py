"""One writer per run directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.rundir.layout import LOCK
from hybridbench.rundir.lock import holder_of, locked_run

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
            assert holder_of(tmp_path) == os.getpid()
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_dead_process_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("1\n")

    with locked_run(tmp_path):
        assert holder_of(tmp_path) == os.getpid()


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


def test_a_process_that_was_given_the_number_of_a_dead_writer_holds_nothing(
    tmp_path: Path,
) -> None:
    with locked_run(tmp_path):
        pid, begun = (tmp_path / LOCK).read_text().split()
    (tmp_path / LOCK).write_text(f"{pid}\n{int(begun) - 1}\n")

    assert holder_of(tmp_path) is None


@pytest.mark.parametrize("text", ["", "x\n", "999999999\n", "9" * 40 + "\n", "\xff"])
def test_a_lock_file_that_names_no_living_process_means_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)

    assert holder_of(tmp_path) is None


def test_a_lock_file_of_an_earlier_version_goes_by_the_number_alone(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(f"{os.getpid()}\n")

    assert holder_of(tmp_path) == os.getpid()
