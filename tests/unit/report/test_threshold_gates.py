"""Thresholds in reports: a gate and a row for each, also when read back from verdict.json."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
from msgspec import structs

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord
from hybridbench.records.stored_verdict import verdict_from_json, verdict_text
from hybridbench.records.verdict import Verdict
from hybridbench.report.build import build_document
from hybridbench.report.document import GateState
from hybridbench.rundir.layout import published_schema
from tests.unit.analysis.records import Run, healthy_record

TEXTS = ["rss.slope<2GiB/h", "rss.max<1MiB", "rss.slope<64B/h", "threads.max<9"]


def judged(texts: list[str]) -> tuple[RunRecord, Verdict]:
    record = healthy_record(Run(1800.0, 120.0))
    record = replace(record, manifest=structs.replace(record.manifest, thresholds=tuple(texts)))
    return record, judge(record)


def test_each_threshold_is_a_gate_under_its_own_words() -> None:
    record, verdict = judged(TEXTS)

    document = build_document(record, verdict)

    states = {gate.name: gate.state for gate in document.gates if gate.group == "thresholds"}
    assert states == {
        "rss.slope<2GiB/h": GateState.PASSED,
        "rss.max<1MiB": GateState.FAILED,
        "rss.slope<64B/h": GateState.SKIPPED,
        "threads.max<9": GateState.SKIPPED,
    }
    assert len({(gate.group, gate.name) for gate in document.gates}) == len(document.gates)


def test_what_a_gate_of_a_threshold_tells_no_other_gate_repeats() -> None:
    record, verdict = judged(["running_requests.max<1"])

    document = build_document(record, verdict)

    said = [gate.name for gate in document.gates if "running_requests.max<1" in str(gate.text)]
    assert said == ["verdict", "running_requests.max<1"]


def test_a_row_says_what_was_measured_and_nothing_that_another_column_says() -> None:
    document = build_document(*judged(["rss.max<1MiB", "rss.slope<1MiB/h", "threads.max<9"]))

    (table,) = (table for table in document.tables if table.title == "Thresholds")

    assert table.texts[1:] == (
        (
            "rss.slope<1MiB/h",
            "UNDECIDED",
            "0 B/h (95% interval \N{MINUS SIGN}410 KiB to +1.88 MiB/h)",
            "42m34s",
        ),
        ("threads.max<9", "UNDECIDED", "threads was never sampled in this run", ""),
    )
    assert table.texts[0][1:] == ("MISSED", table.texts[0][2], "")
    assert table.texts[0][2].endswith(" MiB")


def test_a_run_without_thresholds_has_no_table_of_them() -> None:
    document = build_document(*judged([]))

    (table,) = (table for table in document.tables if table.title == "Thresholds")
    assert table.rows == ()


def test_thresholds_and_levels_come_back_from_the_stored_verdict() -> None:
    _, verdict = judged(TEXTS)

    stored = json.loads(verdict_text(verdict, "run"))

    jsonschema.validate(stored, published_schema("verdict"))
    back = verdict_from_json(stored)
    assert (back.thresholds, back.levels) == (verdict.thresholds, verdict.levels)
    assert len(back.thresholds) == 4
