"""What pruning deletes, and everything that it must not."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.over_time.prune import Rules, decide, delete
from hybridbench.records.json_value import JsonValue
from hybridbench.rundir.layout import RECORDED, WRITTEN_PAGES
from hybridbench.rundir.lock import locked_run
from tests.unit.over_time.stores import DAY_S, add_comparison, add_night, add_run, verdict

NOW_S = 100 * DAY_S
CELL = (
    '{"schema": "hybridbench.cell/1", "plan": {"name": "p"}, "attempts": [{"started_wall_s": 1.0}]}'
)


def going(store: Path, rules: Rules) -> set[str]:
    return {one.entry.path.name for one in decide(store, rules, NOW_S) if one.to_delete}


def prune(store: Path, rules: Rules) -> list[str]:
    """Prune the store; return the deleted names in order."""
    deleted = [one.entry.path for one in decide(store, rules, NOW_S) if one.to_delete]
    for path in deleted:
        delete(store, path)
    return [path.name for path in deleted]


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


def test_the_stored_runs_of_a_kept_comparison_stay(tmp_path: Path) -> None:
    for day in range(3):
        add_run(tmp_path, f"run-{day}", day * DAY_S, verdict())
    comparison = add_comparison(tmp_path, "compared", 50 * DAY_S, "SAME") / "comparison.json"
    facts = json.loads(comparison.read_text())
    facts["versions"] = [{"name": f"run-{day}", "run": f"../run-{day}"} for day in (0, 2)]
    comparison.write_text(json.dumps(facts))

    decisions = decide(tmp_path, Rules(keep=1), NOW_S)

    reasons = {one.entry.path.name: one.reason for one in decisions}
    assert reasons["run-0"] == "compared compares it"
    assert going(tmp_path, Rules(keep=1)) == {"run-1"}
    assert going(tmp_path, Rules(keep_days=10)) == {"run-0", "run-1", "run-2", "compared"}


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
        gone = prune(tmp_path, Rules(keep=0))

    assert gone == ["cut"]
    assert {path.name for path in tmp_path.iterdir()} == {"going"}


def test_what_began_to_be_written_after_the_look_stays(tmp_path: Path) -> None:
    cell = tmp_path / "night" / "cells" / "one" / "cell.json"
    cell.parent.mkdir(parents=True)
    cell.write_text(CELL)
    assert going(tmp_path, Rules(keep=0)) == {"night"}

    with (
        locked_run(tmp_path / "night" / "cells"),
        pytest.raises(RunDirectoryError, match="is being written"),
    ):
        delete(tmp_path, tmp_path / "night")

    assert cell.exists()


def test_the_last_green_run_of_a_plan_stays(tmp_path: Path) -> None:
    add_night(tmp_path, "good-1", 1 * DAY_S, "PASS")
    add_night(tmp_path, "good-2", 2 * DAY_S, "PASS")
    add_night(tmp_path, "bad-3", 3 * DAY_S, "FAIL")

    assert going(tmp_path, Rules(keep=0)) == {"good-1", "bad-3"}


def test_a_rehearsal_that_passed_takes_the_place_of_no_green_run(tmp_path: Path) -> None:
    add_night(tmp_path, "good", 1 * DAY_S, "PASS")
    add_night(tmp_path, "rehearsal", 2 * DAY_S, "PASS", rehearsed=("defect:any",))

    assert going(tmp_path, Rules(keep=0)) == {"rehearsal"}


def test_what_goes_is_gone_and_everything_else_is_untouched(tmp_path: Path) -> None:
    store = tmp_path / "store"
    add_run(store, "old", 0.0, verdict())
    add_comparison(store, "compared", 0.0, "SAME")
    add_run(store, "new", DAY_S, verdict())
    outside = add_run(tmp_path / "outside", "run", 0.0, verdict())
    (store / "link").symlink_to(outside)
    (store / "notes").mkdir()
    (store / "notes" / "mine.txt").write_text("mine")

    gone = prune(store, Rules(keep_days=99.5))

    assert set(gone) == {"old", "compared"}
    assert sorted(path.name for path in store.iterdir()) == ["link", "new", "notes"]
    assert (outside / "manifest.json").exists()


def test_a_run_with_a_link_in_it_stays_and_so_does_what_it_leads_to(tmp_path: Path) -> None:
    old = add_run(tmp_path / "store", "old", 0.0, verdict())
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (old / "link").symlink_to(precious)

    (kept,) = decide(tmp_path / "store", Rules(keep=0), NOW_S)

    assert not kept.to_delete
    assert "did not write link in it" in kept.reason
    with pytest.raises(RunDirectoryError, match="did not write link in it"):
        delete(tmp_path / "store", old)
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

    assert not any(one.to_delete for one in decisions)
    # A complete document of another program is not an entry of the store at all.
    assert {one.reason for one in decisions} <= {
        "its contents do not identify it as written by hybridbench"
    }
    for study in ("one", "two", "three"):
        with pytest.raises(RunDirectoryError, match="do not identify it as written by hybridbench"):
            delete(tmp_path, tmp_path / study)
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

    (kept,) = decide(tmp_path, Rules(keep=0, leaks=True, damaged=True), NOW_S)

    assert not kept.to_delete
    assert f"hybridbench did not write {place} in it" in kept.reason
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_is_put_there_after_the_look_keeps_the_directory_too(tmp_path: Path) -> None:
    run = add_run(tmp_path, "run", 0.0, verdict())
    assert going(tmp_path, Rules(keep=0)) == {"run"}
    (run / "thesis.tex").write_text("years of work")

    with pytest.raises(RunDirectoryError, match=r"did not write thesis\.tex"):
        delete(tmp_path, run)

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

    gone = prune(tmp_path, Rules(keep=0))

    assert set(gone) == {"run", "compared", "night"}
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_go_first(tmp_path: Path) -> None:
    for day in (3, 1, 2):
        add_run(tmp_path, f"day-{day}", day * DAY_S, verdict())

    assert prune(tmp_path, Rules(keep=0)) == ["day-1", "day-2", "day-3"]


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

    for named in (outside, store / "link", store / ".." / "outside" / "run"):
        with pytest.raises(RunDirectoryError, match="is not in"):
            delete(store, named)

    assert (outside / "manifest.json").exists()


def test_a_run_that_somebody_holds_is_not_deleted_though_its_lock_names_nobody(
    tmp_path: Path,
) -> None:
    night = add_night(tmp_path, "night", 0.0, "FAIL")
    run = next(night.rglob("manifest.json")).parent

    with locked_run(run), pytest.raises(RunDirectoryError, match="being written by process"):
        delete(tmp_path, night)

    assert (run / "manifest.json").exists()


def add_unmerged_night(store: Path, name: str, started_s: float, word: str) -> Path:
    path = add_night(store, name, started_s, word)
    (path / "cells" / "smoke" / "cell.json").write_text(CELL)
    (path / "night.json").unlink()
    return path


@pytest.mark.parametrize("make", [add_run, add_comparison, add_night, add_unmerged_night])
def test_a_deletion_that_is_cut_off_after_any_file_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Path]
) -> None:
    before = Path.unlink
    left = files = 0

    def unlink(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        # The lock does not count, because a process that is killed also releases it.
        left -= path.name != "run.lock"
        if left < 0 and path.name != "run.lock":
            raise KeyboardInterrupt
        before(path, missing_ok=missing_ok)

    cut_off = True
    while cut_off:
        cut = make(tmp_path, f"cut-{files}", 0.0, *(["FAIL"] if make is not add_run else []))
        left = files
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", unlink)
            with contextlib.suppress(KeyboardInterrupt):
                delete(tmp_path, cut)
            cut_off = cut.exists()
        assert prune(tmp_path, Rules(keep=0, damaged=True)) == [cut.name] * cut_off
        files += 1

    assert files > 2


@pytest.mark.parametrize("rules", [Rules(keep=0), Rules(keep_days=0.0)])
def test_nothing_is_changed_by_only_asking(tmp_path: Path, rules: Rules) -> None:
    add_run(tmp_path, "old", 0.0, verdict())

    assert going(tmp_path, rules) == {"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
