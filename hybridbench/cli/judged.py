"""From stored results to their answer on the console and their report on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hybridbench.cli.output import write_output
from hybridbench.cli.sources import Told, tell_directory
from hybridbench.errors import RunDirectoryError, UsageError
from hybridbench.safe_output import answer_of_verdict, echo, emit

if TYPE_CHECKING:
    from hybridbench.report.document import Document

# The names of report/formats.py, said here so that `--help` need not load what renders them.
FORMATS = (
    "console",
    "markdown",
    "html",
    "json",
    "junit",
    "github-summary",
    "github-annotations",
    "benchmark-json",
)
CONSOLE = "console"
# What is read as it is printed; the others have an escape of their own for what others wrote.
_FOR_READERS = frozenset({CONSOLE, "markdown", "github-summary"})


@dataclass(frozen=True)
class Telling:
    """How an answer is to be told."""

    format: str = CONSOLE
    output: Path | None = None  # None: standard output
    open_page: bool = False


def check_format(name: str) -> None:
    """Raise UsageError unless ``name`` is a format of reports."""
    if name not in FORMATS:
        raise UsageError(f"--format {name}: choose one of {', '.join(FORMATS)}.")


def tell(directory: Path, telling: Telling = Telling(), *, rebuild: bool = True) -> int:
    """Judge what is in ``directory`` again and tell it.

    Args:
        directory: a run, a comparison or a night.
        telling: as what, and where to.
        rebuild: write its derived files as well.  Where that cannot be done the answer is told all
            the same, with a sentence on standard error.

    Returns:
        The exit code: the verdict's, or 130 or 143 for a run that was interrupted.

    Raises:
        RunDirectoryError: there is nothing to judge.
        UsageError: the output cannot be written.
    """
    told = tell_directory(directory)
    page = _rebuilt(directory, told) if rebuild else None
    with answer_of_verdict():
        _say(told.document, telling, page)
    if telling.open_page:
        _open(told.document, page)
    return told.document.exit_code


def tell_under(run_dir: Path, thresholds: Sequence[str], telling: Telling) -> int:
    """Tell what the run in ``run_dir`` comes to under its own thresholds and these; write nothing.

    Returns:
        The exit code of that answer.

    Raises:
        RunDirectoryError: there is no run.
        UsageError: the output cannot be written.
    """
    from hybridbench.analysis.judge import judge
    from hybridbench.analysis.reading import texts
    from hybridbench.report.build import build_document
    from hybridbench.rundir.reader import read_run

    record = read_run(run_dir)
    every = dict.fromkeys((*texts(record.manifest, "thresholds"), *thresholds))
    record = replace(record, manifest={**record.manifest, "thresholds": list(every)})
    document = build_document(record, judge(record))
    with answer_of_verdict():
        _say(document, telling, None)
    if telling.open_page:
        _open(document, None)
    return document.exit_code


def tell_so_far(run_dir: Path) -> int:
    """Judge what the run in ``run_dir`` has stored up to now, and write that beside it.

    Returns:
        0, whatever the verdict: it is not the last word.

    Raises:
        RunDirectoryError: there is no run, or its directory cannot be written.
    """
    from hybridbench.analysis.judge import judge_so_far
    from hybridbench.report.write import write_so_far
    from hybridbench.rundir.layout import REPORT_HTML_SO_FAR
    from hybridbench.rundir.reader import read_run
    from hybridbench.terminal import Terminal

    record = read_run(run_dir)
    verdict = judge_so_far(record)
    write_so_far(run_dir, record, verdict)
    Terminal().print(f"{verdict.headline}\n{run_dir / REPORT_HTML_SO_FAR}", markup=False)
    return 0


def _rebuilt(directory: Path, told: Told) -> Path | None:
    """The page, written anew with all beside it; None where ``directory`` cannot be written."""
    from hybridbench.rundir.layout import REPORT_HTML

    try:
        told.write()
    except RunDirectoryError as error:
        echo(f"hybridbench: the derived files were not rebuilt: {error}", err=True)
        return None
    return directory / REPORT_HTML


def _say(document: Document, telling: Telling, page: Path | None) -> None:
    if telling.format == CONSOLE and telling.output is None:
        from hybridbench.report.console import render_console
        from hybridbench.terminal import Terminal

        Terminal().print(render_console(document, page))
        return
    from hybridbench.report.formats import FORMATS as TABLE

    text = TABLE[telling.format].render(document)
    if telling.output is not None:
        write_output(telling.output, text)
    elif telling.format in _FOR_READERS:
        echo(text, nl=False)
    else:
        emit(text)


def _open(document: Document, page: Path | None) -> None:
    """Show the page in the person's browser; where there is none, say where the page is."""
    import webbrowser

    from hybridbench.report.html import render_html

    if page is None:
        folder = Path(tempfile.mkdtemp(prefix="hybridbench-"))
        page = folder / "report.html"
        page.write_text(render_html(document), "utf-8", "backslashreplace")
    if not webbrowser.open(page.resolve().as_uri()):
        echo(f"hybridbench: no browser was found; the page is {page}", err=True)
