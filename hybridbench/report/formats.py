"""The formats of every document: one table for all commands."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hybridbench.report.console import render_console
from hybridbench.report.document import Document
from hybridbench.report.document_json import render_benchmark_json, render_document_json
from hybridbench.report.github import render_annotations, render_summary
from hybridbench.report.html import render_html
from hybridbench.report.junit import render_junit
from hybridbench.report.markdown import render_markdown
from hybridbench.terminal import Terminal

_CONSOLE_WIDTH: Final = 100


@dataclass(frozen=True)
class Format:
    """How one format is made, and what it is for."""

    render: Callable[[Document], str]
    meaning: str


def _plain_console(document: Document) -> str:
    """The console's summary without colours, for a file or a pipe."""
    out = io.StringIO()
    Terminal(file=out, width=_CONSOLE_WIDTH, no_color=True).print(render_console(document))
    return out.getvalue()


FORMATS: Final[Mapping[str, Format]] = {
    "console": Format(_plain_console, "the summary that a run ends with"),
    "markdown": Format(render_markdown, "for a pull request or a mail"),
    "html": Format(render_html, "the page with the charts, one file that needs nothing else"),
    "json": Format(render_document_json, "everything but the curves, schema hybridbench.report/1"),
    "junit": Format(render_junit, "one test case a gate"),
    "github-summary": Format(render_summary, "to append to $GITHUB_STEP_SUMMARY"),
    "github-annotations": Format(render_annotations, "workflow commands, for a step's output"),
    "benchmark-json": Format(
        render_benchmark_json, "customSmallerIsBetter of github-action-benchmark"
    ),
}
