"""Merging: a row for every planned cell, a lost one MISSING, and the worst cell's exit code."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.over_time.merge import find_cells, merged
from hybridbench.over_time.night_report import nightly_document
from hybridbench.over_time.run import MergeOptions, merge_cells
from hybridbench.over_time.stored import read_nightly_run
from hybridbench.records.nightly import Attempt, NightlyRun
from hybridbench.report.junit import render_junit
from hybridbench.rundir.layout import CELL, NIGHTLY
from tests.unit.over_time.planned_runs import (
    GROWTH,
    NODES,
    PLAN,
    UNDECIDED,
    attempt,
    finished,
    planned_run,
    store,
)

CLEAN = attempt()
LEAK = attempt("LEAK", NODES)
NEUTRAL = (attempt("INCONCLUSIVE", UNDECIDED),)


def tonight(
    folder: Path, one: tuple[Attempt, ...], two: tuple[Attempt, ...], text: str = PLAN
) -> NightlyRun:
    """Return the nightly run whose cells ended with these attempts."""
    folder.mkdir(parents=True, exist_ok=True)
    planned = planned_run(folder, text)
    for name, attempts in (("one", one), ("two", two)):
        if attempts:
            store(finished(planned, name, *attempts), folder / "cells")
    (folder / "cells").mkdir(exist_ok=True)
    return merged(planned.record, find_cells([folder / "cells"]), [])


def test_a_nightly_run_of_clean_cells_is_green(tmp_path: Path) -> None:
    found = tonight(tmp_path, (CLEAN,), (CLEAN,))

    assert (found.word, found.exit_code, found.green) == ("PASS", 0, True)
    assert [cell.id for cell in found.cells] == ["one", "two"]


def test_a_lost_cell_is_missing_and_never_a_pass(tmp_path: Path) -> None:
    found = tonight(tmp_path, (CLEAN,), ())

    assert [cell.word for cell in found.cells] == ["CLEAN", "MISSING"]
    assert (found.word, found.exit_code, found.green) == ("FAIL", 16, False)


def test_a_cell_that_was_cut_off_is_missing_also_between_its_runs(tmp_path: Path) -> None:
    planned = planned_run(tmp_path)
    under_way = msgspec.structs.replace(CLEAN, exit_code=None, verdict="")
    store(finished(planned, "one", under_way, done=False), tmp_path / "cells")
    store(finished(planned, "two", attempt("LEAK", GROWTH), done=False), tmp_path / "cells")

    found = merged(planned.record, find_cells([tmp_path / "cells"]), [])

    assert [cell.word for cell in found.cells] == ["MISSING", "MISSING"]
    assert "interrupted" in found.cells[1].headline


def test_cells_that_are_all_damaged_are_named_and_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / CELL).write_text("{")

    with pytest.raises(RunDirectoryError, match=r"no cell.json can be read: .*one/cell.json is"):
        merge_cells([tmp_path], tmp_path / "merged", MergeOptions())


def test_what_was_found_outranks_what_is_missing(tmp_path: Path) -> None:
    found = tonight(tmp_path, (LEAK,), ())

    assert (found.exit_code, found.headline) == (10, "one: LEAK; 2 of 2 cells failed")


def test_undecided_cells_do_no_harm_but_make_no_run(tmp_path: Path) -> None:
    some = tonight(tmp_path / "a", (CLEAN,), NEUTRAL)
    nothing = tonight(tmp_path / "b", NEUTRAL, NEUTRAL)

    assert (some.word, some.exit_code, some.green) == ("PASS", 0, True)
    assert (nothing.word, nothing.exit_code, nothing.green) == ("INCONCLUSIVE", 13, False)


def test_a_waived_leak_is_green_and_shown_until_its_day_is_over(tmp_path: Path) -> None:
    waiver = (
        "waivers: [{kind: instances-wait-for-collector, subject: TreeNode, expires: 2026-11-20, "
        "link: tracker/1, reason: known}]\n"
    )
    from tests.unit.over_time.planned_runs import at

    green = tonight(tmp_path / "a", (LEAK,), (CLEAN,), PLAN + waiver)
    later = tonight(tmp_path / "b", (at(LEAK, 1),), (at(CLEAN, 1),), PLAN + waiver)

    assert (green.exit_code, green.cells[0].word) == (0, "CLEAN")
    assert green.cells[0].headline.startswith("CLEAN apart from 1 waived finding; before waivers: ")
    assert green.cells[0].findings[0].waived == "until 2026-11-20: known (tracker/1)"
    assert (later.exit_code, later.cells[0].word) == (10, "LEAK")
    assert "expired on 2026-11-20" in later.cells[0].findings[0].why_not
    assert any("expired" in note for note in later.notes)


def test_cells_from_many_folders_are_the_same_run(tmp_path: Path) -> None:
    together = tonight(tmp_path / "run", (LEAK,), (CLEAN,))
    cells = tmp_path / "run" / "cells"
    for name in ("one", "two"):
        shutil.copytree(cells / name, tmp_path / f"artifact-{name}" / "deep" / name)

    places = [tmp_path / "artifact-two", tmp_path / "artifact-one"]
    merge_cells(places, tmp_path / "night", MergeOptions(baselines=[]))

    assert read_nightly_run(tmp_path / "night" / NIGHTLY) == together


def test_of_a_cell_that_is_there_twice_the_finished_one_counts(tmp_path: Path) -> None:
    planned = planned_run(tmp_path)
    store(finished(planned, "one", LEAK), tmp_path / "a")
    store(finished(planned, "one", CLEAN, done=False), tmp_path / "b")

    found = find_cells([tmp_path / "b", tmp_path / "a"])

    assert found.cells["one"].finished
    assert "found twice" in found.notes[0]


def test_a_green_run_says_how_much_of_the_plan_the_budget_left_out(tmp_path: Path) -> None:
    planned = planned_run(tmp_path, budget_s=2000.0)
    store(finished(planned, "one", CLEAN), tmp_path / "cells")

    cells = find_cells([tmp_path / "cells"])

    found = merged(planned.record, cells, [])
    accepted = merged(planned.record, cells, [], allow_partial=True)

    assert (found.word, found.exit_code, found.green) == ("INCONCLUSIVE", 13, False)
    assert found.headline == (
        "1 of 1 cell passed; 1 more left out by the budget (not accepted without --allow-partial)"
    )
    document = nightly_document(found, "night")
    assert "left out cells of the plan" in document.meaning
    assert "two: left out by the budget" in render_junit(document)
    assert "13" in render_junit(document)
    assert (accepted.word, accepted.exit_code, accepted.green) == ("PASS", 0, True)
    assert accepted.headline.endswith("(accepted by --allow-partial)")


def test_a_partial_run_that_found_a_leak_fails_whatever_is_accepted(tmp_path: Path) -> None:
    planned = planned_run(tmp_path, budget_s=2000.0)
    store(finished(planned, "one", LEAK), tmp_path / "cells")
    cells = find_cells([tmp_path / "cells"])

    for allow in (False, True):
        assert merged(planned.record, cells, [], allow_partial=allow).exit_code == 10


def test_cells_of_two_plans_are_refused(tmp_path: Path) -> None:
    store(finished(planned_run(tmp_path), "one", CLEAN), tmp_path / "a")
    other = planned_run(tmp_path, PLAN.replace("30m", "45m"))
    store(finished(other, "two", CLEAN), tmp_path / "b")

    with pytest.raises(RunDirectoryError) as refused:
        find_cells([tmp_path / "a", tmp_path / "b"])
    assert refused.value.code is ErrorCode.MISMATCH
    with pytest.raises(RunDirectoryError) as refused:
        merge_cells([tmp_path / "a"], tmp_path / "night", MergeOptions(other.record, []))
    assert refused.value.code is ErrorCode.MISMATCH


def test_cells_of_two_engines_are_refused(tmp_path: Path) -> None:
    planned = planned_run(tmp_path)
    for name in ("one", "two"):
        cell = msgspec.structs.replace(finished(planned, name, CLEAN), engine=f"engine {name}")
        store(cell, tmp_path / "cells")

    with pytest.raises(RunDirectoryError) as refused:
        merge_cells([tmp_path / "cells"], tmp_path / "out", MergeOptions(planned.record))
    assert refused.value.code is ErrorCode.MISMATCH
    assert not (tmp_path / "out").exists()


def test_no_cell_at_all_needs_a_plan(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(RunDirectoryError) as refused:
        merge_cells([tmp_path / "empty"], tmp_path / "night", MergeOptions())
    assert refused.value.code is ErrorCode.NOT_FOUND
    options = MergeOptions(planned_run(tmp_path).record)
    told, _ = merge_cells([tmp_path / "empty"], tmp_path / "night", options)
    assert told.exit_code == 16


def test_a_report_that_cannot_be_written_does_not_hide_what_was_found(tmp_path: Path) -> None:
    planned = planned_run(tmp_path)
    store(finished(planned, "one", LEAK), tmp_path / "cells")
    (tmp_path / "night" / "report.html").mkdir(parents=True)

    told, failures = merge_cells(
        [tmp_path / "cells"], tmp_path / "night", MergeOptions(planned.record)
    )

    assert told.exit_code == 10
    assert "cannot write" in failures[0].said


def test_a_damaged_cell_is_missing_and_named(tmp_path: Path) -> None:
    planned = planned_run(tmp_path)
    store(finished(planned, "one", CLEAN), tmp_path / "cells")
    broken = store(finished(planned, "two", CLEAN), tmp_path / "cells") / "cell.json"
    broken.write_bytes(broken.read_bytes()[:100])

    found = merged(planned.record, find_cells([tmp_path / "cells"]), [])

    assert [cell.word for cell in found.cells] == ["CLEAN", "MISSING"]
    assert any("damaged" in note for note in found.notes)
