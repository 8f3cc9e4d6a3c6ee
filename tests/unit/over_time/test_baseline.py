"""Comparison with the last green run: new, grown and gone findings, within one machine class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridbench.over_time.run import MergeOptions, merge_cells
from hybridbench.over_time.stored import green_runs, read_nightly_run
from hybridbench.records.finding import VerdictKind
from hybridbench.records.nightly import (
    Attempt,
    AttemptFinding,
    CellResult,
    NightlyRun,
)
from hybridbench.rundir.layout import NIGHTLY
from tests.unit.over_time.planned_runs import (
    GROWTH,
    NODES,
    UNDECIDED,
    at,
    attempt,
    finished,
    planned_run,
    rate,
    store,
)

PLAN = "name: test\nduration: 30m\ncells: [{id: one, profile: smoke}]\n"
TWO_CELLS = PLAN.replace("}]", "}, {id: two, profile: smoke}]")
WAIVED = PLAN + (
    "waivers: [{kind: instances-wait-for-collector, subject: TreeNode, expires: 2027-01-01, "
    "link: tracker/1, reason: known}]\n"
)


def nightly_runs(folder: Path, *ended: Attempt, text: str = PLAN) -> list[NightlyRun]:
    """Store nightly runs in ``folder``, each a day later than the one before."""
    told = []
    for day, record in enumerate(ended):
        place = folder / f"night-{day}"
        place.mkdir(parents=True)
        planned = planned_run(place, text)
        store(finished(planned, "one", at(record, day)), place / "cells")
        merge_cells([place / "cells"], place, MergeOptions())
        told.append(read_nightly_run(place / NIGHTLY))
    return told


def last_cell(folder: Path, *ended: Attempt, text: str = PLAN) -> CellResult:
    return nightly_runs(folder, *ended, text=text)[-1].cells[0]


def test_a_second_run_says_what_is_new(tmp_path: Path) -> None:
    cell = last_cell(tmp_path, attempt(), attempt("LEAK", NODES))

    assert cell.baseline == "night-0"
    assert cell.findings[0].news == "new since night-0"
    assert cell.findings[0].is_new
    assert cell.exit_code == 10


def test_an_undecided_cell_of_a_green_run_is_a_baseline_and_finds_nothing(tmp_path: Path) -> None:
    short = attempt("INCONCLUSIVE", UNDECIDED)
    told = {}
    for day, ended in enumerate((short, attempt("LEAK", NODES), short, attempt())):
        place = tmp_path / f"night-{day}"
        place.mkdir()
        planned = planned_run(place, TWO_CELLS)
        for name, record in (("one", ended), ("two", attempt())):
            store(finished(planned, name, at(record, day)), place / "cells")
        merge_cells([place / "cells"], place, MergeOptions())
        told[day] = read_nightly_run(place / NIGHTLY).cells[0]

    assert [entry.news for entry in told[1].findings] == ["new since night-0"]
    assert (told[2].baseline, [entry.news for entry in told[2].findings]) == ("night-0", [""])
    assert (told[3].baseline, told[3].gone) == ("night-2", ())


def test_a_known_finding_that_grew_is_told_with_both_rates(tmp_path: Path) -> None:
    faster = replace(NODES, rates=(rate(1.2, "evicted node", "nodes"),))
    cell = last_cell(tmp_path, attempt("LEAK", NODES), attempt("LEAK", faster), text=WAIVED)

    assert cell.findings[0].news == "known in night-0"
    assert not cell.findings[0].is_new
    assert "TreeNode: +0.850 nodes per evicted node" in cell.changes[0]
    assert "now +1.20" in cell.changes[0]


def test_intervals_that_meet_are_no_growth(tmp_path: Path) -> None:
    near = attempt(growth={"rss_anon_swap_bytes": rate(1.1e6)})
    grown = attempt(growth={"rss_anon_swap_bytes": rate(2e6)})

    assert last_cell(tmp_path / "a", attempt(), near).changes == ("throughput ratio 1.000",)
    assert "Private memory grows faster" in last_cell(tmp_path / "b", attempt(), grown).changes[0]


def test_what_went_is_told(tmp_path: Path) -> None:
    cell = last_cell(tmp_path, attempt("LEAK", NODES), attempt(), text=WAIVED)

    assert [finding.subject for finding in cell.gone] == ["TreeNode"]


@pytest.mark.parametrize(
    ("kind", "verdict", "subject"),
    [
        ("crash", VerdictKind.CRASHED, "worker"),
        ("noisy-machine", VerdictKind.INVALID, "machine"),
        ("undecided", VerdictKind.INCONCLUSIVE, "TreeNode"),
    ],
)
def test_nothing_is_gone_from_a_run_that_could_not_show_it(
    tmp_path: Path, kind: str, verdict: VerdictKind, subject: str
) -> None:
    blind = attempt(verdict.value, AttemptFinding(kind, verdict, subject))

    cell = last_cell(tmp_path, attempt("LEAK", NODES), blind, text=WAIVED)

    assert (cell.baseline, cell.gone) == ("night-0", ())


def test_a_failed_run_is_no_baseline(tmp_path: Path) -> None:
    red = attempt("LEAK", GROWTH, NODES)

    cell = last_cell(tmp_path, attempt(), red, red)

    assert cell.baseline == "night-0"
    assert {entry.news for entry in cell.findings} == {"new since night-0"}


def test_a_nightly_run_that_is_merged_again_meets_neither_itself_nor_a_later_one(
    tmp_path: Path,
) -> None:
    nightly_runs(tmp_path, attempt(), attempt(), attempt())

    merge_cells([tmp_path / "night-1" / "cells"], tmp_path / "again", MergeOptions())

    assert read_nightly_run(tmp_path / "again" / NIGHTLY).cells[0].baseline == "night-0"


def test_another_machine_or_other_work_is_not_compared(tmp_path: Path) -> None:
    elsewhere = attempt(machine_class="another machine")

    assert last_cell(tmp_path / "a", attempt(), elsewhere).baseline == ""
    nightly_runs(tmp_path / "b", attempt())
    other = tmp_path / "b" / "other"
    other.mkdir()
    planned = planned_run(other, PLAN + "gc: freeze-after-warmup\n")
    store(finished(planned, "one", at(attempt(), 2)), other / "cells")
    merge_cells([other / "cells"], other, MergeOptions())
    assert read_nightly_run(other / NIGHTLY).cells[0].baseline == ""


def slow(share: float) -> Attempt:
    return attempt(metrics={"throughput_tokens_per_s": share * 1000.0})


def test_throughput_is_shown_and_gates_only_where_the_plan_says_so(tmp_path: Path) -> None:
    gated = PLAN + "policy: {throughput_ratio: 0.9}\n"

    shown = last_cell(tmp_path / "a", attempt(), slow(0.8))
    red = last_cell(tmp_path / "b", attempt(), slow(0.8), text=gated)
    near = last_cell(tmp_path / "c", attempt(), slow(0.95), text=gated)

    assert (shown.word, shown.changes) == ("CLEAN", ("throughput ratio 0.800",))
    assert (red.word, red.exit_code) == ("REGRESSION", 12)
    assert near.word == "CLEAN"


def test_a_damaged_run_is_passed_over(tmp_path: Path) -> None:
    nightly_runs(tmp_path, attempt(), attempt())
    (tmp_path / "night-1" / NIGHTLY).write_text("{", encoding="utf-8")

    assert [good.name for good in green_runs([tmp_path])] == ["night-0"]


def test_green_runs_are_kept_as_baselines_and_red_ones_are_not(tmp_path: Path) -> None:
    def merge(name: str, day: float, ended: Attempt) -> NightlyRun:
        place = tmp_path / name / "work"
        place.mkdir(parents=True)
        store(finished(planned_run(place, PLAN), "one", at(ended, day)), place / "cells")
        keep = tmp_path / "kept"
        merge_cells([place / "cells"], place, MergeOptions(baselines=[keep], keep=keep))
        return read_nightly_run(place / NIGHTLY)

    merge("first", 0, attempt())
    second = merge("second", 1, attempt("LEAK", NODES))
    third = merge("third", 2, attempt())

    assert second.cells[0].findings[0].news == "new since 20261120-120000-test"
    assert third.cells[0].baseline == "20261120-120000-test"
    assert [good.name for good in green_runs([tmp_path / "kept"])] == [
        "20261122-120000-test",
        "20261120-120000-test",
    ]
