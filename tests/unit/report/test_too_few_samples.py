"""A run with too few samples for a rate: no report of it prints a bound, in any format."""

from __future__ import annotations

import json
from collections.abc import Callable

import jsonschema
import pytest
from rich.console import Console

from hybridbench.analysis.judge import judge
from hybridbench.records.stored_verdict import verdict_from_json, verdict_text
from hybridbench.report.build import build_document
from hybridbench.report.console import render_console
from hybridbench.report.document import Document
from hybridbench.report.document_json import render_document_json
from hybridbench.report.html import render_html
from hybridbench.report.junit import render_junit
from hybridbench.report.markdown import render_markdown
from hybridbench.rundir.layout import published_schema
from tests.unit.analysis.records import Run, healthy_record

RECORD = healthy_record(Run(duration_s=36.0, steady_s=12.0))
VERDICT = judge(RECORD)


def on_console(document: Document) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render_console(document))
    return capture.get()


@pytest.mark.parametrize(
    "render", [on_console, render_html, render_markdown, render_document_json, render_junit]
)
def test_no_format_prints_a_bound_of_too_few_samples(render: Callable[[Document], str]) -> None:
    text = render(build_document(RECORD, VERDICT))

    assert " of 30 in " in text
    assert "is ruled out" not in text.replace("no growth is ruled out", "")
    assert "95%" not in text
    assert "MiB/h" not in text


def test_the_stored_verdict_has_no_rate_and_fits_its_schema() -> None:
    stored = json.loads(verdict_text(VERDICT, None))

    jsonschema.validate(stored, published_schema("verdict"))
    assert {m["rate_per_hour"] for m in stored["metrics"] if m["model"] == "none"} == {None}
    assert verdict_from_json(stored).metrics == VERDICT.metrics
