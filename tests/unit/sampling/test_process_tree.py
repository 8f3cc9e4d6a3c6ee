"""Trees of processes: who belongs to them, and what each is called."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hybridbench.metrics import MEMORY, declared
from hybridbench.sampling.process_tree import ProcessTree, TreeProcess, role_by_command

WAIT = "import signal; print('up', flush=True); signal.pause()"
PARENT = f"""
import signal, subprocess, sys
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", {WAIT!r}, "worker"])
print("up", flush=True)
signal.pause()
"""


def role(process: TreeProcess) -> str:
    return process.command[-1] if process.command[-1] in ("server", "worker") else "other"


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """A process with two children, all up."""
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
    found = ProcessTree(server.pid, role).read()

    assert [process.role for process in found] == ["server", "worker", "worker-2"]
    assert found[0].pid == server.pid
    assert all(process.m[MEMORY] > 0 for process in found)
    assert all(declared(name) for process in found for name in process.m)


def test_a_process_keeps_its_name_and_the_next_takes_that_of_one_that_ended(
    server: subprocess.Popen[str],
) -> None:
    tree = ProcessTree(server.pid, role)
    _, first, second = tree.read()

    kill(first.pid)

    assert [(p.role, p.pid) for p in tree.read()][1:] == [("worker-2", second.pid)]


def test_a_child_whose_parent_ended_still_belongs_to_the_tree(
    server: subprocess.Popen[str],
) -> None:
    tree = ProcessTree(server.pid, role)
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


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("VLLM::EngineCore", ""), "VLLM::EngineCore"),
        (("/usr/bin/python3.11", "-u", "/srv/serve.py", "--port", "1"), "serve"),
        (("/opt/llama-server", "--port", "1"), "llama-server"),
        (("",), "unnamed"),
    ],
)
def test_a_role_is_what_a_process_calls_itself(command: tuple[str, ...], expected: str) -> None:
    assert role_by_command(TreeProcess(1, 0, 1, 0.0, command)) == expected
