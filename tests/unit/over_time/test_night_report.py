"""The report of a nightly run: failures first, waived ones shown, and stable names of gates."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

from rich.console import Console

from hybridbench.over_time.merge import find_cells, merged
from hybridbench.over_time.night_report import nightly_document
from hybridbench.over_time.run import stored_document
from hybridbench.over_time.stored import GreenRun
from hybridbench.records.nightly import Attempt
from hybridbench.report.console import render_console
from hybridbench.report.document import Document, GateState
from hybridbench.report.html import render_html
from hybridbench.report.junit import render_junit
from hybridbench.report.markdown import render_markdown
from tests.unit.over_time.planned_runs import (
    GROWTH,
    NODES,
    PLAN,
    UNDECIDED,
    at,
    attempt,
    finished,
    planned_run,
    store,
)

WAIVER = (
    "waivers: [{kind: instances-wait-for-collector, subject: TreeNode, expires: 2027-01-01, "
    "link: tracker/1, reason: known}]\n"
)


def document(folder: Path, *ended: Attempt, text: str = PLAN) -> Document:
    planned = planned_run(folder, text)
    (folder / "cells").mkdir()
    for name, record in zip(("one", "two"), ended, strict=False):
        store(finished(planned, name, record), folder / "cells")
    found = find_cells([folder / "cells"])
    return nightly_document(merged(planned.record, found, []), "20261120-test")


def test_a_failed_cell_is_the_answer_and_a_failure_in_junit(tmp_path: Path) -> None:
    told = document(tmp_path, attempt("LEAK", NODES), attempt())

    assert told.badge.word == "FAIL"
    assert told.answer[0].label == "Failed"
    assert str(told.answer[0].text).startswith("one: LEAK: ")
    suite = ET.fromstring(render_junit(told))
    failed = [
        case.get("classname") for case in suite.iter("testcase") if case.find("failure") is not None
    ]
    assert failed == ["night test.test", "night test.cell"]


def test_a_missing_cell_is_an_error_and_a_waived_finding_is_skipped(tmp_path: Path) -> None:
    told = document(tmp_path, attempt("LEAK", NODES), text=PLAN + WAIVER)

    states = {(gate.group, gate.name): gate.state for gate in told.gates}
    assert states["cell", "one"] is GateState.PASSED
    assert states["one", "instances-wait-for-collector of TreeNode"] is GateState.SKIPPED
    assert states["cell", "two"] is GateState.ERROR
    (missing,) = [fact for fact in told.answer if fact.label == "Missing"]
    assert str(missing.text).startswith("two: ")
    assert "MISSING" not in str(missing.text)
    assert len(states) == len(told.gates)


def test_a_run_whose_only_attempt_was_killed_has_no_negative_length(tmp_path: Path) -> None:
    planned = planned_run(tmp_path)
    killed = attempt("", exit_code=None, ended_wall_s=0.0)
    store(finished(planned, "one", killed, done=False), tmp_path / "cells")

    run = merged(planned.record, find_cells([tmp_path / "cells"]), [])

    assert run.ended_wall_s == run.started_wall_s
    assert str(nightly_document(run, "night").subtitle).endswith(" · 2026-11-20 12:00 UTC · 0s")


def test_the_pages_name_every_cell_and_every_waiver(tmp_path: Path) -> None:
    told = document(tmp_path, attempt("LEAK", NODES, GROWTH), attempt(), text=PLAN + WAIVER)

    for page in (render_markdown(told), render_html(told)):
        for said in ("one", "two", "tracker/1", "private memory grows", "FAIL", "WAIVED"):
            assert said in page
    assert render_console(told) is not None


def test_a_cell_leads_to_the_report_of_its_run_where_that_lies_below_the_run(
    tmp_path: Path,
) -> None:
    planned = planned_run(tmp_path)
    for name in ("one", "two"):
        store(finished(planned, name, attempt("LEAK", NODES)), tmp_path / "cells")
    page = tmp_path / "cells" / "one" / "attempt-1" / "run" / "report.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>a run</p>", encoding="utf-8")

    told = stored_document(tmp_path, merged(planned.record, find_cells([tmp_path / "cells"]), []))

    assert told.tables[0].links == ("cells/one/attempt-1/run/report.html", "")
    assert 'href="cells/one/attempt-1/run/report.html"' in render_html(told)
    assert "two/attempt-1/run" in render_markdown(told)


def test_the_share_of_the_last_green_run_has_a_column_only_where_there_is_one(
    tmp_path: Path,
) -> None:
    planned = planned_run(tmp_path)
    store(finished(planned, "one", attempt()), tmp_path / "before")
    store(finished(planned, "one", at(attempt(), 1)), tmp_path / "cells")
    alone = merged(planned.record, find_cells([tmp_path / "before"]), [])
    beside = merged(planned.record, find_cells([tmp_path / "cells"]), [GreenRun("last", alone)])

    columns = [nightly_document(one, "x").tables[0].columns for one in (alone, beside)]
    rows = [nightly_document(one, "x").tables[0].texts for one in (alone, beside)]

    assert [c[-1] for c in columns] == ["computed tok/s", "vs last green"]
    assert [len(r[0]) for r in rows] == [len(c) for c in columns]
    assert rows[1][0][-1] == "1.000"


def test_what_is_new_is_told_once_with_all_its_cells_and_what_is_open_comes_last(
    tmp_path: Path,
) -> None:
    planned = planned_run(tmp_path)
    ended = {"one": attempt("LEAK", UNDECIDED, NODES), "two": attempt("LEAK", NODES)}
    for name, record in ended.items():
        store(finished(planned, name, attempt()), tmp_path / "before")
        store(finished(planned, name, at(record, 1)), tmp_path / "cells")
    before = merged(planned.record, find_cells([tmp_path / "before"]), [])
    found = merged(
        planned.record, find_cells([tmp_path / "cells"]), [GreenRun("last night", before)]
    )

    told = nightly_document(found, "tonight")

    said = {fact.label: fact.text for fact in told.answer}
    assert said["New since the last green run"] == (
        "TreeNode (instances-wait-for-collector) in one, two"
    )
    assert [finding.title.partition(":")[0] for finding in told.findings] == ["one", "two", "one"]
    assert told.findings[-1].kind == "undecided"


def test_a_rehearsal_says_so_and_is_no_baseline_even_if_it_is_green(tmp_path: Path) -> None:
    planned = planned_run(tmp_path, PLAN + WAIVER, defects=("lru-reference-cycle",))
    for name in ("one", "two"):
        store(finished(planned, name, attempt("LEAK", NODES)), tmp_path / "cells")

    found = merged(planned.record, find_cells([tmp_path / "cells"]), [])

    assert (found.word, found.exit_code, found.green) == ("PASS", 0, False)
    told = nightly_document(found, "tonight")
    assert told.answer[0].label == "Rehearsal"
    assert "defect:lru-reference-cycle" in str(told.answer[0].text)


def test_a_defect_that_the_plan_itself_names_is_no_rehearsal(tmp_path: Path) -> None:
    text = "name: t\ncells: [{id: one, profile: smoke, version: 'defect:lru-reference-cycle'}]\n"
    planned = planned_run(tmp_path, text)
    store(finished(planned, "one", attempt()), tmp_path / "cells")

    found = merged(planned.record, find_cells([tmp_path / "cells"]), [])

    assert found.green
    assert found.rehearsed == ()


def test_names_of_cells_are_folded_on_a_terminal_and_never_cut(tmp_path: Path) -> None:
    text = "name: t\ncells: [{id: qwen3-next.chat-churn.freeze-after-warmup, profile: smoke}]\n"
    planned = planned_run(tmp_path, text)
    store(finished(planned, planned.cells[0].id, attempt("LEAK", NODES)), tmp_path / "cells")
    told = nightly_document(merged(planned.record, find_cells([tmp_path / "cells"]), []), "x")
    stream = io.StringIO()

    Console(file=stream, width=80).print(render_console(told))

    panel = stream.getvalue().partition("╰")[0]
    assert "…" not in panel
    assert "warmup" in panel.replace("LEAK", "")
