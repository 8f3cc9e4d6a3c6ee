"""The formats of every document: one table for all commands."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Final

from hybridbench.foundation.terminal import Terminal
from hybridbench.report.console import render_console
from hybridbench.report.document import Document
from hybridbench.report.document_json import render_benchmark_json, render_document_json
from hybridbench.report.github import render_annotations, render_summary
from hybridbench.report.html import render_html
from hybridbench.report.junit import render_junit
from hybridbench.report.markdown import render_markdown

_CONSOLE_WIDTH: Final = 100


def _plain_console(document: Document) -> str:
    """Return the console summary without colours, for a file or a pipe."""
    out = io.StringIO()
    Terminal(file=out, width=_CONSOLE_WIDTH, no_color=True).print(render_console(document))
    return out.getvalue()


FORMATS: Final[Mapping[str, Callable[[Document], str]]] = {
    "console": _plain_console,
    "markdown": render_markdown,
    "html": render_html,
    "json": render_document_json,
    "junit": render_junit,
    "github-summary": render_summary,
    "github-annotations": render_annotations,
    "benchmark-json": render_benchmark_json,
}
