"""Merge cells into one nightly run: every planned cell has a row, and a lost one is MISSING."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hybridbench.analysis.findings.words import times
from hybridbench.foundation.errors import ErrorCode, ExitCode, RunDirectoryError
from hybridbench.over_time.comparer import against
from hybridbench.over_time.policy import Rules, expired, missing, result
from hybridbench.over_time.stored import GreenRun, another_engine, read_cell
from hybridbench.records.nightly import (
    Attempt,
    CellKind,
    CellRecord,
    CellResult,
    CellState,
    NightlyRun,
    PlanRecord,
    counted,
)
from hybridbench.rundir.layout import CELL

# The nightly run's word is the first of these that a failed cell has: what was found outranks what
# could not be examined.
PRECEDENCE: Final = (
    "LEAK",
    "INVARIANT",
    "CORRUPT",
    "REGRESSION",
    "CRASHED",
    "DEGRADED",
    "MISSING",
    "INVALID",
    "INCONCLUSIVE",
)


@dataclass(frozen=True)
class Found:
    """The cells found below some directories, with notes about the search."""

    cells: dict[str, CellRecord]
    notes: tuple[str, ...] = ()


def find_cells(places: Sequence[Path]) -> Found:
    """Return all cells below ``places``; of duplicates, prefer a finished one, then the latest.

    Raises:
        RunDirectoryError: a directory does not exist, or the cells belong to two plans or engines.
    """
    cells: dict[str, CellRecord] = {}
    notes = []
    for path in _cell_files(places):
        try:
            record = read_cell(path)
        except RunDirectoryError as error:
            notes.append(str(error))
            continue
        other = next(iter(cells.values()), record)
        if other.plan.hash != record.plan.hash:
            raise RunDirectoryError(
                f"{path} belongs to plan {record.plan.name} {record.plan.hash}, other cells to "
                f"{other.plan.name} {other.plan.hash}: merge the cells of one nightly run",
                code=ErrorCode.MISMATCH,
            )
        if another_engine(other.engine, record.engine):
            raise RunDirectoryError(
                f"{path} ran on engine {record.engine[:12]}, {other.id} on "
                f"{other.engine[:12]}: merge the cells of one engine",
                code=ErrorCode.MISMATCH,
            )
        before = cells.get(record.id)
        if before is not None:
            notes.append(f"{record.id} was found twice; the finished and later one counts")
        if before is None or _rank(record) > _rank(before):
            cells[record.id] = record
    return Found(cells, tuple(notes))


def merged(
    plan: PlanRecord, found: Found, earlier: Sequence[GreenRun], *, allow_partial: bool = False
) -> NightlyRun:
    """Return the nightly run of ``plan`` from the cells found, compared with the last green run.

    If the budget dropped cells it is not green, unless ``allow_partial``.
    """
    cells = [_result(name, plan, found.cells.get(name)) for name in plan.cells]
    attempts = [a for cell in cells for a in cell.attempts]
    started_s = min((a.started_wall_s for a in attempts), default=0.0)
    # A run that is merged again must not be compared with itself, or with a later one.
    before = [green for green in earlier if green.run.started_wall_s < started_s]
    cells = [against(cell, before, plan.policy.throughput_ratio) for cell in cells]
    failed = [cell for cell in cells if cell.state in (CellState.FAIL, CellState.MISSING)]
    failed.sort(key=lambda cell: PRECEDENCE.index(cell.word))
    passed = any(cell.state is CellState.PASS for cell in cells)
    whole = allow_partial or not plan.left_out
    green = passed and whole and not failed
    undecided = int(ExitCode.INCONCLUSIVE)
    rehearsed = _rehearsed(cells)
    return NightlyRun(
        plan=plan,
        started_wall_s=started_s,
        # An attempt that was killed did not store its end.
        ended_wall_s=max((a.ended_wall_s or a.started_wall_s for a in attempts), default=0.0),
        green=green and not rehearsed,
        # Neutral cells do not fail a run, but a run with only neutral cells is not green.
        exit_code=failed[0].exit_code if failed else int(ExitCode.CLEAN) if green else undecided,
        word="FAIL" if failed else "PASS" if green else "INCONCLUSIVE",
        headline=_headline(cells, failed) + _left_out(len(plan.left_out), allow_partial),
        cells=tuple(cells),
        notes=tuple(_notes(plan, found, attempts)),
        rehearsed=rehearsed,
        allow_partial=allow_partial,
    )


def plan_of(found: Found, places: Sequence[Path]) -> PlanRecord:
    """Return the plan stored in the cells.

    Raises:
        RunDirectoryError: there is no cell, or none can be read.
    """
    for record in found.cells.values():
        return record.plan
    if found.notes:
        raise RunDirectoryError(
            f"no {CELL} can be read: {'; '.join(found.notes)}", code=ErrorCode.DAMAGED
        )
    names = ", ".join(str(place) for place in places)
    raise RunDirectoryError(
        f"{names}: no {CELL} is in there; name the directories that `hybridbench nightly cell "
        "--out` wrote, or --plan to have every cell reported as MISSING",
        code=ErrorCode.NOT_FOUND,
    )


def _rehearsed(cells: Sequence[CellResult]) -> tuple[str, ...]:
    """Return the defects that ``--defect`` added to the soaks, besides the plan's version."""
    soaks = (c.cell.versions for c in cells if c.cell and c.cell.kind is CellKind.SOAK)
    return tuple(dict.fromkeys(name for versions in soaks for name in versions[1:]))


def _cell_files(places: Sequence[Path]) -> Iterable[Path]:
    for place in places:
        if not place.is_dir():
            raise RunDirectoryError(
                f"{place}: there is no such directory; nothing was merged", code=ErrorCode.NOT_FOUND
            )
        yield from sorted(place.rglob(CELL))


def _rank(record: CellRecord) -> tuple[bool, float]:
    started_s = record.attempts[-1].started_wall_s if record.attempts else 0.0
    return record.finished, started_s


def _result(name: str, plan: PlanRecord, record: CellRecord | None) -> CellResult:
    if record is None:
        return missing(name, "its cell.json is missing")
    last = record.attempts[-1] if record.attempts else None
    if last is None or (not record.finished and (last.exit_code is None or last.verdict)):
        cut = "it was interrupted before it was decided"
        return missing(name, cut, record.cell, record.attempts)
    return result(Rules(record.cell, plan.policy, plan.waivers), record.attempts)


def _left_out(cells: int, allow_partial: bool) -> str:
    # A green run of half a plan must not look complete.
    if not cells:
        return ""
    accepted = "accepted by" if allow_partial else "not accepted without"
    return f"; {cells} more left out by the budget ({accepted} --allow-partial)"


def _headline(cells: Sequence[CellResult], failed: Sequence[CellResult]) -> str:
    if failed:
        worst = failed[0]
        return f"{worst.id}: {worst.word}; {len(failed)} of {counted(len(cells))} failed"
    neutral = sum(cell.state is CellState.NEUTRAL for cell in cells)
    waived = sum(bool(entry.waived) for cell in cells for entry in cell.findings)
    said = f"{len(cells) - neutral} of {counted(len(cells))} passed"
    if neutral:
        said += f", {neutral} undecided"
    return said + (f"; {times(waived, 'known finding')} waived" if waived else "")


def _notes(plan: PlanRecord, found: Found, attempts: Sequence[Attempt]) -> Iterable[str]:
    if plan.note:
        yield plan.note
    if attempts:
        today = max(attempt.started_on for attempt in attempts)
        for waiver in expired(plan.waivers, today):
            yield (
                f"the waiver of {waiver.kind} {waiver.subject} expired on "
                f"{waiver.expires.isoformat()} and waives nothing ({waiver.link})"
            )
    yield from found.notes
    strangers = sorted(set(found.cells) - set(plan.cells))
    if strangers:
        yield f"not in the plan, left out: {', '.join(strangers)}"
