"""The verbs of a night over directories: one cell, all cells, merge."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridbench.clock import Clock, SystemClock
from hybridbench.errors import ExitCode, RunDirectoryError
from hybridbench.nightly.baseline import good_nights, keep_good_night
from hybridbench.nightly.budget import OVERHEAD_S
from hybridbench.nightly.cell_run import CellRun
from hybridbench.nightly.cells import Cell
from hybridbench.nightly.child import Child
from hybridbench.nightly.facts import Night
from hybridbench.nightly.merge import find_cells, headline_of, merged, plan_of
from hybridbench.nightly.records import PlanRecord, another_engine, read_cell
from hybridbench.nightly.write import write_night
from hybridbench.report.document import Document
from hybridbench.rundir.layout import CELL, CELLS, NIGHT, make_directory
from hybridbench.rundir.lock import locked_run

Told = Callable[[str], None]


def run_cell(night: Night, cell: Cell, out: Path, child: Child, told: Told) -> int:
    """Run ``cell`` below ``out``.

    Returns:
        Its exit code after policy and waivers; 130 or 143 if a signal ended it.

    Raises:
        RunDirectoryError: the directory holds a cell of another plan, or cannot be written.
    """
    budget_s = float("inf") if night.budget_s is None else night.budget_s
    return _cell(night, cell, out, _Place(child, SystemClock(), told, budget_s))


@dataclass(frozen=True)
class _Place:
    """What runs a cell, and how long it may go on with runs of the policy's own."""

    child: Child
    clock: Clock
    told: Told
    left_s: float

    def deadline_s(self) -> float:
        return self.clock.monotonic_s() + self.left_s


def _cell(night: Night, cell: Cell, out: Path, place: _Place) -> int:
    child, told = place.child, place.told
    cell_run = CellRun(
        night.rules(cell),
        night.record,
        out / cell.id,
        child,
        place.clock,
        told,
        night.engine,
        place.deadline_s(),
    )
    record = cell_run.run()
    stopped = stopped_code(child)
    if stopped is not None:
        return stopped
    said = cell_run.outcome(record)
    if said is None:
        told(f"{cell.id}: its run was ended from outside; start it again and it goes on")
        return int(ExitCode.TERMINATED)
    told(f"{cell.id}: {said.state.value}, {said.word}: {headline_of(said)}")
    return said.exit_code


def run_cells(night: Night, out: Path, child: Child, told: Told) -> int | None:
    """Run all cells that are not finished; 130 or 143 if a signal ended that, else None."""
    make_directory(out)
    with locked_run(out):
        clock = SystemClock()
        budget_s = float("inf") if night.budget_s is None else night.budget_s
        end_s = clock.monotonic_s() + budget_s
        for index, cell in enumerate(night.cells):
            later_s = sum(c.duration_s + OVERHEAD_S for c in night.cells[index + 1 :])
            left_s = end_s - later_s - clock.monotonic_s()
            _cell(night, cell, out, _Place(child, clock, told, left_s))
            stopped = stopped_code(child)
            if stopped is not None:
                return stopped
    return None


def stopped_code(child: Child) -> int | None:
    """The exit code of a process that ``child.stop`` ended; as of a soak, 143 but for Ctrl-C."""
    if child.stopped_by is None:
        return None
    return int(ExitCode.INTERRUPTED if child.stopped_by is signal.SIGINT else ExitCode.TERMINATED)


def merge_night(
    places: Sequence[Path],
    out: Path,
    plan: PlanRecord | None,
    baselines: Sequence[Path] | None,
    keep: Path | None,
    *,
    allow_partial: bool = False,
) -> Document:
    """Merge the cells below ``places`` into the night ``out``; its report.

    Args:
        places: directories that hold cells at any depth.
        out: the night's directory.
        plan: whose cells are expected; None: as the cells carry it.
        baselines: nights or directories of them; None: those beside ``out``.
        keep: where a green night is stored as a baseline, if anywhere.
        allow_partial: a night may be green though the budget left cells out.

    Raises:
        RunDirectoryError: nothing to merge, cells of two plans, or no way to write.
    """
    found = find_cells(places)
    wanted = plan_of(found, places) if plan is None else plan
    strangers = [r for r in found.cells.values() if r.plan.hash != wanted.hash]
    if strangers:
        raise RunDirectoryError(
            f"the cells are of plan {strangers[0].plan.name} {strangers[0].plan.hash}, and --plan "
            f"is {wanted.name} {wanted.hash}: give the plan, --budget and --defect that they were "
            "run with"
        )
    beside = [out.resolve().parent] if baselines is None else list(baselines)
    good = good_nights(beside, but=out)
    night = merged(wanted, found, good, allow_partial=allow_partial)
    document = write_night(out, night)
    if keep is not None and night.good:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(night.started_wall_s))
        keep_good_night(keep, f"{stamp}-{night.plan.name}", night)
    return document


def night_directory(store: Path, night: Night) -> Path:
    """The newest night of this plan below ``store`` that was cut off, else a new one's name.

    One whose engine has changed since is none: its answers would stand for an engine that they
    never saw.
    """
    for folder in sorted(store.glob("*/"), reverse=True):
        if not (folder / NIGHT).exists() and _is_of(folder, night):
            return folder
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return store / f"{stamp}-{night.record.name}"


def _is_of(folder: Path, night: Night) -> bool:
    cells = []
    for path in folder.glob(f"{CELLS}/*/{CELL}"):
        try:
            cells.append(read_cell(path))
        except RunDirectoryError:
            continue
    return any(cell.plan.hash == night.record.hash for cell in cells) and not any(
        another_engine(cell.engine, night.engine) for cell in cells
    )
