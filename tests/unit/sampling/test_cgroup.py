"""Memory of a target's control group, in both versions of the kernel's interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.foundation.metrics import declared
from hybridbench.sampling.cgroup import CgroupSource

V2_STAT = "anon 1000\nfile 900000\nkernel 300\nsock 40\nshmem 50\nslab 200\n"
V1_STAT = "cache 7\nrss 8\ntotal_cache 900000\ntotal_rss 1000\ntotal_swap 200\ntotal_shmem 50\n"


def group(root: Path, path: str, **files: str) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def processes(proc: Path, ours: str, theirs: str) -> Path:
    for name, line in (("self", ours), ("7", theirs)):
        (proc / name).mkdir(parents=True)
        (proc / name / "cgroup").write_text(f"{line}\n")
    return proc


def test_version_2_is_read_without_page_cache(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root, "own", memory__stat=V2_STAT, memory__swap__current="200", memory__max="5000")
    group(root, "bench", memory__stat=V2_STAT)

    source = CgroupSource(7, processes(tmp_path / "proc", "0::/bench", "0::/own"), root)

    assert source.read() == {
        "cgroup_anon_swap_bytes": 1200,
        "cgroup_shmem_bytes": 50,
        "cgroup_kernel_bytes": 300,
        "cgroup_sock_bytes": 40,
        "cgroup_limit_bytes": 5000,
    }
    assert source.not_seen == ""
    assert all(declared(name) for name in source.read())


def test_version_1_is_read_without_page_cache(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    files = {
        "memory__stat": V1_STAT,
        "memory__limit_in_bytes": str(2**63 - 4096),
        "memory__kmem__usage_in_bytes": "300",
        "memory__kmem__tcp__usage_in_bytes": "40",
    }
    group(root / "memory", "own", **files)
    group(root / "memory", "bench", memory__stat=V1_STAT)

    proc = processes(tmp_path / "proc", "4:memory:/bench\n0::/", "4:memory:/own\n0::/")

    assert CgroupSource(7, proc, root).read() == {
        "cgroup_anon_swap_bytes": 1200,
        "cgroup_shmem_bytes": 50,
        "cgroup_kernel_bytes": 300,
        "cgroup_sock_bytes": 40,
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "seen"),
    [
        ("/a", "/a", False),
        ("/a/b", "/a", False),
        ("/a", "/a/b", True),
        ("/a", "/ab", True),
        ("/", "/", False),
        ("/", "/a", True),
    ],
)
def test_a_group_that_counts_the_bench_itself_is_not_used(
    tmp_path: Path, ours: str, theirs: str, seen: bool
) -> None:
    root = tmp_path / "cgroup"
    for path in ("", "a", "a/b", "ab"):
        group(root, path, memory__stat=V2_STAT)

    source = CgroupSource(7, processes(tmp_path / "proc", f"0::{ours}", f"0::{theirs}"), root)

    assert bool(source.read()) is seen
    assert ("runs in the same one" in source.not_seen) is not seen


def test_a_kernel_without_swap_accounting_shows_the_rest(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root, "own", memory__stat="anon 1000\n", memory__max="max")

    source = CgroupSource(7, processes(tmp_path / "proc", "0::/bench", "0::/own"), root)

    assert source.read() == {"cgroup_anon_swap_bytes": 1000}


def test_without_a_group_that_accounts_for_memory_a_sentence_says_so(tmp_path: Path) -> None:
    proc = processes(tmp_path / "proc", "0::/", "0::/")

    source = CgroupSource(7, proc, tmp_path / "nowhere")

    assert source.read() == {}
    assert "there is none here" in source.not_seen
