"""``hybridbench selftest``: defects must be found, healthy twins and controls left alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.options import MarkdownFile, Panel
from hybridbench.cli.output import check_place
from hybridbench.errors import ErrorCode, ExitCode, UsageError
from hybridbench.safe_output import echo, output_after_verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridbench.selftest.compare import Outcome
    from hybridbench.selftest.matrix import Row


def selftest(
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick",
            rich_help_panel=Panel.ROWS,
            help="All defects, twins and controls, collector default and frozen, heap large and "
            "small, allocators that check owners and that do not (two to four hours; healthy rows "
            "go on until they are CLEAN); or only exactly detectable defects, one memory "
            "trend and one healthy run for each profile (minutes).",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=Panel.ROWS,
            metavar="NAME",
            help="Only the rows of this defect, control or profile.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Soaks at a time; default: one for each core, with --quick three for two cores.",
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=Panel.OUTPUT,
            metavar="DIR",
            help="New directory for the runs.  Default: temporary.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume in the directory of --store: finished rows are judged again from their "
            "samples, the others are run.",
        ),
    ] = False,
    markdown: MarkdownFile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the rows with their commands; run nothing.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            rich_help_panel=Panel.OUTPUT,
            help="Print only the rows that are wrong, and the summary.",
        ),
    ] = False,
) -> None:
    """Test hybridbench itself on injected defects; prints a line for each row as it ends.

    Example: hybridbench selftest --only lru-reference-cycle

    Every row declares the expected verdict, subject and driver.  The rates that are found are
    compared with the counts of the defect itself, which the analysis cannot see.  Exits with code 0
    if every row is right, else 1.
    """
    from hybridbench.runs.defect_catalog import described_defects
    from hybridbench.selftest import matrix

    known = described_defects()
    rows = matrix.full_matrix(known) if full else matrix.quick_matrix(known)
    if only:
        rows = matrix.only(rows, only)
    if dry_run:
        _list(rows)
        return
    check_place("--markdown", markdown)
    if resume and store is None:
        raise UsageError(
            "needs --store with the directory to resume in.",
            code=ErrorCode.NEEDS_OPTION,
            option="--resume",
            also=("--store",),
        )
    outcomes = _run(rows, jobs or _jobs(full=full), store, resume=resume, quiet=quiet)
    _show(outcomes, markdown)
    if any(outcome.wrong for outcome in outcomes):
        raise typer.Exit(int(ExitCode.INTERNAL))


def _jobs(*, full: bool) -> int:
    """A soak of the quick matrix waits for half of its time; one of the full is also timed."""
    cores = os.cpu_count() or 1
    return cores if full else max(1, cores * 3 // 2)


def _list(rows: Sequence[Row]) -> None:
    from hybridbench.selftest.matrix import Expect
    from hybridbench.selftest.run import command

    for row in rows:
        words = command(row, Path("results"))[2:]
        echo(f"{row.expect.value:8} {row.name}: {' or '.join(row.signature.verdicts)}")
        echo(f"         {' '.join(words)}")
    at_work_s = sum(row.duration_s for row in rows)
    summary = f"{len(rows)} rows, {at_work_s / 60:.0f} minutes of traffic"
    # A defect that is caught ends on time; only what is healthy may stay open.
    more_s = sum(row.most_extend_s for row in rows if row.expect is not Expect.CAUGHT)
    if more_s:
        summary += f"; undecided healthy rows are extended, by {more_s / 60:.0f} minutes at most"
    echo(summary)


def _run(
    rows: Sequence[Row], jobs: int, store: Path | None, *, resume: bool, quiet: bool
) -> list[Outcome]:
    from hybridbench.selftest.run import SelfTest
    from hybridbench.selftest.table import line

    def print_line(outcome: Outcome) -> None:
        if outcome.wrong or not quiet:
            # The other rows are run whoever reads them: the exit code tells of all.
            with output_after_verdict():
                echo(line(outcome))

    if store is None:
        with tempfile.TemporaryDirectory(prefix="hybridbench-selftest-") as place:
            return SelfTest(Path(place), jobs).run(rows, print_line)
    try:
        store.mkdir(parents=True, exist_ok=resume)
    except OSError as error:
        raise UsageError(
            f"{store}: {error.strerror}; name a directory that does not exist yet, or add "
            "--resume.",
            option="--store",
        ) from error
    return SelfTest(store, jobs).run(rows, print_line)


def _show(outcomes: Sequence[Outcome], markdown: Path | None) -> None:
    from hybridbench.selftest import table

    if markdown is not None:
        markdown.write_text(table.markdown(outcomes), encoding="utf-8")
    with output_after_verdict():
        echo(table.summary(outcomes))
