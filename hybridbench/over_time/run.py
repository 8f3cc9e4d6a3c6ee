"""Run one cell of a nightly run, run all of them, or merge them, and write their directories."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hybridbench.foundation.clock import Clock, SystemClock
from hybridbench.foundation.errors import ErrorCode, ExitCode, RunDirectoryError
from hybridbench.over_time.cell_run import CellRun
from hybridbench.over_time.cells import PlannedCell
from hybridbench.over_time.child import Child
from hybridbench.over_time.merge import find_cells, merged, plan_of
from hybridbench.over_time.night_report import nightly_document
from hybridbench.over_time.planned import OVERHEAD_S, PlannedRun
from hybridbench.over_time.stored import (
    another_engine,
    green_runs,
    keep_green_run,
    read_cell,
    write_record,
)
from hybridbench.records.nightly import NightlyRun, PlanRecord
from hybridbench.records.verdict import Failure
from hybridbench.report.document import Document
from hybridbench.report.github import render_summary
from hybridbench.report.write import rendered, write_failures, write_pages
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import (
    ANALYSIS_ERRORS,
    CELL,
    CELLS,
    NIGHTLY,
    REPORT_HTML,
    SUMMARY,
    make_directory,
)
from hybridbench.rundir.lock import locked_run


@dataclass(frozen=True)
class CellRunner:
    """Runs the cells of a nightly run; stopping ``child`` stops it.

    Args:
        nightly: the nightly run from the plan.
        child: runs the commands.
        say: receives progress lines.
    """

    nightly: PlannedRun
    child: Child
    say: Callable[[str], None]
    clock: Clock = field(default_factory=SystemClock)

    def run_cell(self, cell: PlannedCell, out: Path) -> int:
        """Run ``cell`` below ``out``.

        Returns:
            Its exit code after policy and waivers; 130 or 143 if a signal ended it.

        Raises:
            RunDirectoryError: the directory holds a cell of another plan, or cannot be written.
        """
        return self._run(cell, out, self._budget_s)

    def run_all(self, out: Path) -> int | None:
        """Run all unfinished cells; return 130 or 143 if a signal ended them, else None.

        Raises:
            RunDirectoryError: ``out`` holds cells of another plan, or cannot be written.
        """
        make_directory(out)
        with locked_run(out):
            self._refuse_other_plans(out)
            end_s = self.clock.monotonic_s() + self._budget_s
            for index, cell in enumerate(self.nightly.cells):
                later = self.nightly.cells[index + 1 :]
                later_s = sum(c.cell.duration_s + OVERHEAD_S for c in later)
                self._run(cell, out, end_s - later_s - self.clock.monotonic_s())
                if self.stopped_code is not None:
                    return self.stopped_code
        return None

    @property
    def stopped_code(self) -> int | None:
        """The exit code after the child was stopped: like a soak's, 130 for Ctrl-C, else 143."""
        if self.child.stopped_by is None:
            return None
        interrupted = self.child.stopped_by is signal.SIGINT
        return int(ExitCode.INTERRUPTED if interrupted else ExitCode.TERMINATED)

    @property
    def _budget_s(self) -> float:
        return float("inf") if self.nightly.budget_s is None else self.nightly.budget_s

    def _refuse_other_plans(self, out: Path) -> None:
        """Refuse now what merging would refuse after hours: another plan may have other ids."""
        record = self.nightly.record
        for path in sorted(out.glob(f"*/{CELL}")):
            try:
                plan = read_cell(path).plan
            except RunDirectoryError:
                # A damaged cell is refused by name when its turn comes.
                continue
            if plan.hash != record.hash:
                raise RunDirectoryError(
                    f"{path} is of plan {plan.name} {plan.hash}, not of {record.name} "
                    f"{record.hash}: choose another --out",
                    code=ErrorCode.MISMATCH,
                )

    def _run(self, cell: PlannedCell, out: Path, left_s: float) -> int:
        deadline_s = self.clock.monotonic_s() + left_s
        cell_run = CellRun(
            self.nightly, cell, out / cell.id, self.child, self.clock, self.say, deadline_s
        )
        record = cell_run.run()
        if self.stopped_code is not None:
            return self.stopped_code
        found = cell_run.result(record)
        if found is None:
            self.say(f"{cell.id}: its run was ended from outside; rerun the same command to resume")
            return int(ExitCode.TERMINATED)
        self.say(f"{cell.id}: {found.state.value}, {found.word}: {found.headline}")
        return found.exit_code


@dataclass(frozen=True)
class MergeOptions:
    """How cells are merged.

    Attributes:
        plan: the plan whose cells are expected; None: the plan stored in the cells.
        baselines: nightly runs or directories of them; None: those next to the merged one.
        keep: where a green run is stored as a baseline, if anywhere.
        allow_partial: a run may be green although the budget dropped cells.
    """

    plan: PlanRecord | None = None
    baselines: Sequence[Path] | None = None
    keep: Path | None = None
    allow_partial: bool = False


def merge_cells(
    places: Sequence[Path], out: Path, options: MergeOptions
) -> tuple[Document, tuple[Failure, ...]]:
    """Merge the cells below ``places`` into the nightly run ``out``.

    Returns:
        Its report, and why some of the pages could not be made or written.

    Raises:
        RunDirectoryError: nothing to merge, cells of two plans, or ``out`` cannot be made.
    """
    found = find_cells(places)
    plan = options.plan or plan_of(found, places)
    strangers = [r for r in found.cells.values() if r.plan.hash != plan.hash]
    if strangers:
        raise RunDirectoryError(
            f"the cells are of plan {strangers[0].plan.name} {strangers[0].plan.hash}, and --plan "
            f"is {plan.name} {plan.hash}: give the plan, --budget and --defect that they were run "
            "with",
            code=ErrorCode.MISMATCH,
        )
    beside = [out.resolve().parent] if options.baselines is None else options.baselines
    earlier = green_runs(beside, but=out)
    run = merged(plan, found, earlier, allow_partial=options.allow_partial)
    make_directory(out)
    document = stored_document(out, run)
    try:
        return document, _write_merged(run, document, out, options.keep)
    except RunDirectoryError as error:
        # A disk that is full after hours of soaks must not hide what they found.
        return document, (Failure("the report", str(error), ""),)


def _write_merged(
    run: NightlyRun, document: Document, out: Path, keep: Path | None
) -> tuple[Failure, ...]:
    write_record(out / NIGHTLY, run)
    failures = write_nightly_pages(out, document)
    if keep is not None and run.green:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(run.started_wall_s))
        keep_green_run(keep, f"{stamp}-{run.plan.name}", run)
    return failures


def stored_document(out: Path, run: NightlyRun) -> Document:
    """Return the report of the run in ``out``; cells stored there link to their own reports.

    A run's report is the same wherever its cells were run; only these links depend on the place.
    """
    pages = {
        cell.id: Path(CELLS, cell.id, cell.run, REPORT_HTML).as_posix()
        for cell in run.cells
        if cell.run
    }
    there = {name: page for name, page in pages.items() if (out / page).is_file()}
    return nightly_document(run, out.resolve().name, there)


def write_nightly_pages(out: Path, document: Document) -> tuple[Failure, ...]:
    """Write everything derived from night.json, each page completely or not at all.

    Returns:
        Why some of the pages could not be made.

    Raises:
        RunDirectoryError: ``out`` cannot be written.
    """
    pages = rendered(document)
    write_failures(out / ANALYSIS_ERRORS, pages.failures)
    write_pages(out, pages)
    write_atomically(out / SUMMARY, render_summary(document))
    return pages.failures


def run_directory(store: Path, nightly: PlannedRun) -> Path:
    """Return the newest interrupted nightly run of this plan below ``store``, or a new name.

    A run whose engine has changed since does not count: its results would be attributed to an
    engine that did not produce them.
    """
    for folder in sorted(store.glob("*/"), reverse=True):
        if not (folder / NIGHTLY).exists() and _is_of(folder, nightly):
            return folder
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return store / f"{stamp}-{nightly.record.name}"


def _is_of(folder: Path, nightly: PlannedRun) -> bool:
    cells = []
    for path in folder.glob(f"{CELLS}/*/{CELL}"):
        try:
            cells.append(read_cell(path))
        except RunDirectoryError:
            continue
    return any(cell.plan.hash == nightly.record.hash for cell in cells) and not any(
        another_engine(cell.engine, nightly.engine) for cell in cells
    )
