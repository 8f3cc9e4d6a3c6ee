"""Memory and disk space left before the machine ends a run."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from hybridbench.sampling.headroom import Floor, Headroom, disk_headroom, memory_headroom
from tests.unit.sampling.meminfo import write_meminfo

MIB = 2**20


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    proc = tmp_path / "proc"
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(proc))
    (proc / "self").mkdir(parents=True)
    write_meminfo(proc, total_kib=1048576, available_kib=524288)
    (proc / "self" / "cgroup").write_text("0::/job\n")
    return proc


def group(proc: Path, limit_bytes: int, used_bytes: int, droppable_bytes: int) -> Path:
    folder = proc.parent / "cgroup" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit_bytes}\n")
    (folder / "memory.current").write_text(f"{used_bytes}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {droppable_bytes}\n")
    return folder.parent


def test_outside_a_group_the_machine_decides(proc: Path) -> None:
    room = memory_headroom(proc, proc.parent / "cgroup")

    assert room == Headroom(512 * MIB, 1024 * MIB, "machine")


def test_the_tighter_of_group_and_machine_decides_and_cached_files_count_as_free(
    proc: Path,
) -> None:
    root = group(proc, 400 * MIB, 350 * MIB, 50 * MIB)
    assert memory_headroom(proc, root) == Headroom(100 * MIB, 400 * MIB, "cgroup")

    (root / "job" / "memory.max").write_text(f"{4000 * MIB}\n")
    assert memory_headroom(proc, root) == Headroom(512 * MIB, 1024 * MIB, "machine")


def test_where_nothing_is_told_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert memory_headroom(tmp_path, tmp_path) is None
    assert Floor(lambda: None, 0.05, 1, 2).breached() is None


def test_a_disk_has_a_size_and_a_rest(tmp_path: Path) -> None:
    room = disk_headroom(tmp_path)

    assert room is not None
    assert 0 <= room.left_bytes <= room.limit_bytes
    assert disk_headroom(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("limit_mib", "at_first_mib", "floor_mib"),
    [
        (16_384, 8_192, 819.2),  # a share of the limit
        (4_096, 2_048, 512),  # the lower bound
        (262_144, 100_000, 2_048),  # the upper bound
        (1_024, 600, 300),  # half of what was free at first
    ],
)
def test_the_floor_is_a_share_within_bounds_and_leaves_room_to_run(
    limit_mib: float, at_first_mib: float, floor_mib: float
) -> None:
    left = [at_first_mib]

    def read() -> Headroom:
        return Headroom(int(left[0] * MIB), int(limit_mib * MIB), "machine")

    floor = Floor(read, 0.05, 512 * MIB, 2048 * MIB)
    assert floor.breached() is None
    left[0] = floor_mib + 1
    assert floor.breached() is None
    left[0] = floor_mib - 1
    assert floor.breached() == read()
