"""A merged night on disk: night.json and the pages made of it."""

from __future__ import annotations

from pathlib import Path

from hybridbench.nightly.records import NightRecord, write_record
from hybridbench.nightly.report import night_document
from hybridbench.report.document import Document
from hybridbench.report.github import render_summary
from hybridbench.report.write import write_document
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import CELLS, NIGHT, REPORT_HTML, SUMMARY, make_directory


def write_night(out: Path, night: NightRecord) -> Document:
    """Write night.json, then the pages, each whole or not at all.

    Raises:
        RunDirectoryError: ``out`` cannot be written.
    """
    make_directory(out)
    write_record(out / NIGHT, night)
    document = document_below(out, night)
    write_pages(out, document)
    return document


def document_below(out: Path, night: NightRecord) -> Document:
    """The report of the night in ``out``; cells that lie in there lead to their runs' reports.

    What a night says is the same wherever its cells were run; only these links are of the place.
    """
    pages = {
        cell.id: Path(CELLS, cell.id, cell.run, REPORT_HTML).as_posix()
        for cell in night.cells
        if cell.run
    }
    there = {name: page for name, page in pages.items() if (out / page).is_file()}
    return night_document(night, out.resolve().name, there)


def write_pages(out: Path, document: Document) -> None:
    """Everything that is derived from night.json.

    Raises:
        RunDirectoryError: ``out`` cannot be written.
    """
    write_document(out, document)
    write_atomically(out / SUMMARY, render_summary(document))
