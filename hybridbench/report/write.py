"""The derived files of a run directory: verdict.json, report.html, report.md and junit.xml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.diagnosis import diagnose
from hybridbench.analysis.record import RunRecord
from hybridbench.records.documents import writing
from hybridbench.records.stored_verdict import verdict_text
from hybridbench.records.verdict import Failure, Verdict
from hybridbench.report.build import build_so_far
from hybridbench.report.diagnosis import diagnosis_json
from hybridbench.report.document import Document
from hybridbench.report.html import render_html
from hybridbench.report.junit import render_junit
from hybridbench.report.markdown import render_markdown
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import (
    ANALYSIS_ERRORS,
    ANALYSIS_ERRORS_SO_FAR,
    DIAGNOSIS,
    JUNIT,
    REPORT_HTML,
    REPORT_HTML_SO_FAR,
    REPORT_MARKDOWN,
    REPORT_MARKDOWN_SO_FAR,
    VERDICT,
    VERDICT_SO_FAR,
)


@dataclass(frozen=True)
class Pages:
    """A document in the stored formats; one that failed is missing, with the reason."""

    texts: Mapping[str, str | None]  # by file name; None failed
    failures: tuple[Failure, ...] = ()


def rendered(document: Document) -> Pages:
    """Render ``document``, of any kind, as report.md, report.html and junit.xml."""
    boundary = Boundary()
    renderers = {
        REPORT_MARKDOWN: render_markdown,
        REPORT_HTML: render_html,
        JUNIT: render_junit,
    }
    texts = {n: boundary.value(n, None, render, document) for n, render in renderers.items()}
    return Pages(texts, boundary.failures)


def write_run(run_dir: Path, record: RunRecord, verdict: Verdict, pages: Pages) -> None:
    """Write all derived files of a run, each completely or not at all; the verdict first.

    Raises:
        RunDirectoryError: when ``run_dir`` cannot be written.
    """
    text = verdict_text(verdict, record.manifest.run_id or None)
    write_atomically(run_dir / VERDICT, text)
    boundary = Boundary()
    diagnosis = boundary.value("the diagnosis", None, _diagnosis, record)
    write_failures(run_dir / ANALYSIS_ERRORS, (*verdict.failures, *boundary.failures))
    if diagnosis is not None:
        write_atomically(run_dir / DIAGNOSIS, diagnosis)
    write_pages(run_dir, pages)


def _diagnosis(record: RunRecord) -> str | None:
    found = diagnose(record)
    return None if found is None else diagnosis_json(record, found)


def write_failures(path: Path, failures: Sequence[Failure]) -> None:
    """Write the tracebacks of an analysis to ``path``; remove the file if nothing failed.

    Raises:
        RunDirectoryError: when its directory cannot be written.
    """
    if failures:
        traces = (f"{failure.part}\n\n{failure.trace}" for failure in failures)
        write_atomically(path, "\n".join(traces))
    else:
        _remove(path)


def write_pages(directory: Path, pages: Pages) -> None:
    """Write what could be rendered, and remove older versions of pages that could not.

    Raises:
        RunDirectoryError: when ``directory`` cannot be written.
    """
    for name, text in pages.texts.items():
        if text is None:
            _remove(directory / name)
        else:
            write_atomically(directory / name, text)


def _remove(path: Path) -> None:
    with writing(f"remove {path}"):
        path.unlink(missing_ok=True)


def write_so_far(run_dir: Path, record: RunRecord, verdict: Verdict) -> None:
    """Write the results of a run in progress to files with their own names.

    Raises:
        RunDirectoryError: when ``run_dir`` cannot be written.
    """
    text = verdict_text(verdict, record.manifest.run_id or None)
    write_atomically(run_dir / VERDICT_SO_FAR, text)
    write_failures(run_dir / ANALYSIS_ERRORS_SO_FAR, verdict.failures)
    document = build_so_far(record, verdict)
    write_atomically(run_dir / REPORT_MARKDOWN_SO_FAR, render_markdown(document))
    write_atomically(run_dir / REPORT_HTML_SO_FAR, render_html(document))
