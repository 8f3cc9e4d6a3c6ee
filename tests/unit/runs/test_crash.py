from __future__ import annotations

import signal

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.records.events import Crash
from hybridbench.runs import crash
from hybridbench.runs.crash import record_crash
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.recorder import Recorder
from hybridbench.targets.target import ExitStatus
from tests.unit.runs.fakes import FakeSink, FakeTarget

EXIT = WorkerLostError("exit", "the worker closed its connection")


def recorded(
    status: ExitStatus | None, lost: WorkerLostError = EXIT, kills_before: int | None = 0
) -> tuple[FakeTarget, Crash]:
    clock, sink = FakeClock(), FakeSink()
    target = FakeTarget(clock)
    target.status = status
    recorder = Recorder(sink, clock, 0.0)
    record_crash(target, recorder, clock, lost, kills_before, target.dump_stack)
    (event,) = sink.all_events(Crash)
    return target, event


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (35, "signal 35")])
def test_a_signal_is_named_and_the_last_lines_are_kept(
    monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    monkeypatch.setattr(crash, "oom_kills", lambda: 0)
    _, event = recorded(ExitStatus(None, number))

    assert event.reason == "signal"
    assert event.detail == f"the worker was killed by {name}"
    assert event.stderr_tail == ("the last line",)


def test_a_kill_by_the_kernel_for_lack_of_memory_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crash, "oom_kills", lambda: 1)
    _, event = recorded(ExitStatus(None, signal.SIGKILL), kills_before=0)
    _, other = recorded(ExitStatus(None, signal.SIGSEGV), kills_before=0)
    _, untold = recorded(ExitStatus(None, signal.SIGKILL), kills_before=None)

    assert (event.reason, other.reason, untold.reason) == ("oom", "signal", "signal")


def test_an_exit_has_its_code_and_what_the_worker_said() -> None:
    lost = WorkerLostError("exit", "the engine loop failed: KeyError('x')")
    _, event = recorded(ExitStatus(1, None), lost)

    assert event.reason == "exit"
    assert event.detail == "the engine loop failed: KeyError('x') (exit code 1)"


def test_a_hang_leaves_a_stack_behind_before_the_worker_is_killed() -> None:
    target, event = recorded(None, WorkerLostError("hang", "no engine step for 31 s"))

    assert event.reason == "hang"
    assert target.stack_dumps == 1
    assert target.killed


def test_a_process_that_will_not_end_is_killed() -> None:
    target, event = recorded(None)

    assert "did not end and was killed" in str(event.detail)
    assert target.killed
