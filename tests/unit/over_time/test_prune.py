"""What pruning deletes, and everything that it must not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridbench.over_time.prune import PruneAction, PruneDecision, Rules, decide, delete
from hybridbench.records.json_value import JsonValue
from hybridbench.rundir.layout import RECORDED, WRITTEN_PAGES
from hybridbench.rundir.listing import RunSummary
from hybridbench.rundir.lock import locked_run
from tests.unit.over_time.stores import DAY_S, add_comparison, add_night, add_run, verdict

NOW_S = 100 * DAY_S
CELL = (
    '{"schema": "hybridbench.cell/1", "plan": {"name": "p"}, "attempts": [{"started_wall_s": 1.0}]}'
)


def going(store: Path, rules: Rules) -> set[str]:
    return {
        d.entry.path.name for d in decide(store, rules, NOW_S) if d.action is PruneAction.DELETE
    }


def test_the_newest_of_each_profile_stay(tmp_path: Path) -> None:
    for day in range(4):
        add_run(tmp_path, f"smoke-{day}", day * DAY_S, verdict())
    add_run(tmp_path, "rare", 0.0, verdict(), {"profile": {"name": "overnight"}})

    assert going(tmp_path, Rules(keep=2)) == {"smoke-0", "smoke-1"}


def test_days_and_failures_keep_too(tmp_path: Path) -> None:
    add_run(tmp_path, "young", NOW_S - 2 * DAY_S, verdict())
    add_run(tmp_path, "old", NOW_S - 20 * DAY_S, verdict())
    add_run(tmp_path, "old-red", NOW_S - 20 * DAY_S, verdict(kind="DEGRADED"))
    add_run(tmp_path, "old-unjudged", NOW_S - 20 * DAY_S)

    assert going(tmp_path, Rules(keep_days=10)) == {"old", "old-red", "old-unjudged"}
    assert going(tmp_path, Rules(keep_days=10, keep_failed=True)) == {"old"}


def test_leaks_damaged_pinned_and_running_ones_stay_unless_told(tmp_path: Path) -> None:
    add_run(tmp_path, "leak", 0.0, verdict(kind="LEAK"))
    (add_run(tmp_path, "damaged", 0.0) / "manifest.json").write_text("{")
    (add_run(tmp_path, "pinned", 0.0, verdict()) / "KEEP").touch()
    (add_run(tmp_path, "running", 0.0) / "run.lock").write_text(f"{os.getpid()}\n")

    add_comparison(tmp_path, "introduced", 0.0, "LEAK INTRODUCED", 12)
    add_comparison(tmp_path, "fixed", 0.0, "LEAK FIXED")

    assert going(tmp_path, Rules(keep=0)) == {"fixed"}
    assert going(tmp_path, Rules(keep=0, leaks=True, damaged=True)) == {
        "leak",
        "damaged",
        "introduced",
        "fixed",
    }


def test_a_nightly_run_in_the_making_stays_and_one_that_was_cut_off_may_go(tmp_path: Path) -> None:
    for name in ("going", "cut"):
        cell = tmp_path / name / "cells" / "one" / "cell.json"
        cell.parent.mkdir(parents=True)
        cell.write_text(CELL)
    with locked_run(tmp_path / "going" / "cells"):
        decisions = decide(tmp_path, Rules(keep=0), NOW_S)
        gone = [one.path.name for one in delete(tmp_path, decisions)]

    assert gone == ["cut"]
    assert {path.name for path in tmp_path.iterdir()} == {"going"}


def test_what_began_to_be_written_after_the_look_stays(tmp_path: Path) -> None:
    cell = tmp_path / "night" / "cells" / "one" / "cell.json"
    cell.parent.mkdir(parents=True)
    cell.write_text(CELL)
    decisions = decide(tmp_path, Rules(keep=0), NOW_S)

    with locked_run(tmp_path / "night" / "cells"):
        (left,) = delete(tmp_path, decisions)

    assert "is being written" in left.problem
    assert cell.exists()


def test_the_last_green_run_of_a_plan_stays(tmp_path: Path) -> None:
    add_night(tmp_path, "good-1", 1 * DAY_S, "PASS")
    add_night(tmp_path, "good-2", 2 * DAY_S, "PASS")
    add_night(tmp_path, "bad-3", 3 * DAY_S, "FAIL")

    assert going(tmp_path, Rules(keep=0)) == {"good-1", "bad-3"}


def test_what_goes_is_gone_and_everything_else_is_untouched(tmp_path: Path) -> None:
    store = tmp_path / "store"
    add_run(store, "old", 0.0, verdict())
    add_comparison(store, "compared", 0.0, "SAME")
    add_run(store, "new", DAY_S, verdict())
    outside = add_run(tmp_path / "outside", "run", 0.0, verdict())
    (store / "link").symlink_to(outside)
    (store / "notes").mkdir()
    (store / "notes" / "mine.txt").write_text("mine")

    gone = list(delete(store, decide(store, Rules(keep_days=99.5), NOW_S)))

    assert {one.path.name for one in gone} == {"old", "compared"}
    assert all(one.size_bytes > 0 and not one.problem for one in gone)
    assert sorted(path.name for path in store.iterdir()) == ["link", "new", "notes"]
    assert (outside / "manifest.json").exists()


def test_a_run_with_a_link_in_it_stays_and_so_does_what_it_leads_to(tmp_path: Path) -> None:
    old = add_run(tmp_path / "store", "old", 0.0, verdict())
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (old / "link").symlink_to(precious)

    (doom,) = decide(tmp_path / "store", Rules(keep=0), NOW_S)

    assert (doom.action, doom.is_foreign) == (PruneAction.KEEP, True)
    assert "did not write link in it" in doom.reason
    assert list(delete(tmp_path / "store", [doom])) == []
    assert (precious / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "marker",
    ["comparison.json", "night.json", "cells/one/cell.json", "manifest.json", "samples.jsonl"],
)
@pytest.mark.parametrize(
    "text", ['{"title":"my study"}', '{"schema":"hybridbench.other/1"}', "[]", "", "\x00"]
)
def test_a_name_of_ours_proves_nothing(tmp_path: Path, marker: str, text: str) -> None:
    for study in ("one", "two", "three"):
        file = tmp_path / study / marker
        file.parent.mkdir(parents=True)
        file.write_text(text)
        (tmp_path / study / "thesis.tex").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))

    decisions = decide(tmp_path, Rules(keep=0, leaks=True, damaged=True), NOW_S)
    gone = list(delete(tmp_path, decisions))

    assert gone == []
    # A whole document of another program is no entry of the store at all.
    assert {doom.reason for doom in decisions} <= {
        "its content does not prove that hybridbench made it"
    }
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "place", ["thesis.tex", "paper/report.md", "cells/one/notes.txt", "a/x.png"]
)
@pytest.mark.parametrize("make", [add_run, add_comparison, add_night])
def test_a_file_of_somebody_else_keeps_the_whole_directory(
    tmp_path: Path, make: Callable[..., Path], place: str
) -> None:
    path = make(tmp_path, "mixed", 0.0, *(["FAIL"] if make is not add_run else []))
    (path / place).parent.mkdir(parents=True, exist_ok=True)
    (path / place).write_text("years of work")
    before = sorted(tmp_path.rglob("*"))

    (doom,) = decide(tmp_path, Rules(keep=0, leaks=True, damaged=True), NOW_S)
    gone = list(delete(tmp_path, [doom]))

    assert (doom.action, doom.is_foreign) == (PruneAction.KEEP, True)
    assert f"hybridbench did not write {place} in it" in doom.reason
    assert gone == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_is_put_there_after_the_look_keeps_the_directory_too(tmp_path: Path) -> None:
    run = add_run(tmp_path, "run", 0.0, verdict())
    decisions = decide(tmp_path, Rules(keep=0), NOW_S)
    (run / "thesis.tex").write_text("years of work")

    (left,) = delete(tmp_path, decisions)

    assert "did not write thesis.tex" in left.problem
    assert (run / "thesis.tex").exists()


def test_everything_that_we_write_may_go(tmp_path: Path) -> None:
    run = add_run(tmp_path, "run", 0.0, verdict())
    for name in (
        *RECORDED - {"KEEP", "comparison.json", "night.json", "cell.json"},
        *WRITTEN_PAGES,
    ):
        if not (run / name).exists():
            (run / name).touch()
    (run / ".report.html.4711-0a1b2c.part").write_text("half a page")
    add_comparison(tmp_path, "compared", 0.0, "SAME")
    night = add_night(tmp_path, "night", 0.0, "FAIL")
    (night / "cells" / "smoke" / "cell.json").write_text(CELL)
    (night / "cells" / "smoke" / "attempt-1" / "console.txt").write_text("said")

    gone = list(delete(tmp_path, decide(tmp_path, Rules(keep=0), NOW_S)))

    assert [one.problem for one in gone] == ["", "", ""]
    assert list(tmp_path.iterdir()) == []


INCOMPARABLE: list[dict[str, JsonValue]] = [
    {"defects": ["lru-reference-cycle"]},
    {"trace": {"path": "traces/night.jsonl"}},
    {"gc": {"mode": "freeze-after-warmup"}},
    {"malloc": {"mode": "system"}},
    {"model": {"name": "qwen3-next", "device": "cuda", "dtype": "float32"}},
    {"model": {"name": "qwen3-next", "device": "cpu", "dtype": "bfloat16"}},
    {"profile": {"name": "smoke", "resolved": {"arrival": {"concurrency": 64}}}},
]


@pytest.mark.parametrize("changes", INCOMPARABLE, ids=str)
def test_a_baseline_is_kept_beside_newer_runs_that_are_not_comparable(
    tmp_path: Path, changes: dict[str, JsonValue]
) -> None:
    add_run(tmp_path, "older", 0.0, verdict())
    add_run(tmp_path, "baseline", DAY_S, verdict())
    for day in (2, 3):
        add_run(tmp_path, f"other-{day}", day * DAY_S, verdict(), changes)

    assert going(tmp_path, Rules(keep=1, leaks=True)) == {"older", "other-2"}


def test_what_does_not_lie_in_the_store_is_refused(tmp_path: Path) -> None:
    outside = add_run(tmp_path / "outside", "run", 0.0, verdict())
    store = tmp_path / "store"
    store.mkdir()
    (store / "link").symlink_to(outside)
    named = [outside, store / "link", store / ".." / "outside" / "run"]
    decisions = [
        PruneDecision(RunSummary(path, path.name), PruneAction.DELETE, "") for path in named
    ]

    gone = list(delete(store, decisions))

    assert ["does not lie in" in one.problem for one in gone] == [True] * 3
    assert (outside / "manifest.json").exists()


def test_a_run_that_somebody_holds_is_not_deleted_though_its_lock_names_nobody(
    tmp_path: Path,
) -> None:
    night = add_night(tmp_path, "night", 0.0, "FAIL")
    run = next(night.rglob("manifest.json")).parent

    with locked_run(run):
        decisions = decide(tmp_path, Rules(keep=0), NOW_S)
        (one,) = delete(tmp_path, decisions)

    assert "being written by process" in one.problem
    assert (run / "manifest.json").exists()


def test_a_deletion_that_was_cut_off_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_night(tmp_path, "night", 0.0, "FAIL")
    decisions = decide(tmp_path, Rules(keep=0), NOW_S)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            list(delete(tmp_path, decisions))
    assert [path.name for path in tmp_path.iterdir()] == [".pruned-night"]
    (tmp_path / ".pruned-night" / "night.json").unlink(missing_ok=True)

    assert list(delete(tmp_path, decide(tmp_path, Rules(keep=0), NOW_S))) == []
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_version_left_of_a_deletion_goes_if_it_proves_to_be_ours(
    tmp_path: Path,
) -> None:
    add_run(tmp_path, ".pruned-half", 0.0, verdict())
    mine = tmp_path / ".pruned-mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    mixed = add_run(tmp_path, ".pruned-mixed", 0.0, verdict())
    (mixed / "thesis.tex").write_text("years of work")

    assert list(delete(tmp_path, decide(tmp_path, Rules(keep=0), NOW_S))) == []
    assert {path.name for path in tmp_path.iterdir()} == {".pruned-mine", ".pruned-mixed"}
    assert (mixed / "manifest.json").exists()


@pytest.mark.parametrize("rules", [Rules(keep=0), Rules(keep_days=0.0)])
def test_nothing_is_changed_by_only_asking(tmp_path: Path, rules: Rules) -> None:
    add_run(tmp_path, "old", 0.0, verdict())

    assert going(tmp_path, rules) == {"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
