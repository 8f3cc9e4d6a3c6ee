"""How far an interrupted run came."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.events import Interrupted, Phase, Segment
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json
from hybridbench.rundir.cut import read_cut_run
from hybridbench.rundir.reader import read_run
from hybridbench.rundir.writer import RunWriter

MANIFEST: dict[str, JsonValue] = {
    "run_id": "r1",
    "started_wall_s": 1_700_000_000.0,
    "model": {"name": "qwen3-next"},
    "profile": {"name": "smoke"},
    "seed": 1,
    "defects": [],
    "versions": {"hybridbench": "0.1.0"},
    "engine_hash": "abc",
}


def write_segment(writer: RunWriter, clock: FakeClock, start_s: float, traffic_s: float) -> None:
    """Write 5 s of boot, and then traffic with a sample a second."""
    writer.event(Phase(name="boot", t_s=start_s))
    writer.event(Phase(name="warmup", t_s=start_s + 5.0))
    for second in range(int(traffic_s) + 1):
        clock.advance(1.0)
        writer.sample(start_s + 5.0 + second, "steady", {"rss_bytes": 1.0})


def cut_run(path: Path) -> FakeClock:
    """One segment with 20 s of traffic, ending at 25 s."""
    clock = FakeClock()
    with RunWriter(path, manifest_from_json(MANIFEST), clock) as writer:
        write_segment(writer, clock, 0.0, 20.0)
    return clock


def test_what_was_served_counts_from_the_first_request_to_the_last_sample(tmp_path: Path) -> None:
    clock = cut_run(tmp_path / "run")
    cut = read_cut_run(tmp_path / "run")

    assert (cut.end_s, cut.served_s, cut.segments) == (25.0, 20.0, 1)
    assert cut.end_wall_s == pytest.approx(clock.wall_s())


def test_segments_add_up(tmp_path: Path) -> None:
    clock = cut_run(tmp_path / "run")
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), clock, goes_on=True) as writer:
        writer.event(Segment(index=1, t_s=85.0))
        write_segment(writer, clock, 85.0, 10.0)
    cut = read_cut_run(tmp_path / "run")

    assert (cut.end_s, cut.served_s, cut.segments) == (100.0, 30.0, 2)


def test_a_run_that_ended_as_planned_has_nothing_left(tmp_path: Path) -> None:
    clock = cut_run(tmp_path / "run")
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), clock, goes_on=True) as writer:
        writer.event(Phase(name="done", t_s=26.0))

    with pytest.raises(RunDirectoryError, match="ended as planned and has nothing left"):
        read_cut_run(tmp_path / "run")


def test_an_interrupted_run_may_go_on_and_its_drain_is_no_traffic(tmp_path: Path) -> None:
    clock = cut_run(tmp_path / "run")
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), clock, goes_on=True) as writer:
        writer.event(Interrupted(signal="SIGTERM", t_s=20.0))
        writer.event(Phase(name="drain", t_s=20.0))
        writer.event(Phase(name="done", t_s=26.0))

    assert read_cut_run(tmp_path / "run").served_s == 15.0


def test_a_run_without_an_engine_is_started_anew(tmp_path: Path) -> None:
    manifest = {key: value for key, value in MANIFEST.items() if key != "engine_hash"}
    RunWriter(tmp_path / "run", manifest_from_json(manifest), FakeClock()).close()

    with pytest.raises(RunDirectoryError, match="before its engine was built"):
        read_cut_run(tmp_path / "run")


def test_a_continuation_that_is_refused_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    clock = cut_run(tmp_path / "run")
    files = ("manifest.json", "samples.jsonl", "events.jsonl")
    before = [(tmp_path / "run" / name).read_bytes() for name in files]
    with (tmp_path / "run" / "samples.jsonl").open("ab") as samples:
        samples.write(b'{"t":26,"wa')
    writer = RunWriter(
        tmp_path / "run", manifest_from_json({**MANIFEST, "seed": 2}), clock, goes_on=True
    )
    writer.event(Segment(index=1, t_s=30.0))

    assert writer.repaired_bytes == {"samples.jsonl": 11, "events.jsonl": 0}
    writer.take_back()
    assert [(tmp_path / "run" / name).read_bytes() for name in files] == before
    assert read_run(tmp_path / "run").last_event(Segment) is None


def test_a_continuation_that_measured_something_is_never_taken_back(tmp_path: Path) -> None:
    clock = cut_run(tmp_path / "run")
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), clock, goes_on=True) as writer:
        writer.event(Segment(index=1, t_s=30.0))
        writer.sample(31.0, "warmup", {"rss_bytes": 1.0})
        with pytest.raises(AssertionError):
            writer.take_back()

    assert read_run(tmp_path / "run").last_event(Segment) is not None
