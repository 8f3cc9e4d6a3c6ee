"""The worker process: its environment, its end, and its parent's end."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.records.messages import Drain, Fatal
from hybridbench.sampling.malloc import PINNED_ENVIRONMENT
from hybridbench.targets import own_process
from hybridbench.targets.bundled import BundledTarget, WorkerLaunch, WorkerProgram
from hybridbench.targets.target import ExitStatus


def test_the_allocator_is_pinned_unless_the_system_is_asked_for(tmp_path: Path) -> None:
    pinned = WorkerLaunch(tmp_path / "log").environment()
    system = WorkerLaunch(tmp_path / "log", malloc="system").environment()

    assert pinned.items() >= PINNED_ENVIRONMENT.items()
    assert not PINNED_ENVIRONMENT.keys() & system.keys()
    assert pinned["OMP_NUM_THREADS"] == system["OMP_NUM_THREADS"] == "1"


def test_an_interpreter_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    target = BundledTarget(
        WorkerLaunch(tmp_path / "log", program=WorkerProgram(str(tmp_path / "no-python")))
    )

    # `env` starts, finds no such program, and says so.
    assert target.stop(patience_s=30.0) == ExitStatus(code=127, signal=None)
    assert "no-python" in target.stderr_tail()[-1]


def test_no_room_for_stderr_is_a_failure_to_start(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match="cannot start the engine worker"):
        BundledTarget(WorkerLaunch(tmp_path / "no-folder" / "log"))


def test_a_worker_whose_parent_hangs_up_leaves_by_itself(tmp_path: Path) -> None:
    target = BundledTarget(WorkerLaunch(tmp_path / "log"))
    assert target.exit_status() is None

    status = target.stop(patience_s=60.0)

    assert status == ExitStatus(code=14, signal=None), "it left before it had to be killed"


def test_a_worker_can_be_killed_and_says_how_it_died(tmp_path: Path) -> None:
    target = BundledTarget(WorkerLaunch(tmp_path / "log"))
    target.kill()
    target.kill()

    assert target.exit_status() == ExitStatus(code=None, signal=signal.SIGKILL)
    assert target.stop(patience_s=1.0) == target.exit_status()


def test_a_first_message_that_is_not_start_is_refused_by_the_worker(tmp_path: Path) -> None:
    target = BundledTarget(WorkerLaunch(tmp_path / "log"))
    target.post(Drain())
    told: list[object] = []
    while not told:
        told = list(target.exchange(1.0))
    target.stop(patience_s=60.0)

    assert told == [Fatal("the first message must be Start, alone", "", usage=True)]


def test_a_process_that_is_not_reaped_is_told_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = BundledTarget(WorkerLaunch(tmp_path / "log"))
    monkeypatch.setattr(own_process, "_KILL_PATIENCE_S", 0.0)
    monkeypatch.setattr(subprocess.Popen, "poll", lambda _: None)

    killed, stopped = target.kill(), target.stop(patience_s=0.0)

    monkeypatch.undo()
    assert (killed, stopped) == (False, None)
    assert target.stop(patience_s=60.0) == ExitStatus(code=None, signal=signal.SIGKILL)
