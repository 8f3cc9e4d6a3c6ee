"""Listing a store of runs, in whatever state they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json
from hybridbench.rundir.listing import EntryKind, find_runs, list_runs, list_store
from hybridbench.rundir.reader import read_run
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
    with RunWriter(store / run_id, manifest_from_json(manifest), FakeClock()) as run:
        for step in range(4):
            run.sample(5.0 * step, "load", {"rss_bytes": 1.0})
    return store / run_id


def test_runs_are_listed_newest_first_with_their_verdict(tmp_path: Path) -> None:
    make_run(tmp_path, "old", 100.0)
    judged = make_run(tmp_path, "new", 200.0)
    (judged / "verdict.json").write_text(
        json.dumps({"verdict": "LEAK", "headline": "LEAK: it grows"})
    )

    new, old = list_runs(tmp_path)

    assert (new.run_id, new.verdict) == ("new", "LEAK")
    assert (new.headline, new.bare_headline) == ("LEAK: it grows", "it grows")
    assert (old.run_id, old.verdict) == ("old", None)
    assert (new.model, new.profile, new.defects) == (
        "qwen3-next",
        "smoke",
        ("lru-reference-cycle",),
    )
    assert new.duration_s == 15.0


def test_a_run_is_as_long_as_its_report_says(tmp_path: Path) -> None:
    """The last record may be an event: a run of "5m9s" was once listed as "5m8s"."""
    path = make_run(tmp_path, "run", 100.0)
    (path / "events.jsonl").write_text(
        '{"t": 15.9, "kind": "phase", "data": {"name": "end"}}\n{"t": 99'
    )

    (listed,) = list_runs(tmp_path)

    assert listed.duration_s == read_run(path).last_moment_s == 15.9


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


def test_comparisons_and_nights_are_listed_beside_runs(tmp_path: Path) -> None:
    make_run(tmp_path, "run", 100.0)
    make_run(tmp_path / "compared", "a-tree", 200.0)
    facts = {
        "schema": "hybridbench.comparison-plan/1",
        "started_wall_s": 200.0,
        "versions": [{"name": "."}, {"name": "git:v1"}],
    }
    (tmp_path / "compared" / "comparison.json").write_text(json.dumps(facts))
    judged = {"word": "SLOWER", "headline": "b is slower", "exit_code": 12}
    (tmp_path / "compared" / "verdict.json").write_text(json.dumps(judged))
    make_run(tmp_path / "night" / "cells" / "one", "of-night", 300.0)
    night = {
        "schema": "hybridbench.night/1",
        "word": "PASS",
        "started_wall_s": 300.0,
        "ended_wall_s": 360.0,
        "plan": {"name": "p"},
    }
    (tmp_path / "night" / "night.json").write_text(json.dumps(night))

    listed = list_runs(tmp_path)

    assert [(one.kind, one.run_id, one.verdict) for one in listed] == [
        (EntryKind.NIGHTLY, "night", "PASS"),
        (EntryKind.COMPARISON, "compared", "SLOWER"),
        (EntryKind.RUN, "run", None),
    ]
    assert listed[0].duration_s == 60.0
    assert listed[1].defects == (".", "git:v1")
    assert [path.name for path in find_runs(tmp_path)] == ["of-night", "run"]


def test_a_comparison_or_a_night_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    for name, marker in (("a", "comparison.json"), ("b", "night.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / marker).write_text('{"schema": "hybridbench.any/1", "word": ')

    listed = list_runs(tmp_path)

    assert sorted(one.problem.partition(":")[0] for one in listed) == [
        str(tmp_path / "a" / "comparison.json"),
        str(tmp_path / "b" / "night.json"),
    ]


@pytest.mark.parametrize("marker", ["comparison.json", "night.json"])
@pytest.mark.parametrize("text", ['{"schema": "of/1", "versions": []}', '{"word": "a"}', "[1]"])
def test_what_another_program_calls_a_comparison_or_a_night_is_not_listed(
    tmp_path: Path, marker: str, text: str
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / marker).write_text(text)
    ours = make_run(tmp_path, "ours", 100.0)
    (ours / marker).write_text(text)

    assert [(one.kind, one.run_id) for one in list_runs(tmp_path)] == [(EntryKind.RUN, "ours")]


def test_a_run_names_the_process_that_writes_it_while_that_lives(tmp_path: Path) -> None:
    going, killed = make_run(tmp_path, "going", 200.0), make_run(tmp_path, "killed", 100.0)
    (going / "run.lock").write_text(f"{os.getpid()}\n")
    # This is above the largest process id that the kernel assigns.
    (killed / "run.lock").write_text("999999999\n")

    first, second = list_runs(tmp_path)

    assert (first.writer, second.writer) == (os.getpid(), None)


def test_links_and_hidden_folders_are_not_listed(tmp_path: Path) -> None:
    real = make_run(tmp_path / "elsewhere", "run", 100.0)
    store = tmp_path / "store"
    make_run(store, ".hidden", 100.0)
    (store / "link").symlink_to(real)

    assert list_runs(store) == []


def test_a_night_in_the_making_is_listed_with_who_makes_it(tmp_path: Path) -> None:
    cell = {"plan": {"name": "p"}, "attempts": [{"started_wall_s": 300.0}]}
    for name in ("going", "cut"):
        make_run(tmp_path / name / "cells" / "one" / "attempt-1", "of-night", 300.0)
        (tmp_path / name / "cells" / "one" / "cell.json").write_text(json.dumps(cell))
    (tmp_path / "going" / "cells" / "run.lock").write_text(f"{os.getpid()}\n")

    going, cut = list_runs(tmp_path)

    assert (going.kind, going.profile, going.writer) == (EntryKind.NIGHTLY, "p", os.getpid())
    assert (cut.kind, cut.started_wall_s, cut.writer) == (EntryKind.NIGHTLY, 300.0, None)


def test_a_store_shows_what_lies_in_a_plain_folder_of_it_and_no_deeper(tmp_path: Path) -> None:
    make_run(tmp_path, "run", 100.0)
    make_run(tmp_path / "nightly", "newer", 200.0)
    make_run(tmp_path / "nightly" / "deep", "deeper", 300.0)

    assert [entry.run_id for entry in list_store(tmp_path)] == ["newer", "run"]
    assert [entry.run_id for entry in list_runs(tmp_path)] == ["run"]


def test_a_pipe_or_a_terabyte_where_a_file_is_expected_is_damage_and_no_wait(
    tmp_path: Path,
) -> None:
    piped, sparse = make_run(tmp_path, "piped", 100.0), make_run(tmp_path, "sparse", 200.0)
    for name in ("manifest.json", "verdict.json", "samples.jsonl", "run.lock"):
        (piped / name).unlink(missing_ok=True)
        os.mkfifo(piped / name)
    os.truncate(sparse / "manifest.json", 2**40)

    problems = {entry.run_id: entry.problem for entry in list_runs(tmp_path)}

    assert problems["piped"].endswith("is a named pipe, not a regular file")
    assert problems["sparse"].endswith("is larger than 64 MiB")
