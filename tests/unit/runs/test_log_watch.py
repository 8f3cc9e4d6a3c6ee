"""The worker's stderr is followed at bounded cost: alarming lines kept, repetitions counted."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.records.events import EngineLog, EngineViolation
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


def test_a_line_that_is_written_while_the_file_is_read_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "worker.stderr.log"
    watch, sink = watch_on(path)
    append(path, "double free\n")
    opened = Path.open

    def grow(self: Path, mode: str) -> IO[Any]:
        monkeypatch.undo()
        append(path, "double free\n" * 8)
        return opened(self, mode)

    monkeypatch.setattr(Path, "open", grow)
    watch.read_new()
    watch.read_new()
    assert told(sink) == [("double free", 1)]

    append(path, "double free\n")
    watch.read_new()
    assert told(sink) == [("double free", 1), ("double free", 10)]


def test_what_is_kept_is_bounded_however_much_is_said(tmp_path: Path) -> None:
    path = tmp_path / "worker.stderr.log"
    watch, sink = watch_on(path)
    words = ["pool", "kv", "cache", "page", "slot", "token", "block", "memory", "host", "swa"]
    names = [f"{one} {two}" for one in words for two in words]
    append(path, "".join(f"{name}: double free\n" for name in names))
    watch.read_new()

    assert len(told(sink)) == 50


def test_pools_that_an_engine_counts_are_counted_here_too(tmp_path: Path) -> None:
    path = tmp_path / "worker.stderr.log"
    watch, sink = watch_on(path)
    append(
        path,
        "[2026-08-23 09:11:04 TP6] ValueError: pool memory leak detected! [full] total=9116160, "
        "available=768, evictable=9115392, protected=0, session_held=0, uncached=0\n"
        "[swa] total=911616, available=235264, evictable=676096, protected=0, session_held=0, "
        "uncached=0\n"
        "[mamba] total=12, available=13, evictable=1, protected=0, session_held=0\n"
        "something else\n"
        "[Mem Check (BUSY)] [full] total=9, available=1, evictable=1, protected=0\n"
        "[late] total=9, available=1, evictable=1, protected=0\n",
    )

    watch.read_new()

    found = [(v.kind, v.pool, v.count) for v in sink.all_events(EngineViolation)]
    assert found == [("residual", "swa", 256), ("residual", "mamba", -2)]
    assert len(told(sink)) == 1


def test_no_prompt_and_no_key_of_a_line_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "worker.stderr.log"
    watch, sink = watch_on(path)
    canary = "c4n4rY"
    lines = [
        f"memory leak detected, prompt='{canary} is 5550123' key sk-{canary}12345678 total=7",
        f"{canary}: CUDA out of memory for {canary}. Tried to allocate 2.00 GiB {canary}={canary}",
        f"watchdog fired for request {canary}, user 5550123, card 4111 1111 1111 1111",
        f"pool memory leak detected! [{canary}] total=1, available=0, {canary}=5550123",
        f"double free: {{'api_key': '{canary}', 'n': 5550123}}",
    ]
    append(path, "".join(f"{line}\n" for line in lines))

    watch.read_new()

    stored = [*sink.all_events(EngineLog), *sink.all_events(EngineViolation)]
    texts = " ".join(map(str, stored))
    assert len(sink.all_events(EngineLog)) == len(lines)
    assert canary not in texts
    assert "5550123" not in texts
    assert "4111" not in texts
    assert "total=7" in texts
    assert "Tried to allocate 2.00 GiB" in texts
