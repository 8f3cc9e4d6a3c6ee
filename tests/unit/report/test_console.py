"""The summary on a terminal: the whole answer in 80 columns, with or without colours."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from hybridbench.analysis.record import RunRecord
from hybridbench.records.verdict import Verdict
from hybridbench.report.build import build_document
from hybridbench.report.console import render_console
from hybridbench.report.document import Table
from tests.unit.report import synthetic

REPORT = Path("results/20261120-101500-qwen3-next-chat-churn-lru-reference-cycle/report.html")


def printed(make: Callable[[RunRecord], Verdict], *, width: int = 80, colour: bool = False) -> str:
    record = synthetic.record_of(300.0)
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colour, no_color=not colour, legacy_windows=False
    )
    console.print(render_console(build_document(record, make(record)), REPORT))
    return out.getvalue()


def test_verbose_has_every_finding_whole_every_counter_and_how_the_run_was_made() -> None:
    record = synthetic.record_of(300.0)
    document = build_document(record, synthetic.leak_verdict(record))
    (first, *_) = document.findings
    many = replace(first, evidence=tuple(f"evidence {n}" for n in range(9)))
    document = replace(document, findings=tuple([many] * 8))
    out = io.StringIO()
    usual = io.StringIO()
    Console(file=out, width=100).print(render_console(document, REPORT, verbose=True))
    Console(file=usual, width=100).print(render_console(document, REPORT))

    told = out.getvalue()
    assert told.count("evidence 8") == 8
    assert "more in the report" not in told
    for row in document.coverage.texts:
        assert row[0] in told
    assert document.provenance
    for table in document.provenance:
        assert table.title in told
    assert "evidence 8" not in usual.getvalue()
    assert "How this was run" not in usual.getvalue()


@pytest.mark.parametrize(
    "make",
    [
        synthetic.leak_verdict,
        synthetic.clean_verdict,
        synthetic.open_verdict,
        synthetic.invalid_verdict,
        synthetic.crash_verdict,
    ],
    ids=lambda make: make.__name__,
)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(
    make: Callable[[RunRecord], Verdict], width: int
) -> None:
    text = printed(make, width=width)

    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_the_leak_is_told_with_rates_bounds_coverage_and_the_path() -> None:
    text = " ".join(printed(synthetic.leak_verdict, width=100).split())

    for words in (
        "▲ LEAK",
        "exit code 10",
        "+0.930 nodes per evicted node (95% interval +0.920 to +0.940)",
        "Private memory LEAK +1.61 GiB/h +1.55 to +1.67 GiB/h 200 MiB/h",
        "nodes_evicted 1,000 7,120 met",
        f"Report {REPORT}",
    ):
        assert words in text


def test_the_path_of_the_report_is_never_cut() -> None:
    assert str(REPORT) in printed(synthetic.clean_verdict, width=60).replace("\n", "")
    assert f"{REPORT}\n" in printed(synthetic.clean_verdict, width=100)


def test_without_colours_no_escape_is_written() -> None:
    assert "\x1b" not in printed(synthetic.leak_verdict)
    assert "\x1b" in printed(synthetic.leak_verdict, colour=True)


def printed_table(table: Table, width: int) -> str:
    record = synthetic.record_of(300.0)
    document = build_document(record, synthetic.clean_verdict(record))
    out = io.StringIO()
    Console(file=out, width=width).print(render_console(replace(document, tables=(table,))))
    return out.getvalue()


def test_numbers_for_which_a_terminal_is_too_narrow_are_named_and_not_torn() -> None:
    names = tuple(f"quantity.{index}" for index in range(9))
    row = ("2026-11-22 09:55", "CLEAN", *(f"+12{index}.5 KiB/h" for index in range(9)))
    table = Table("Runs", ("started", "verdict", *names), (row,), frozenset(range(2, 11)))

    narrow, wide = printed_table(table, 80), printed_table(table, 200)

    assert "+120.5 KiB/h   +121.5 KiB/h" in narrow
    assert "+128.5 KiB/h" not in narrow
    assert "omitted at this width" in narrow
    assert "quantity.8" in narrow
    assert "+128.5 KiB/h" in wide
    assert "narrow" not in wide
