"""Process trees: which processes belong to one, and their roles."""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridbench.foundation.metrics import MEMORY, SHARED, declared
from hybridbench.sampling.process_tree import PERSISTENT_S, UNTITLED_S, ProcessTree, TreeProcess

WAIT = "import signal; print('up', flush=True); signal.pause()"
PARENT = f"""
import signal, subprocess, sys
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", {WAIT!r}, "worker"])
print("up", flush=True)
signal.pause()
"""


def old() -> float:
    """Return a time so late that every process counts as old."""
    return 1e9


def role(process: TreeProcess) -> str:
    return process.command[-1] if process.command[-1] in ("server", "worker") else "other"


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """A process with two children, all running."""
    command = [sys.executable, "-c", PARENT, "server"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        yield process
        subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=False)


def test_a_process_and_its_children_are_seen_with_their_roles(
    server: subprocess.Popen[str],
) -> None:
    found = ProcessTree(server.pid, role, now_s=old).read()

    assert [process.role for process in found] == ["server", "worker", "worker-2"]
    assert found[0].pid == server.pid
    assert all(process.m[MEMORY] > 0 for process in found)
    assert all(declared(name) for process in found for name in process.m)


def test_a_process_keeps_its_name_and_the_next_takes_that_of_one_that_ended(
    server: subprocess.Popen[str],
) -> None:
    tree = ProcessTree(server.pid, role, now_s=old)
    _, first, second = tree.read()

    kill(first.pid)

    assert [(p.role, p.pid) for p in tree.read()][1:] == [("worker-2", second.pid)]


def test_how_a_process_ended_is_known_until_its_parent_asks(
    server: subprocess.Popen[str],
) -> None:
    tree = ProcessTree(server.pid, role, now_s=old)
    _, first, second = tree.read()

    kill(first.pid)
    tree.read()

    assert tree.wait_status(first.pid) == signal.SIGKILL
    assert tree.wait_status(second.pid) is None


def test_ended_children_that_their_parent_has_not_waited_for_are_counted(
    server: subprocess.Popen[str],
) -> None:
    tree = ProcessTree(server.pid, role, now_s=old)
    root, first, second = tree.read()

    kill(first.pid)
    one = tree.read()[0].m["zombies"]
    kill(second.pid)
    (left,) = tree.read()

    assert "zombies" not in root.m
    assert (one, left.m["zombies"]) == (1, 2)


def children(tree: ProcessTree) -> list[float | None]:
    return [process.m.get("children") for process in tree.read()]


def test_live_children_are_counted(server: subprocess.Popen[str]) -> None:
    tree = ProcessTree(server.pid, role, now_s=old)
    _, first, second = tree.read()

    both = children(tree)
    kill(first.pid)
    one = children(tree)
    kill(second.pid)

    assert (both, one, children(tree)) == ([2, None, None], [1, None], [0])


def test_children_of_a_parent_that_ended_are_counted_for_the_first_process(
    server: subprocess.Popen[str],
) -> None:
    tree = ProcessTree(server.pid, role, now_s=old)
    tree.read()

    kill(server.pid)

    assert children(tree) == [1, None]


def test_shared_memory_counts_where_it_is_used_and_from_its_first_page_on() -> None:
    tree = ProcessTree(os.getpid(), role, now_s=old)

    def shared() -> float | None:
        return next(one.m.get(SHARED) for one in tree.read() if one.pid == os.getpid())

    before = shared() or 0.0
    with mmap.mmap(-1, 8 << 20) as memory:
        memory.write(b"x" * (8 << 20))
        grown = shared()

    assert grown == before + (8 << 20)
    assert shared() == before


def test_a_child_whose_parent_ended_still_belongs_to_the_tree(
    server: subprocess.Popen[str],
) -> None:
    tree = ProcessTree(server.pid, role, now_s=old)
    assert len(tree.read()) == 3

    kill(server.pid)

    assert [process.role for process in tree.read()] == ["worker", "worker-2"]


def kill(pid: int) -> None:
    """End the process, which may stay a zombie."""
    handle = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([handle], [], [], 10.0)[0]
    finally:
        os.close(handle)


def test_a_process_has_a_role_when_one_of_its_name_has_lived_for_long(
    server: subprocess.Popen[str],
) -> None:
    now = [time.clock_gettime(time.CLOCK_BOOTTIME)]
    tree = ProcessTree(server.pid, role, now_s=lambda: now[0])
    assert [process.role for process in tree.read()] == ["server"]

    now[0] += PERSISTENT_S

    seen = tree.read()
    assert [process.role for process in seen] == ["server", "worker", "worker-2"]
    kill(seen[1].pid)
    now[0] -= PERSISTENT_S  # the next process of a known name has its role at once
    assert [process.role for process in tree.read()] == ["server", "worker-2"]
    assert tree.not_seen == []


def test_a_child_of_multiprocessing_has_time_to_take_a_title(
    server: subprocess.Popen[str],
) -> None:
    now = [time.clock_gettime(time.CLOCK_BOOTTIME) + PERSISTENT_S]
    spawned = "multiprocessing.spawn"
    tree = ProcessTree(
        server.pid,
        lambda process: spawned if role(process) == "worker" else "server",
        now_s=lambda: now[0],
    )
    assert [process.role for process in tree.read()] == ["server"]
    assert tree.not_seen == [f"processes that still had no series at the end: {spawned} (2)"]

    now[0] += UNTITLED_S

    assert [p.role for p in tree.read()] == ["server", spawned, f"{spawned}-2"]
    assert tree.not_seen == []


def test_short_children_are_no_roles(server: subprocess.Popen[str]) -> None:
    tree = ProcessTree(server.pid, role)
    seen = {process.role for process in tree.read()}

    for pid in [member.pid for member in tree.members()[1:]]:
        kill(pid)
        seen |= {process.role for process in tree.read()}

    assert seen == {"server"}
    assert tree.not_seen == ["short-lived processes, of which 2 were seen: worker (2)"]


def test_a_process_that_takes_a_title_has_that_role_from_then_on() -> None:
    becomes = "import os; input(); os.execvp('sleep', ['VLLM::EngineCore', '600'])"
    with subprocess.Popen(
        [sys.executable, "-c", becomes], stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        tree = ProcessTree(process.pid)
        before = tree.read()
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        while (after := tree.read())[0].role == before[0].role:
            select.select([], [], [], 0.02)
        process.kill()

    assert (before[0].role, after[0].role) == ("python", "VLLM::EngineCore")
    assert before[0].pid == after[0].pid


def test_slow_readings_come_one_at_a_time_and_not_often(server: subprocess.Popen[str]) -> None:
    now = [1e9]
    tree = ProcessTree(server.pid, role, now_s=lambda: now[0])

    readings = [[p.role for p in tree.read() if "pss_bytes" in p.m] for _ in range(4)]
    now[0] += 30.0

    assert readings == [["server"], ["worker"], ["worker-2"], []]
    assert [p.role for p in tree.read() if "pss_bytes" in p.m] == ["server"]


def test_processor_time_and_its_owner_are_read_of_every_process(
    server: subprocess.Popen[str],
) -> None:
    seen = ProcessTree(server.pid, role, now_s=old).read()

    assert all(process.m["worker_cpu_s"] >= 0 for process in seen)


def test_what_another_users_process_does_not_show_is_listed(tmp_path: Path) -> None:
    """What the kernel denies for another user's process: descriptors and page tables."""
    pid = os.getpid()
    folder = tmp_path / str(pid)
    folder.mkdir()
    for name in ("stat", "status", "cmdline"):
        (folder / name).write_bytes(Path(f"/proc/self/{name}").read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", denied)
        patch.setattr("hybridbench.sampling.process_tree.read_pss_bytes", lambda *_: None)
        patch.setattr("hybridbench.sampling.process_tree.mapping_counts", lambda *_: {})
        tree = ProcessTree(pid, lambda _: "engine", proc=tmp_path)
        (seen,) = tree.read()

    assert seen.m[MEMORY] > 0
    assert "open_fds" not in seen.m
    assert tree.not_seen == [
        "open files and proportional set size (PSS) of engine, which belongs to another user"
    ]


def denied(path: object) -> None:
    raise PermissionError(13, "Permission denied", path)
