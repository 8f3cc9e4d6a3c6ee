"""Judge stored results again, print or write their report, and rebuild derived files."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hybridbench.cli.options import Detail, ReportFormat
from hybridbench.cli.output import ReportFile, given_outputs, write_output
from hybridbench.cli.results import OtherFormats, Result, read_result, run_result
from hybridbench.foundation.errors import (
    ErrorCode,
    ExitCode,
    HybridbenchError,
    RunDirectoryError,
    UsageError,
)
from hybridbench.foundation.safe_output import (
    echo,
    emit,
    one_line,
    output_after_verdict,
    print_error,
)
from hybridbench.rundir.layout import BENCH_ERRORS

if TYPE_CHECKING:
    from hybridbench.records.verdict import Failure
    from hybridbench.report.document import Document

# Printed for reading, so control characters are escaped; the other formats do their own escaping.
_FOR_READERS = (ReportFormat.CONSOLE, ReportFormat.MARKDOWN, ReportFormat.GITHUB_SUMMARY)
_NO_OTHERS: Final[OtherFormats] = MappingProxyType({})


@dataclass(frozen=True)
class OutputOptions:
    """Format of the printed report, and further files to write it to."""

    format: ReportFormat = ReportFormat.CONSOLE
    files: tuple[ReportFile, ...] = ()
    open_page: bool = False
    detail: Detail = Detail.USUAL

    @property
    def formats(self) -> tuple[str, ...]:
        """All formats that are needed."""
        return tuple(dict.fromkeys((self.format, *(file.format for file in self.files))))


def output_options(
    form: ReportFormat,
    outputs: Sequence[str] | None,
    *,
    quiet: bool,
    verbose: bool,
    open_page: bool = False,
) -> OutputOptions:
    """Options from --format, --output, -q and -v.

    Raises:
        UsageError: -q and -v are both given, or a value of --output is invalid.
    """
    if quiet and verbose:
        raise UsageError("-q and -v: choose one of them.", code=ErrorCode.OPTION_CONFLICT)
    detail = Detail.BRIEF if quiet else Detail.FULL if verbose else Detail.USUAL
    return OutputOptions(form, given_outputs(outputs), open_page, detail)


def render(
    directory: Path,
    options: OutputOptions = OutputOptions(),
    *,
    rebuild: bool = True,
    thresholds: Sequence[str] = (),
) -> int:
    """Judge the result in ``directory`` again and render its report.

    Args:
        directory: a run, a comparison or a nightly run.
        options: format and files.
        rebuild: also write its derived files.  If that fails, the report is still rendered, with a
            message on standard error.
        thresholds: further thresholds, for a run.

    Returns:
        The exit code: the verdict's, or 130 or 143 for an interrupted run.  If a file cannot be
        written, a CLEAN result does not exit 0; other verdicts keep their code.

    Raises:
        RunDirectoryError: there is nothing to judge.
        UsageError: this kind of result has no such format.
    """
    shown = options.formats
    read = run_result(directory, thresholds, shown) if thresholds else read_result(directory, shown)
    if ReportFormat.CSV not in read.others:
        refuse_samples(str(directory), options)
    page = _rebuilt(directory, read) if rebuild else _Page(None)
    code = _render(read, options, page.path)
    failed = page.failed and code == ExitCode.CLEAN
    return int(ExitCode.INCONCLUSIVE) if failed else code


def render_ended(directory: Path, options: OutputOptions, hint: ExitCode | None) -> int:
    """Render the report of a run that has just ended, even if a signal arrives now.

    If the report runs out of memory or files, the measurements are kept and the verdict is
    INCONCLUSIVE; a later ``report`` decides it.

    Args:
        directory: a run or a comparison.
        options: format and files.
        hint: 130 or 143 if a signal ended it; the next signal then counts as the second.

    Returns:
        The exit code: ``hint`` if there is one, else the verdict's; after two signals 130 or 143.
    """
    from hybridbench.runs.interrupts import SecondSignalError, handled_interrupts

    with handled_interrupts() as interrupts:
        if hint is not None:
            interrupts.first = signal.SIGINT if hint is ExitCode.INTERRUPTED else signal.SIGTERM
        try:
            code = render(directory, options)
        except SecondSignalError:
            code = int(interrupts.exit_code or ExitCode.INTERRUPTED)
        except HybridbenchError as error:
            if hint is None:
                raise
            # The signal may have come before there was anything to report on.
            print_error(error)
            code = int(hint)
        except Exception as error:
            with contextlib.suppress(OSError), (directory / BENCH_ERRORS).open("a") as file:
                traceback.print_exc(file=file)
            said = f"the report cannot be made: {type(error).__name__}: {one_line(str(error))}"
            later = f"what was measured is kept, and 'hybridbench report {directory}' judges it"
            echo(f"hybridbench: INCONCLUSIVE: {said}; {later}", err=True)
            code = int(ExitCode.INCONCLUSIVE)
    return code if hint is None else int(hint)


def write_interim_report(run_dir: Path) -> int:
    """Judge the samples so far of the run in ``run_dir``, and write the interim files there.

    Returns:
        Always 0: the verdict is not final.

    Raises:
        RunDirectoryError: there is no run, or its directory cannot be written.
    """
    from hybridbench.analysis.judge import judge_so_far
    from hybridbench.foundation.terminal import Terminal
    from hybridbench.report.write import write_so_far
    from hybridbench.rundir.layout import REPORT_HTML_SO_FAR
    from hybridbench.rundir.reader import read_run

    record = read_run(run_dir)
    verdict = judge_so_far(record)
    write_so_far(run_dir, record, verdict)
    Terminal().print(f"{verdict.full_headline}\n{run_dir / REPORT_HTML_SO_FAR}", markup=False)
    return 0


@dataclass(frozen=True)
class _Page:
    """Path of the page, if there is one; ``failed`` if a bug of ours prevented any file."""

    path: Path | None
    failed: bool = False


def _rebuilt(directory: Path, result: Result) -> _Page:
    """Rewrite the page and all derived files; no page if ``directory`` cannot be written."""
    from hybridbench.rundir.layout import REPORT_HTML

    try:
        failures = result.write()
    except RunDirectoryError as error:
        echo(f"hybridbench: the derived files were not rebuilt: {error}", err=True)
        return _Page(None)
    say_failures(failures)
    page = directory / REPORT_HTML
    return _Page(page if page.exists() else None, failed=bool(failures))


def say_failures(failures: Sequence[Failure]) -> None:
    """Name the pages that could not be made, because of a bug of ours, on standard error."""
    for failure in failures:
        echo(f"hybridbench: {failure.part} could not be made: {failure.said}", err=True)


def refuse_samples(what: str, options: OutputOptions) -> None:
    """
    Raises:
        UsageError: csv is requested, but ``what`` is not a run and so has no samples.
    """
    if ReportFormat.CSV in options.formats:
        raise UsageError(
            f"csv has the samples of one run, and {what} is not a run; `hybridbench report RUN "
            "--format csv` takes a run directory.",
            option="--format",
        )


def _render(result: Result, options: OutputOptions, page: Path | None) -> int:
    """Print the report; return the verdict's exit code even if a bug of ours prevents printing."""
    document = result.document
    try:
        with output_after_verdict():
            print_document(document, options, page, result.others)
    except UsageError as error:
        print_error(error)
        return document.exit_code or int(error.exit_code)
    except (HybridbenchError, OSError):
        raise
    except Exception:
        traceback.print_exc()
        said = f"{document.badge.word}: {document.headline}"
        echo(f"hybridbench: the report cannot be shown as {options.format}; {said}", err=True)
        return document.exit_code or int(ExitCode.INCONCLUSIVE)
    if options.open_page:
        _open(document, page)
    return document.exit_code


def print_document(
    document: Document,
    options: OutputOptions,
    page: Path | None = None,
    others: OtherFormats = _NO_OTHERS,
) -> None:
    """Write ``document`` to the files of ``options``, then to standard output in its format.

    Args:
        document: the report.
        options: formats and files.
        page: path of its page, printed on a console.
        others: text for formats that are not, or not only, rendered from the document.

    Raises:
        UsageError: a file cannot be written; all other files and standard output are complete.
        OSError: standard output cannot be written.
    """

    def text(form: ReportFormat) -> str:
        from hybridbench.report.formats import FORMATS

        return others[form]() if form in others else FORMATS[form](document)

    refused: list[UsageError] = []
    for file in options.files:
        try:
            write_output(file.path, text(file.format))
        except UsageError as error:
            refused.append(error)
    if options.format is ReportFormat.CONSOLE:
        print_console(document, page, options.detail)
    elif options.format in _FOR_READERS:
        echo(text(options.format), nl=False)
    else:
        emit(text(options.format))
    for first in refused:
        raise first


def print_console(
    document: Document, page: Path | None = None, detail: Detail = Detail.USUAL
) -> None:
    """Print ``document`` in the given ``detail``, and the path of its page unless brief."""
    if detail is Detail.BRIEF:
        echo(one_line(f"{document.badge.word}: {document.headline}"))
        return
    from hybridbench.foundation.terminal import Terminal
    from hybridbench.report.console import render_console

    Terminal().print(render_console(document, page, verbose=detail is Detail.FULL))


def _open(document: Document, page: Path | None) -> None:
    """Open the page in the user's browser; without a browser, print the path."""
    import webbrowser

    from hybridbench.report.html import render_html

    if page is None:
        folder = Path(tempfile.mkdtemp(prefix="hybridbench-"))
        page = folder / "report.html"
        page.write_text(render_html(document), "utf-8", "backslashreplace")
    if not webbrowser.open(page.resolve().as_uri()):
        echo(f"hybridbench: no browser was found; the page is {page}", err=True)
