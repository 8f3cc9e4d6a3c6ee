"""Samples of several processes, stored and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import ProcessEnded, ProcessStarted
from hybridbench.records.manifest import Manifest
from hybridbench.records.processes import ProcessSample
from hybridbench.rundir.layout import EVENTS, SAMPLES
from hybridbench.rundir.reader import read_run
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.recorder import Recorder
from hybridbench.targets.target import ExitStatus


def process(pid: int, memory: float, role: str = "core", rank: str = "") -> ProcessSample:
    return ProcessSample(role, pid, 10.0 * pid, {MEMORY: memory, "threads": 3}, rank=rank)


def written(path: Path, *samples: tuple[ProcessSample, ...]) -> Path:
    """A run directory with one sample a second."""
    clock = FakeClock(start_s=100.0)
    with RunWriter(path, Manifest(started_wall_s=1.0, seed=1), clock) as writer:
        recorder = Recorder(writer, clock, 100.0)
        for processes in samples:
            clock.advance(1.0)
            recorder.processes(processes, lambda pid: ExitStatus(3, None) if pid == 7 else None)
            recorder.sample(clock.monotonic_s(), {"host_steal_s": 0.0}, None, processes)
    return path


def test_processes_are_read_back_as_labelled_series(tmp_path: Path) -> None:
    run = written(
        tmp_path / "run",
        (process(7, 100.0), process(8, 50.0, "worker", "0"), process(9, 60.0, "worker", "1")),
        (process(7, 110.0), process(8, 51.0, "worker", "0"), process(9, 61.0, "worker", "1")),
    )

    record = read_run(run)

    assert record.series[labelled(MEMORY, {"role": "core"})].value.tolist() == [100.0, 110.0]
    second = record.series[labelled(MEMORY, {"role": "worker", "rank": "1"})]
    assert (second.t_s.tolist(), second.value.tolist()) == ([1.0, 2.0], [60.0, 61.0])
    assert MEMORY not in record.series
    assert [e.pid for e in record.all_events(ProcessStarted)] == [7, 8, 9]


def test_a_process_that_is_started_anew_has_ended_and_begun(tmp_path: Path) -> None:
    run = written(tmp_path / "run", (process(7, 1.0),), (process(12, 2.0),), ())

    record = read_run(run)

    ended = [(e.pid, e.code, e.t_s) for e in record.all_events(ProcessEnded)]
    assert ended == [(7, 3, 2.0), (12, None, 3.0)]
    assert [(e.pid, e.t_s) for e in record.all_events(ProcessStarted)] == [(7, 1.0), (12, 2.0)]


def test_without_events_the_samples_say_when_a_process_was_started(tmp_path: Path) -> None:
    run = written(tmp_path / "run", (process(7, 1.0),), (process(7, 1.0),), (process(12, 2.0),))
    (run / EVENTS).unlink()

    started = read_run(run).all_events(ProcessStarted)

    assert [(e.pid, e.t_s) for e in started] == [(7, 1.0), (12, 3.0)]


@pytest.mark.parametrize("damage", ['"role":""', '"role":7', '"role":null'])
def test_a_line_with_a_process_of_no_role_is_damaged(tmp_path: Path, damage: str) -> None:
    run = written(tmp_path / "run", (process(7, 1.0),), (process(7, 2.0),))
    first, second = (run / SAMPLES).read_text().splitlines()
    broken = first.replace('"role":"core"', damage)
    assert broken != first
    (run / SAMPLES).write_text(f"{broken}\n{second}\n")

    record = read_run(run)

    assert record.series[labelled(MEMORY, {"role": "core"})].value.tolist() == [2.0]


def test_an_undeclared_metric_of_a_process_is_not_written(tmp_path: Path) -> None:
    unknown = ProcessSample("core", 7, 70.0, {"nothing_of_ours": 1.0})

    with pytest.raises(KeyError, match="nothing_of_ours"):
        written(tmp_path / "run", (unknown,))
