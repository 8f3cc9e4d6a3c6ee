from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from hybridbench.sampling.headroom import MemoryLimit, memory_limit, oom_kills
from tests.unit.sampling.meminfo import write_meminfo


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    proc = tmp_path / "proc"
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(proc))
    (proc / "self").mkdir(parents=True)
    write_meminfo(proc, total_kib=100, available_kib=50)
    return proc


def in_cgroup(proc: Path, lines: str) -> Path:
    (proc / "self" / "cgroup").write_text(lines)
    root = proc.parent / "cgroup"
    root.mkdir(exist_ok=True)
    return root


def test_version_2_limit_and_kills_of_the_own_group(proc: Path) -> None:
    root = in_cgroup(proc, "0::/job\n")
    (root / "job").mkdir()
    (root / "job" / "memory.max").write_text("4096\n")
    (root / "job" / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")

    assert memory_limit(proc, root) == MemoryLimit(4096, "cgroup")
    assert oom_kills(proc, root) == 2


def test_version_1_limit_and_kills(proc: Path) -> None:
    root = in_cgroup(proc, "5:cpu:/job\n4:memory:/job\n")
    (root / "memory" / "job").mkdir(parents=True)
    (root / "memory" / "job" / "memory.limit_in_bytes").write_text("8192")
    (root / "memory" / "job" / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")

    assert memory_limit(proc, root) == MemoryLimit(8192, "cgroup")
    assert oom_kills(proc, root) == 1


@pytest.mark.parametrize("text", ["max", "9223372036854771712"])
def test_no_limit_means_what_the_machine_has(proc: Path, text: str) -> None:
    root = in_cgroup(proc, "0::/\n")
    (root / "memory.max").write_text(text)

    assert memory_limit(proc, root) == MemoryLimit(50 * 1024, "MemAvailable")
    assert oom_kills(proc, root) is None


def test_a_system_without_proc_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert memory_limit(tmp_path, tmp_path) is None
    assert oom_kills(tmp_path, tmp_path) is None
