"""A night's report: red first, waived shown, and every gate under a name that stays."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from hybridbench.nightly.merge import find_cells, merged
from hybridbench.nightly.records import AttemptRecord
from hybridbench.nightly.report import night_document
from hybridbench.report.console import render_console
from hybridbench.report.document import Document, GateState
from hybridbench.report.html import render_html
from hybridbench.report.junit import render_junit
from hybridbench.report.markdown import render_markdown
from tests.unit.nightly.nights import GROWTH, NODES, PLAN, attempt, finished, night, store

WAIVER = (
    "waivers: [{kind: instances-wait-for-collector, subject: TreeNode, expires: 2027-01-01, "
    "link: tracker/1, reason: known}]\n"
)


def document(folder: Path, *ended: AttemptRecord, text: str = PLAN) -> Document:
    planned = night(folder, text)
    (folder / "cells").mkdir()
    for name, record in zip(("one", "two"), ended, strict=False):
        store(finished(planned, name, record), folder / "cells")
    found = find_cells([folder / "cells"])
    return night_document(merged(planned.record, found, []), "20261120-test")


def test_a_red_cell_is_the_answer_and_a_failure_in_junit(tmp_path: Path) -> None:
    told = document(tmp_path, attempt("LEAK", NODES), attempt())

    assert told.badge.word == "FAIL"
    assert told.answer[0].label == "one"
    suite = ET.fromstring(render_junit(told))
    failed = [
        case.get("classname") for case in suite.iter("testcase") if case.find("failure") is not None
    ]
    assert len(failed) == 2  # the night and the cell
    assert any("one" in str(name) for name in failed)


def test_a_missing_cell_is_an_error_and_a_waived_finding_is_skipped(tmp_path: Path) -> None:
    told = document(tmp_path, attempt("LEAK", NODES), text=PLAN + WAIVER)

    states = {(gate.group, gate.name): gate.state for gate in told.gates}
    assert states["one", "the cell is not red"] is GateState.PASSED
    assert states["one", "instances-wait-for-collector of TreeNode"] is GateState.SKIPPED
    assert states["two", "the cell is not red"] is GateState.ERROR
    assert len(states) == len(told.gates)


def test_the_pages_name_every_cell_and_every_waiver(tmp_path: Path) -> None:
    told = document(tmp_path, attempt("LEAK", NODES, GROWTH), attempt(), text=PLAN + WAIVER)

    for page in (render_markdown(told), render_html(told)):
        for said in ("one", "two", "tracker/1", "private memory grows", "FAIL", "WAIVED"):
            assert said in page
    assert render_console(told) is not None
