"""GitHub output: a summary within the size limit, and commands that no log line can inject."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hybridbench.report.build import build_document
from hybridbench.report.document import Document, Gate, GateState, Table
from hybridbench.report.github import (
    ANNOTATIONS_MAX,
    SUMMARY_MAX_BYTES,
    render_annotations,
    render_summary,
)
from tests.unit.report import synthetic


def document() -> Document:
    record = synthetic.record_of(300.0)
    return build_document(record, synthetic.leak_verdict(record))


def test_the_summary_begins_with_the_answer_and_the_gates_that_did_not_pass() -> None:
    text = render_summary(document())

    assert text.startswith("# ▲ LEAK: Evicted tree nodes")
    assert re.search(r"\*\*\d+ gates: 4 failed, \d+ passed\*\*", text)
    assert "| growth: rss\\_anon\\_swap\\_bytes | failed |" in text
    assert text.index("gates: 4 failed") < text.index("## Findings")


@pytest.mark.parametrize("max_bytes", [3_000, 5_000, SUMMARY_MAX_BYTES])
def test_a_summary_that_is_too_long_loses_its_end_and_says_so(max_bytes: int) -> None:
    long = Table("Nights", ("a", "b"), tuple(("é" * 200, "x" * 300) for _ in range(5_000)))
    made = replace(document(), tables=(long,))

    text = render_summary(made, max_bytes)

    assert 0.7 * max_bytes < len(text.encode()) <= max_bytes
    assert text.startswith("# ▲ LEAK")
    assert "Cut here" in text.splitlines()[-1]
    assert text.count("```") % 2 == 0


def test_the_answer_is_the_first_annotation_and_ten_of_a_level_are_the_most() -> None:
    failed = [Gate(f"f{i}", "g", GateState.FAILED, "bad") for i in range(30)]
    skipped = [Gate(f"s{i}", "g", GateState.SKIPPED, "open") for i in range(10)]
    verdict = Gate("verdict", "run", GateState.FAILED, "LEAK: it leaks")
    made = replace(document(), gates=(verdict, *failed, *skipped))

    lines = render_annotations(made).splitlines()

    assert lines[0].endswith("verdict::LEAK: it leaks")
    errors = [line for line in lines if line.startswith("::error ")]
    warnings = [line for line in lines if line.startswith("::warning ")]
    assert len(errors) == ANNOTATIONS_MAX
    assert errors[-1].endswith("22 more are in the report.")
    assert len(warnings) == 10
    assert len(lines) == 20


def test_a_clean_run_is_one_notice_and_minor_gates_are_not_told() -> None:
    record = synthetic.record_of(300.0)
    clean = build_document(record, synthetic.clean_verdict(record))
    minor = Gate("evict_ms", "decay", GateState.SKIPPED, "not judged", minor=True)

    lines = render_annotations(replace(clean, gates=(*clean.gates, minor))).splitlines()

    assert len(lines) == 1
    assert lines[0].startswith("::notice title=hybridbench.")


def test_no_text_of_a_run_becomes_a_command() -> None:
    hostile = "100%\r\n::error::gone, or: not"
    gate = Gate(hostile, "g", GateState.FAILED, hostile)

    lines = render_annotations(replace(document(), gates=(gate,))).splitlines()

    assert len(lines) == 2
    assert lines[1].endswith(
        "100%25%0D%0A%3A%3Aerror%3A%3Agone%2C or%3A not::100%25%0D%0A::error::gone, or: not"
    )


def test_the_answer_of_a_comparison_is_announced_once() -> None:
    answer = Gate("answer", "comparison", GateState.FAILED, "LEAK INTRODUCED: +1.00 nodes")

    lines = render_annotations(replace(document(), gates=(answer,))).splitlines()

    assert len(lines) == 1
    assert lines[0].endswith("answer::LEAK INTRODUCED: +1.00 nodes")


def test_a_document_without_a_verdict_gate_is_announced_by_its_badge() -> None:
    line = render_annotations(replace(document(), gates=())).splitlines()[0]

    assert line.startswith("::error ")
    assert "LEAK: Evicted tree nodes" in line
