from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hybridbench.foundation.errors import ConfigError
from hybridbench.sampling import process
from hybridbench.sampling.process import (
    ProcessGoneError,
    ProcessMemory,
    allow_open_files,
    count_open_fds,
    parse_status,
    read_busy_s,
    read_cpu_s,
    read_cpu_wait_s,
    read_family_cpu_s,
    read_process_memory,
    read_pss_bytes,
    read_steal_s,
    require_proc,
    take_priority,
)

STATUS = """Name:\tpython
State:\tS (sleeping)
VmPeak:\t  900000 kB
VmRSS:\t    2048 kB
RssAnon:\t    1024 kB
RssFile:\t    1000 kB
VmSwap:\t       8 kB
Threads:\t3
"""


def test_status_lines_become_bytes() -> None:
    memory = parse_status(STATUS)

    assert memory == ProcessMemory(2048 * 1024, 1024 * 1024, 8 * 1024, 3)
    assert memory.anon_swap_bytes == 1032 * 1024


def test_a_zombie_has_no_memory_and_counts_as_gone() -> None:
    with pytest.raises(ProcessGoneError):
        parse_status("Name:\tpython\nState:\tZ (zombie)\nThreads:\t1\n")


def test_this_process_can_be_read() -> None:
    pid = os.getpid()
    memory = read_process_memory(pid)
    pss = read_pss_bytes(pid)
    fds = count_open_fds(pid)

    assert memory.rss_bytes >= memory.rss_anon_bytes > 2**20
    assert memory.threads >= 1
    assert pss is None or 0 < pss <= 2 * memory.rss_bytes
    assert fds is not None
    assert fds >= 3


def test_a_process_may_have_a_name_that_is_cut_within_a_character(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    name = "a-\u0441\u0435\u0440\u0432".encode()[:-1]
    status = b"Name:\t" + name + b"\nVmRSS:\t 8 kB\nRssAnon:\t 4 kB\n"
    (tmp_path / "7" / "status").write_bytes(status)

    assert read_process_memory(7, tmp_path).rss_anon_bytes == 4096


def test_a_process_that_is_not_there_is_gone(tmp_path: Path) -> None:
    for read in (read_process_memory, read_pss_bytes, count_open_fds):
        with pytest.raises(ProcessGoneError):
            read(1, tmp_path)


def test_pss_is_the_sum_of_the_rollup(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    rollup = "00400000-7ffd1000 ---p 00000000 00:00 0 [rollup]\nRss: 90 kB\nPss: 80 kB\n"
    (tmp_path / "7" / "smaps_rollup").write_text(rollup)

    assert read_pss_bytes(7, tmp_path) == 80 * 1024


def test_a_machine_without_proc_is_told_before_anything_starts(tmp_path: Path) -> None:
    require_proc()
    with pytest.raises(ConfigError, match="is not mounted here, and memory is measured there"):
        require_proc(tmp_path / "proc")


def test_the_run_queue_is_told_in_nanoseconds(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "schedstat").write_text("1000000000 2500000000 12\n")

    assert read_cpu_wait_s(7, tmp_path) == 2.5
    assert read_cpu_wait_s(8, tmp_path) is None


def test_steal_is_the_average_of_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(
        f"cpu  1 2 3 4 5 6 7 {6 * ticks} 0 0\n"
        f"cpu0 1 1 1 1 1 1 1 {2 * ticks} 0 0\ncpu1 1 1 1 1 1 1 1 {4 * ticks} 0 0\nintr 5\n"
    )

    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert read_steal_s() == pytest.approx(3.0)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "absent"))
    assert read_steal_s() is None


def test_what_all_processors_ran_is_neither_idle_nor_stolen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    parts = [3, 1, 2, 50, 20, 1, 1, 7, 2, 0]  # the last two are guests, part of the first two
    (tmp_path / "stat").write_text(f"cpu  {' '.join(str(part * ticks) for part in parts)}\n")

    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert read_busy_s() == pytest.approx(8.0)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "absent"))
    assert read_busy_s() is None


BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_family_has_the_time_of_those_that_have_ended() -> None:
    before_s = read_family_cpu_s([os.getpid()])

    # A child that uses CPU time itself, and waits for a child of its own that does the same.
    nested = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n{BURN}"
    subprocess.run([sys.executable, "-c", nested], check=True)

    # Both used 0.3 s, which the kernel reports in whole ticks of 10 ms.
    assert 0.5 < read_family_cpu_s([os.getpid()]) - before_s < 5.0
    assert read_family_cpu_s([2**30]) == 0.0


def test_the_time_of_all_threads_is_added_up(tmp_path: Path) -> None:
    for thread, ran_ns in (("7", 1_500_000_000), ("9", 250_000_000)):
        (tmp_path / "7" / "task" / thread).mkdir(parents=True)
        (tmp_path / "7" / "task" / thread / "schedstat").write_text(f"{ran_ns} 5 1\n")

    assert read_cpu_s(7, tmp_path) == 1.75
    assert read_cpu_s(8, tmp_path) is None


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 4096), 4096),
        ((1024, resource.RLIM_INFINITY), 1 << 16),
        ((1 << 20, 1 << 20), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_the_limit_on_open_files_is_raised_as_far_as_allowed(
    limits: tuple[int, int], raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: now.append(to))

    allow_open_files()

    assert now == ([] if raised is None else [(raised, limits[1])])


def test_priority_is_taken_where_it_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(process, "_PROC", tmp_path)
    monkeypatch.setattr(os, "setpriority", lambda *args: asked.append(args))
    take_priority()  # without autogroups
    (tmp_path / "self").mkdir()
    take_priority()

    assert asked == 2 * [(os.PRIO_PROCESS, 0, -10)]
    assert (tmp_path / "self/autogroup").read_text() == "-10"

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    take_priority()
