"""Listing a store of runs, in whatever state they are."""

from __future__ import annotations

import json
from pathlib import Path

from hybridbench.analysis.record import JsonValue
from hybridbench.clock import FakeClock
from hybridbench.rundir.listing import list_runs
from hybridbench.rundir.writer import RunWriter


def make_run(store: Path, run_id: str, started_s: float) -> Path:
    manifest: dict[str, JsonValue] = {
        "run_id": run_id,
        "started_wall_s": started_s,
        "model": {"name": "qwen3-next"},
        "profile": {"name": "smoke"},
        "seed": 1,
        "defects": ["lru-reference-cycle"],
        "versions": {"hybridbench": "0.1.0"},
    }
    with RunWriter(store / run_id, manifest, FakeClock()) as run:
        for step in range(4):
            run.sample(5.0 * step, "load", {"rss_bytes": 1.0})
    return store / run_id


def test_runs_are_listed_newest_first_with_their_verdict(tmp_path: Path) -> None:
    make_run(tmp_path, "old", 100.0)
    judged = make_run(tmp_path, "new", 200.0)
    (judged / "verdict.json").write_text(json.dumps({"verdict": "LEAK", "headline": "it grows"}))

    new, old = list_runs(tmp_path)

    assert (new.run_id, new.verdict, new.headline) == ("new", "LEAK", "it grows")
    assert (old.run_id, old.verdict) == ("old", None)
    assert (new.model, new.profile, new.defects) == (
        "qwen3-next",
        "smoke",
        ("lru-reference-cycle",),
    )
    assert new.duration_s == 15.0


def test_damaged_runs_are_listed_with_what_is_wrong(tmp_path: Path) -> None:
    torn = make_run(tmp_path, "torn", 300.0)
    data = (torn / "samples.jsonl").read_bytes()
    (torn / "samples.jsonl").write_bytes(data[:-20])
    (torn / "verdict.json").write_text('{"verdict": ')
    bad = make_run(tmp_path, "bad", 200.0)
    (bad / "manifest.json").write_text("\x00")
    (tmp_path / "stray.txt").write_text("not a run")
    (tmp_path / "empty").mkdir()

    first, second = list_runs(tmp_path)

    assert (first.run_id, first.verdict, first.duration_s) == ("torn", None, 10.0)
    assert second.run_id == "bad"
    assert "not JSON" in second.problem


def test_a_store_that_does_not_exist_holds_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "nowhere") == []
