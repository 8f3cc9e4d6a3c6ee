"""Writing a run: append-only lines, one system write each, refused where they would do harm."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import jsonschema
import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.events import Note, Steady, read_event
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json
from hybridbench.rundir.layout import make_run_dir, new_run_id, published_schema
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
}


def written(run_dir: Path, name: str) -> list[dict[str, JsonValue]]:
    return [json.loads(line) for line in (run_dir / name).read_text().splitlines()]


def test_a_sample_is_on_disk_before_the_call_returns(tmp_path: Path) -> None:
    clock = FakeClock()
    run = RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), clock)

    run.sample(5.0, "load", {"rss_bytes": 1024.0, "ttft_ms_p50": 1.5})
    run.event(Steady(reason="pools full", t_s=6.0))

    assert written(tmp_path / "run", "samples.jsonl") == [
        {
            "t": 5.0,
            "wall": 1_700_000_000.0,
            "phase": "load",
            "m": {"rss_bytes": 1024, "ttft_ms_p50": 1.5},
        }
    ]
    assert written(tmp_path / "run", "events.jsonl") == [
        {"t": 6.0, "kind": "steady", "data": {"reason": "pools full"}}
    ]
    run.close()


def test_latencies_of_an_interval_are_stored_beside_its_metrics(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock()) as run:
        run.sample(5.0, "load", {"rss_bytes": 1.0}, {"ttft": {301: 2, 17: 1}})

    (line,) = written(tmp_path / "run", "samples.jsonl")
    assert line["latencies"] == {"ttft": {"301": 2, "17": 1}}


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock()) as run:
        run.sample(1.0, "load", {"rss_bytes": 1.0, "itl_ms_p50": math.nan, "threads": math.inf})
        run.event(read_event(1.0, "of a plugin", {"limit": math.inf, "list": [math.nan, 1]}))

    assert written(run.run_dir, "samples.jsonl")[0]["m"] == {"rss_bytes": 1}
    data = written(run.run_dir, "events.jsonl")[0]["data"]
    assert data == {"limit": None, "list": [None, 1]}


def test_an_undeclared_metric_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock()) as run:
        with pytest.raises(KeyError, match="no_such_metric"):
            run.sample(1.0, "load", {"rss_bytes": 1.0, "no_such_metric": 2.0})

        assert written(run.run_dir, "samples.jsonl") == []


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "note.txt").write_text("mine")

    with pytest.raises(RunDirectoryError, match="not empty"):
        RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock())

    assert [path.name for path in (tmp_path / "run").iterdir()] == ["note.txt"]


def test_the_manifest_is_replaced_whole_and_leaves_no_part_behind(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock()) as run:
        changed = {**MANIFEST, "ended_wall_s": 5.0, "machine": {"limit": math.inf}}
        run.update_manifest(manifest_from_json(changed))

    assert sorted(path.name for path in run.run_dir.iterdir()) == [
        "events.jsonl",
        "manifest.json",
        "samples.jsonl",
    ]
    stored = json.loads((run.run_dir / "manifest.json").read_text())
    assert stored["ended_wall_s"] == 5.0
    assert stored["machine"]["limit"] is None
    jsonschema.validate(stored, published_schema("manifest"))


def test_lines_reach_the_disk_about_once_a_minute_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    run = RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), clock)
    synced: list[float] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(clock.monotonic_s()))

    for step in range(26):
        run.sample(5.0 * step, "load", {"rss_bytes": 1.0})
        clock.advance(5.0)
    assert synced == [60.0, 120.0]

    run.close()
    run.close()
    assert synced == [60.0, 120.0, 130.0, 130.0]


def test_a_line_torn_by_a_full_disk_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock())
    run.sample(1.0, "load", {"rss_bytes": 1.0})
    file = run._samples._file

    class Full:
        """Accepts ten bytes, then fails."""

        closed = False

        def __init__(self) -> None:
            self.calls = 0

        def write(self, data: memoryview) -> int:
            self.calls += 1
            if self.calls > 1:
                raise OSError(28, "No space left on device")
            return os.write(file.fileno(), data[:10])

    monkeypatch.setattr(run._samples, "_file", Full())
    with pytest.raises(RunDirectoryError, match="No space left"):
        run.sample(2.0, "load", {"rss_bytes": 2.0})
    monkeypatch.setattr(run._samples, "_file", file)
    run.sample(3.0, "load", {"rss_bytes": 3.0})
    run.close()

    record = read_run(run.run_dir)
    assert record.series["rss_bytes"].value.tolist() == [1.0, 3.0]
    assert [note.text for note in record.all_events(Note)] == [
        "1 damaged line of samples.jsonl skipped"
    ]


def test_run_ids_name_time_model_profile_and_defect() -> None:
    assert new_run_id(0.0, "qwen3-next", "smoke") == "19700101-000000-qwen3-next-smoke"
    made = new_run_id(0.0, "./ckpt/My Model!", "p/churn.yaml", ("lru-reference-cycle",))
    assert made == "19700101-000000-my-model-churn-lru-reference-cycle"


def test_runs_of_the_same_second_get_directories_of_their_own(tmp_path: Path) -> None:
    made = [make_run_dir(tmp_path / "results", "same").name for _ in range(3)]

    assert made == ["same", "same-2", "same-3"]
