"""Commands and running processes as targets: their start, their tree, their end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hybridbench.foundation.errors import ConfigError
from hybridbench.foundation.metrics import MEMORY
from hybridbench.targets.attached import AttachedTree
from hybridbench.targets.command import LaunchedCommand
from hybridbench.targets.target import ExitStatus

# Ignores SIGTERM; starts a child in a session of its own, and a double-forked daemon.
STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for daemon in (False, True):
    if os.fork() == 0:
        os.setsid()
        if daemon and os.fork():
            os._exit(0)
        os.write(1, f"up {os.getpid()}\\n".encode())
        signal.pause()
if sys.argv[1:]:
    os.wait()
    os.kill(os.getpid(), signal.SIGKILL)
os.write(1, f"up {os.getpid()}\\n".encode())
signal.pause()
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[LaunchedCommand]:
    target = launched(tmp_path, STUBBORN)
    yield target
    target.kill()


# Leaves a daemon, and exits with the given code.
DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    os.write(1, f"up {os.getpid()}\\n".encode())
    signal.pause()
os._exit(int(sys.argv[1]))
"""


def launched(folder: Path, code: str, *arguments: str) -> LaunchedCommand:
    return LaunchedCommand([sys.executable, "-c", code, *arguments], None, folder / "log")


def pids_up(log: Path, count: int) -> list[int]:
    """Return the pids that the processes wrote to the log."""
    for _ in range(1000):
        lines = [line for line in log.read_text().splitlines() if line.startswith("up ")]
        if len(lines) >= count:
            return [int(line.split()[1]) for line in lines]
        select.select([], [], [], 0.02)
    raise AssertionError(log.read_text())


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_all_that_a_command_started_is_its_tree(started: LaunchedCommand, tmp_path: Path) -> None:
    pids = pids_up(tmp_path / "log", 3)

    seen = started.processes()

    assert {process.pid for process in seen} == {*pids}
    assert started.pid in pids
    assert all(process.m[MEMORY] > 0 for process in seen)


def test_nothing_is_left_behind_of_what_does_not_heed_a_signal(
    started: LaunchedCommand, tmp_path: Path
) -> None:
    pids = pids_up(tmp_path / "log", 3)

    status = started.stop(patience_s=0.1)

    assert status == ExitStatus(None, signal.SIGKILL)
    assert not any(map(lives, pids))
    assert started.stop(patience_s=0.1) == status
    assert started.kill()


def test_a_root_that_ends_leaves_no_one_behind_either(tmp_path: Path) -> None:
    target = launched(tmp_path, STUBBORN, "die")
    pids = pids_up(tmp_path / "log", 2)
    for _ in range(500):
        if target.exit_status() is not None:
            break
        select.select([], [], [], 0.02)
    assert target.exit_status() == ExitStatus(None, signal.SIGKILL)
    assert all(map(lives, pids))

    target.stop(patience_s=0.1)

    assert not any(map(lives, pids))


def test_a_command_that_ends_on_a_signal_is_not_killed(tmp_path: Path) -> None:
    code = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "print('up 1', flush=True)\nsignal.pause()"
    )
    target = launched(tmp_path, code)
    pids_up(tmp_path / "log", 1)

    assert target.stop(patience_s=30.0) == ExitStatus(3, None)


def test_a_command_gets_its_environment_and_no_input(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['A'], os.environ.get('HOME'), repr(sys.stdin.read()))"
    target = LaunchedCommand(
        [sys.executable, "-c", code, "--api-key", "x"],
        {"A": "--api-key c4n4rY", "PATH": os.defpath},
        tmp_path / "log",
    )

    for _ in range(500):
        if target.exit_status() is not None:
            break
        select.select([], [], [], 0.02)

    assert target.exit_status() == ExitStatus(0, None)
    assert (tmp_path / "log").read_text() == "--api-key c4n4rY None ''\n"
    assert "c4n4rY" not in "".join(target.stderr_tail())


def test_a_command_dies_with_the_bench(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from hybridbench.targets.command import LaunchedCommand
target = LaunchedCommand(["sleep", "600"], None, Path({str(tmp_path / "log")!r}))
print(target.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    bench = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )

    pid = int(bench.stdout)
    for _ in range(500):
        if not lives(pid):
            break
        select.select([], [], [], 0.02)
    assert not lives(pid)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["no-such-program"], "cannot start no-such-program: No such file or directory."),
        (["/etc/passwd"], "cannot start /etc/passwd: Permission denied."),
        (["/"], "cannot start /: Permission denied."),
        (["a\0b"], "embedded null byte"),
        ([], "there is no command to start."),
        ([""], "there is no command to start."),
    ],
)
def test_what_cannot_be_started_is_one_sentence(
    tmp_path: Path, command: list[str], why: str
) -> None:
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(ConfigError) as refused:
        LaunchedCommand(command, None, tmp_path / "log")

    assert why in str(refused.value)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_no_program_is_one_sentence(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("neither a binary nor a script\n")
    program.chmod(0o755)

    with pytest.raises(ConfigError, match="Exec format error"):
        LaunchedCommand([str(program)], None, tmp_path / "log")


def test_a_tree_that_runs_is_seen_and_left_alone() -> None:
    child = "import signal; print('up', flush=True); signal.pause()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()

            tree = AttachedTree(process.pid)

            assert len(tree._tree.members()) == 2
            assert tree.processes()[0].pid == process.pid
            assert tree.stop(patience_s=10.0) is None
            assert tree.kill() is False
            assert tree.exit_status() is None
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert tree.exit_status() is None, "its child goes on"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.read()  # until no process has it open
        for _ in range(500):
            if tree.exit_status() is not None:
                break
            select.select([], [], [], 0.02)
        assert tree.exit_status() == ExitStatus(None, None)
        assert tree.kill() is True


def test_a_process_that_is_not_there_is_one_sentence() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()

    with pytest.raises(ConfigError, match="there is no process"):
        AttachedTree(process.pid)


@pytest.mark.parametrize("pid", [os.getpid, os.getppid])
def test_the_bench_does_not_watch_itself(pid: Callable[[], int]) -> None:
    with pytest.raises(ConfigError, match="has started hybridbench itself"):
        AttachedTree(pid())


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_that_leaves_a_daemon_has_not_ended_unless_it_failed(
    tmp_path: Path, code: int
) -> None:
    target = launched(tmp_path, DAEMON, str(code))
    try:
        (daemon,) = pids_up(tmp_path / "log", 1)
        while target.exit_of(target.pid) is None:
            select.select([], [], [], 0.02)

        assert target.exit_status() == (None if code == 0 else ExitStatus(code, None))
        os.kill(daemon, signal.SIGKILL)
        while target.exit_status() is None:
            select.select([], [], [], 0.02)
        assert target.exit_status() == ExitStatus(code, None)
    finally:
        target.kill()
