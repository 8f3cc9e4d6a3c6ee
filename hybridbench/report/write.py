"""The derived files of a run directory: verdict.json, report.html and report.md."""

from __future__ import annotations

from pathlib import Path

from hybridbench.analysis.findings import Verdict
from hybridbench.analysis.record import RunRecord
from hybridbench.report.build import build_document
from hybridbench.report.document import Document
from hybridbench.report.html import render_html
from hybridbench.report.json import render_json
from hybridbench.report.markdown import render_markdown
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import REPORT_HTML, REPORT_MARKDOWN, VERDICT


def write_reports(run_dir: Path, record: RunRecord, verdict: Verdict) -> Document:
    """Write all three, each whole or not at all; the verdict first, as the pages explain it.

    Returns the document, for the summary on the console.

    Raises:
        RunDirectoryError: when ``run_dir`` cannot be written.
    """
    run_id = record.manifest.get("run_id")
    text = render_json(verdict, run_id if isinstance(run_id, str) else None)
    write_atomically(run_dir / VERDICT, text)
    document = build_document(record, verdict)
    write_atomically(run_dir / REPORT_MARKDOWN, render_markdown(document))
    write_atomically(run_dir / REPORT_HTML, render_html(document))
    return document
