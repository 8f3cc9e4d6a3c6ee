"""report.md: the same answer for a step summary, without active content."""

from __future__ import annotations

from dataclasses import replace

from hybridbench.records.verdict import Covered
from hybridbench.report.build import build_document
from hybridbench.report.markdown import markdown_text, render_markdown
from tests.unit.made_findings import changed
from tests.unit.report import synthetic


def test_the_verdict_comes_first_and_the_tables_are_tables() -> None:
    record = synthetic.record_of(300.0)

    lines = render_markdown(build_document(record, synthetic.leak_verdict(record))).splitlines()

    assert lines[0].startswith("# ▲ LEAK: Evicted tree nodes wait for the collector")
    header = next(i for i, line in enumerate(lines) if line.startswith("| metric"))
    columns = lines[header].count("|")
    assert lines[header + 1].count("|") == columns
    assert lines[header + 2].count("|") == columns
    assert "rss\\_anon\\_swap\\_bytes" in lines[header + 2]
    assert "```sh" in "\n".join(lines)


def test_hostile_texts_stay_on_their_line_and_in_their_cell() -> None:
    record = synthetic.record_of(120.0)
    verdict = replace(
        synthetic.clean_verdict(record),
        headline="a\n# b | <b>c</b> `d` *e*",
        coverage={"x|y": Covered(required=1, seen=2, met=True)},
    )

    text = render_markdown(build_document(record, verdict))

    assert text.splitlines()[0] == "# ✓ CLEAN: A \\# b \\| \\<b\\>c\\</b\\> \\`d\\` \\*e\\*"
    assert "| x\\|y | 1 | 2 | met |" in text


def test_a_character_reference_is_shown_and_not_what_it_stands_for() -> None:
    assert markdown_text("a &lt; b &#60; c & d; e&f") == r"a \&lt; b \&\#60; c & d; e&f"


def test_endless_evidence_keeps_the_summary_small() -> None:
    record = synthetic.record_of(120.0)
    verdict = synthetic.leak_verdict(record)
    long = changed(verdict.findings[0], evidence=tuple("x" * 5_000 for _ in range(1_000)))

    text = render_markdown(build_document(record, replace(verdict, findings=(long,))))

    assert len(text.encode()) < 50_000
    assert "980 more lines of evidence are in verdict.json." in text


def test_one_line_that_was_left_out_is_in_the_singular() -> None:
    record = synthetic.record_of(120.0)
    verdict = synthetic.leak_verdict(record)
    long = changed(verdict.findings[0], evidence=("x",) * 21)

    text = render_markdown(build_document(record, replace(verdict, findings=(long,))))

    assert "1 more line of evidence is in verdict.json." in text
