"""The worker's stderr is followed at bounded cost: alarming lines kept, repetitions counted."""

from __future__ import annotations

from pathlib import Path

from hybridbench.clock import FakeClock
from hybridbench.records.events import EngineLog
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.recorder import Recorder
from tests.unit.runs.fakes import FakeSink


def watch_on(path: Path) -> tuple[LogWatch, FakeSink]:
    sink = FakeSink()
    clock = FakeClock(start_s=50.0)
    return LogWatch(path, Recorder(sink, clock, clock.monotonic_s())), sink


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def told(sink: FakeSink) -> list[tuple[object, object]]:
    return [(line.text, line.count) for line in sink.all_events(EngineLog)]


def test_a_line_is_told_once_and_again_at_ten_times_its_count(tmp_path: Path) -> None:
    path = tmp_path / "worker.stderr.log"
    watch, sink = watch_on(path)
    watch.read_new()
    for i in range(25):
        append(path, f"step {i}\npool memory leak detected! available={i}\n")
        watch.read_new()

    assert told(sink) == [
        ("pool memory leak detected! available=0", 1),
        ("pool memory leak detected! available=9", 10),
    ]


def test_a_line_that_comes_in_two_pieces_is_one(tmp_path: Path) -> None:
    path = tmp_path / "worker.stderr.log"
    watch, sink = watch_on(path)
    append(path, "CUDA out ")
    watch.read_new()
    append(path, "of memory")
    watch.read_new()

    assert told(sink) == []
    watch.finish()
    assert told(sink) == [("CUDA out of memory", 1)]


def test_a_file_that_was_cut_or_that_a_first_segment_wrote_is_not_read_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "worker.stderr.log"
    path.write_text("double free\n" * 100, encoding="utf-8")
    watch, sink = watch_on(path)
    watch.read_new()
    path.write_text("double free\n" * 3, encoding="utf-8")
    watch.read_new()

    assert told(sink) == []


def test_what_is_kept_is_bounded_however_much_is_said(tmp_path: Path) -> None:
    path = tmp_path / "worker.stderr.log"
    watch, sink = watch_on(path)
    names = [chr(97 + i % 26) * (1 + i // 26) for i in range(200)]
    append(path, "".join(f"{name}: double free\n" for name in names))
    watch.read_new()

    assert len(told(sink)) == 50
