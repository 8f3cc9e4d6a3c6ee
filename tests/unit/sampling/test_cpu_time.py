"""Processor time that was not given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridbench.sampling.cpu_time import read_cpu_s, read_cpu_wait_s, read_steal_s


def test_the_run_queue_is_told_in_nanoseconds(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "schedstat").write_text("1000000000 2500000000 12\n")

    assert read_cpu_wait_s(7, tmp_path) == 2.5
    assert read_cpu_wait_s(8, tmp_path) is None


def test_steal_is_the_average_of_the_processors(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(
        f"cpu  1 2 3 4 5 6 7 {6 * ticks} 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\ncpu1 1 1 1 1 1 1 1 0 0 0\n"
        "intr 5\n"
    )

    assert read_steal_s(tmp_path) == pytest.approx(3.0)
    assert read_steal_s(tmp_path / "absent") is None


def test_the_time_of_all_threads_is_added_up(tmp_path: Path) -> None:
    for thread, ran_ns in (("7", 1_500_000_000), ("9", 250_000_000)):
        (tmp_path / "7" / "task" / thread).mkdir(parents=True)
        (tmp_path / "7" / "task" / thread / "schedstat").write_text(f"{ran_ns} 5 1\n")

    assert read_cpu_s(7, tmp_path) == 1.75
    assert read_cpu_s(8, tmp_path) is None
