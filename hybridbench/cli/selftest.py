"""``hybridbench selftest``: check that defects are found and healthy runs are not flagged."""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.options import MarkdownFile, Panel
from hybridbench.cli.output import check_place
from hybridbench.foundation.errors import ExitCode, UsageError
from hybridbench.foundation.safe_output import echo, output_after_verdict
from hybridbench.rundir.layout import STORE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridbench.selftest.compare import Outcome
    from hybridbench.selftest.matrix import Row


class Half(StrEnum):
    """Halves of the mutants, split by slug."""

    A = "A"
    B = "B"


def selftest(
    full: Annotated[
        bool,
        Panel.ROWS.option(
            "--full/--quick",
            help="All defects, twins and controls, collector default and frozen, heap large and "
            "small, allocators that check owners and that do not (two to four hours; healthy rows "
            "go on until they are CLEAN); or only exactly detectable defects, one memory "
            "trend and one healthy run for each profile (minutes).",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        Panel.ROWS.option(metavar="NAME", help="Only the rows of this defect, control or profile."),
    ] = None,
    mutants: Annotated[
        bool,
        Panel.ROWS.option(
            "--mutants",
            help="Measure recall instead: statements of the engine that free, clear, copy, "
            "relink or count are taken out one at a time; those that the engine's laws notice are "
            "soaked for at most a minute each, until the first finding (hours).  Needs a checkout.",
        ),
    ] = False,
    half: Annotated[
        Half | None,
        Panel.ROWS.option(
            help="Only this half of the mutants.  A is for improving detection, B for reporting."
        ),
    ] = None,
    sample: Annotated[
        int,
        Panel.ROWS.option(
            metavar="N",
            min=0,
            help="Take out only N statements, drawn with --seed; 0 takes all, one at a time.",
        ),
    ] = 0,
    seed: Annotated[int, Panel.ROWS.option(metavar="N", help="Seed of --sample.")] = 0,
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
        Panel.OUTPUT.option(metavar="DIR", help="New directory for the runs.  Default: temporary."),
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
        Panel.OUTPUT.option(
            "--quiet", "-q", help="Print only the rows that are wrong, and the summary."
        ),
    ] = False,
) -> None:
    """Test hybridbench itself on injected defects; prints a line for each row as it ends.

    Example: hybridbench selftest --only lru-reference-cycle

    Every row declares the expected verdict, subject and driver.  The rates that are found are
    compared with the counts of the defect itself, which the analysis cannot see.  Exits with code 0
    if every row is right, else 1.
    """
    if (half or sample or seed) and not mutants:
        raise UsageError(
            "needs --mutants, and so do --sample and --seed.",
            option="--half",
            also=("--sample", "--seed", "--mutants"),
        )
    if mutants:
        if full or only:
            raise UsageError(
                "cannot be combined with --full or --only.",
                option="--mutants",
                also=("--full", "--only"),
            )
        if dry_run:
            _list_mutants(half)
            return
        check_place("--markdown", markdown)
        with _place(store, resume=resume) as place:
            _measure_recall(
                place, "" if half is None else half.value, sample, seed, jobs, markdown, quiet=quiet
            )
        return
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
    with _place(store, resume=resume) as place:
        outcomes = _run(rows, jobs or _jobs(full=full), place, quiet=quiet)
    _show(outcomes, markdown)
    if any(outcome.wrong for outcome in outcomes):
        raise typer.Exit(int(ExitCode.INTERNAL))


def _jobs(*, full: bool) -> int:
    """Number of soaks at a time: quick ones are idle half the time; full ones measure speed."""
    cores = os.cpu_count() or 1
    return cores if full else max(1, cores * 3 // 2)


def _list(rows: Sequence[Row]) -> None:
    from hybridbench.selftest.matrix import Expect
    from hybridbench.selftest.run import command

    for row in rows:
        words = command(row, STORE)[2:]
        echo(f"{row.expect.value:8} {row.name}: {' or '.join(row.signature.verdicts)}")
        echo(f"         {' '.join(words)}")
    at_work_s = sum(row.duration_s for row in rows)
    summary = f"{len(rows)} rows, {at_work_s / 60:.0f} minutes of traffic"
    # A caught defect ends on time; only healthy rows can remain undecided.
    more_s = sum(row.most_extend_s for row in rows if row.expect is not Expect.CAUGHT)
    if more_s:
        summary += f"; undecided healthy rows are extended, by {more_s / 60:.0f} minutes at most"
    echo(summary)


def _place(store: Path | None, *, resume: bool) -> AbstractContextManager[Path]:
    """Directory for the runs: ``store``, made here, or a temporary one, removed at the end."""
    if store is None:
        if resume:
            raise UsageError(
                "needs --store with the directory to resume in.",
                option="--resume",
                also=("--store",),
            )
        return _temporary()
    try:
        store.mkdir(parents=True, exist_ok=resume)
    except OSError as error:
        raise UsageError(
            f"{store}: {error.strerror}; name a directory that does not exist yet, or add "
            "--resume.",
            option="--store",
        ) from error
    return nullcontext(store)


@contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hybridbench-selftest-") as place:
        yield Path(place)


def _run(rows: Sequence[Row], jobs: int, store: Path, *, quiet: bool) -> list[Outcome]:
    from hybridbench.selftest.run import SelfTest
    from hybridbench.selftest.table import line

    def print_line(outcome: Outcome) -> None:
        if outcome.wrong or not quiet:
            # If the reader of stdout is gone, run the other rows anyway: the exit code covers all.
            with output_after_verdict():
                echo(line(outcome))

    return SelfTest(store, jobs).run(rows, print_line)


def _list_mutants(half: Half | None) -> None:
    from hybridbench.defects.mutants import candidates

    chosen = [c for c in candidates() if half is None or c.half == half.value]
    for candidate in chosen:
        echo(f"{candidate.slug} {candidate.half} {candidate.kind:7} {candidate.name}")
    echo(f"{len(chosen)} mutants")


def _measure_recall(
    store: Path, half: str, sample: int, seed: int, jobs: int | None, markdown: Path | None, *,
    quiet: bool,
) -> None:  # fmt: skip
    from hybridbench.selftest import recall
    from hybridbench.selftest.mutants import Chosen, MutantTest

    def print_line(said: str) -> None:
        if not quiet:
            with output_after_verdict():
                echo(said)

    test = MutantTest(store, jobs or _jobs(full=True), print_line)
    try:
        test.run(Chosen(half, sample, seed))
    finally:
        # Also after Ctrl-C: even a partial result is a measurement.
        measured = recall.recall_of(test.measured(half))
        if measured.outcomes:
            (store / "recall.json").write_bytes(recall.to_json(measured))
            if markdown is not None:
                markdown.write_text(recall.markdown(measured), encoding="utf-8")
            with output_after_verdict():
                echo(recall.summary(measured))
    if measured.false_alarms:
        raise typer.Exit(int(ExitCode.INTERNAL))


def _show(outcomes: Sequence[Outcome], markdown: Path | None) -> None:
    from hybridbench.selftest import table

    if markdown is not None:
        markdown.write_text(table.markdown(outcomes), encoding="utf-8")
    with output_after_verdict():
        echo(table.summary(outcomes))
