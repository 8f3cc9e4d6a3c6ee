"""Cells in, one night out: every planned cell has a row, and a lost one is MISSING.

The order of words in which the worst decides: what was found outranks what could not be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hybridbench.errors import ExitCode, RunDirectoryError
from hybridbench.nightly.baseline import GoodNight, against
from hybridbench.nightly.cells import Cell, CellKind
from hybridbench.nightly.facts import stored_waivers
from hybridbench.nightly.plan import Needs, Waiver
from hybridbench.nightly.policy import CellState, Outcome, Rules, day_of, outcome
from hybridbench.nightly.records import (
    NIGHT_SCHEMA,
    AttemptRecord,
    CellOfNight,
    CellRecord,
    FindingOfNight,
    NightRecord,
    PlanRecord,
    another_engine,
    read_cell,
    stored_policy,
)
from hybridbench.nightly.waivers import expired
from hybridbench.rundir.layout import CELL

# The first of these that a red cell says is the night's.
PRECEDENCE: Final = (
    "LEAK",
    "INVARIANT",
    "REGRESSION",
    "CRASHED",
    "DEGRADED",
    "MISSING",
    "INVALID",
    "INCONCLUSIVE",
)


@dataclass(frozen=True)
class Found:
    """The cells found below some directories, and what is to be said about finding them."""

    cells: dict[str, CellRecord]
    notes: tuple[str, ...] = ()


def find_cells(places: Sequence[Path]) -> Found:
    """All cells below ``places``; of one that is there twice the finished, then the later one.

    Raises:
        RunDirectoryError: a directory does not exist, or the cells are of two plans or engines.
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
                f"{path} is of plan {record.plan.name} {record.plan.hash}, and other cells are of "
                f"{other.plan.name} {other.plan.hash}: merge the cells of one night"
            )
        if another_engine(other.engine, record.engine):
            raise RunDirectoryError(
                f"{path} is of engine {record.engine[:12]}, and {other.id} is of "
                f"{other.engine[:12]}: merge the cells of one engine"
            )
        before = cells.get(record.id)
        if before is not None:
            notes.append(f"{record.id} was found twice; the finished and later one counts")
        if before is None or _rank(record) > _rank(before):
            cells[record.id] = record
    return Found(cells, tuple(notes))


def merged(
    plan: PlanRecord, found: Found, nights: Sequence[GoodNight], *, allow_partial: bool = False
) -> NightRecord:
    """The night of ``plan`` from the cells that were found, told against the last good ones.

    A night of which the budget left cells out is not green unless ``allow_partial`` says so.
    """
    policy = stored_policy(plan)
    cells = [_cell(name, plan, found.cells.get(name)) for name in plan.cells]
    attempts = [a for cell in cells for a in cell.attempts]
    started_s = min((a.started_wall_s for a in attempts), default=0.0)
    # A night that is merged again must not meet itself, nor one that came after it.
    before = [good for good in nights if good.night.started_wall_s < started_s]
    cells = [against(cell, before, policy.throughput_ratio) for cell in cells]
    reds = [cell for cell in cells if cell.state in (CellState.FAIL, CellState.MISSING)]
    reds.sort(key=lambda cell: PRECEDENCE.index(cell.word))
    passed = any(cell.state == CellState.PASS for cell in cells)
    whole = allow_partial or not plan.left_out
    green = passed and whole and not reds
    undecided = int(ExitCode.INCONCLUSIVE)
    rehearsed = _rehearsed(cells)
    return NightRecord(
        schema=NIGHT_SCHEMA,
        plan=plan,
        started_wall_s=started_s,
        ended_wall_s=max((a.ended_wall_s for a in attempts), default=0.0),
        good=green and not rehearsed,
        # Neutral cells do no harm to a night, but no night is made of nothing else.
        exit_code=reds[0].exit_code if reds else int(ExitCode.CLEAN) if green else undecided,
        word="FAIL" if reds else "PASS" if green else "INCONCLUSIVE",
        headline=_headline(cells, reds) + _left_out(len(plan.left_out), allow_partial),
        cells=tuple(cells),
        notes=tuple(_notes(plan, found, attempts)),
        rehearsed=rehearsed,
        allow_partial=allow_partial,
    )


def plan_of(found: Found, places: Sequence[Path]) -> PlanRecord:
    """The plan that the cells carry.

    Raises:
        RunDirectoryError: there is no cell to carry one.
    """
    for record in found.cells.values():
        return record.plan
    names = ", ".join(str(place) for place in places)
    raise RunDirectoryError(
        f"{names}: no {CELL} is in there; name the directories that `hybridbench nightly cell "
        "--out` wrote, or --plan to have every cell told as MISSING"
    )


def _rehearsed(cells: Sequence[CellOfNight]) -> tuple[str, ...]:
    """The defects that ``--defect`` put into the soaks, beside the version that the plan names."""
    soaks = (c.cell["versions"] for c in cells if c.cell.get("kind") == CellKind.SOAK)
    return tuple(dict.fromkeys(str(name) for versions in soaks for name in versions[1:]))


def headline_of(said: Outcome) -> str:
    """What a cell says in a sentence; of a leak that is waived, that it is."""
    attempt = said.attempt
    if attempt is None:
        return said.notes[0]
    waived = sum(entry.waiver is not None for entry in said.findings)
    if waived and said.word != attempt.verdict:
        return f"{said.word} but for what is waived ({waived}); as it ran: {attempt.headline}"
    return attempt.headline


def counted(cells: int) -> str:
    """``1 cell``, ``4 cells``."""
    return "1 cell" if cells == 1 else f"{cells} cells"


def _cell_files(places: Sequence[Path]) -> Iterable[Path]:
    for place in places:
        if not place.is_dir():
            raise RunDirectoryError(f"{place}: there is no such directory; nothing was merged")
        yield from sorted(place.rglob(CELL))


def _rank(record: CellRecord) -> tuple[bool, float]:
    started_s = record.attempts[-1].started_wall_s if record.attempts else 0.0
    return record.finished, started_s


def _cell(name: str, plan: PlanRecord, record: CellRecord | None) -> CellOfNight:
    if record is None:
        return _missing(name, "no cell.json came back from it", None)
    last = record.attempts[-1] if record.attempts else None
    if not record.finished and (last is None or last.exit_code is None or last.verdict):
        return _missing(name, "it was cut off before it was decided", record)
    rules = Rules(_planned(record), stored_policy(plan), stored_waivers(plan))
    return _told(record, outcome(rules, record.attempts))


def _missing(name: str, why: str, record: CellRecord | None) -> CellOfNight:
    return CellOfNight(
        id=name,
        state=CellState.MISSING.value,
        word="MISSING",
        exit_code=int(ExitCode.INVALID),
        headline=why,
        cell={} if record is None else record.cell,
        attempts=() if record is None else record.attempts,
    )


def _planned(record: CellRecord) -> Cell:
    """The cell as the policy wants to know it."""
    cell = record.cell
    return Cell(
        id=record.id,
        kind=CellKind(cell["kind"]),
        profile=str(cell["profile"]),
        model=str(cell["model"]),
        versions=tuple(cell["versions"]),
        seed=int(cell["seed"]),
        duration_s=float(cell["duration_s"]),
        least_s=float(cell["duration_s"]),
        needs=Needs(),
    )


def _told(record: CellRecord, said: Outcome) -> CellOfNight:
    attempt = said.attempt
    if attempt is None:
        return _missing(record.id, said.notes[0], record)
    return CellOfNight(
        id=record.id,
        state=said.state.value,
        word=said.word,
        exit_code=said.exit_code,
        headline=headline_of(said),
        cell=record.cell,
        run=attempt.run,
        attempts=record.attempts,
        findings=tuple(
            FindingOfNight(
                finding=stored,
                waived="" if entry.waiver is None else _waived(entry.waiver),
                why_not=entry.why_not,
            )
            for stored, entry in zip(attempt.findings, said.findings, strict=True)
        ),
        notes=said.notes,
        metrics=attempt.metrics,
        growth=attempt.growth,
        machine_class=attempt.machine_class,
        engine=attempt.engine,
    )


def _waived(waiver: Waiver) -> str:
    return f"until {waiver.expires.isoformat()}: {waiver.reason} ({waiver.link})"


def _left_out(cells: int, allow_partial: bool) -> str:
    # A green night of half a plan must not read as one of all of it.
    if not cells:
        return ""
    accepted = "accepted by" if allow_partial else "not accepted without"
    return f"; {cells} more left out by the budget ({accepted} --allow-partial)"


def _headline(cells: Sequence[CellOfNight], reds: Sequence[CellOfNight]) -> str:
    if reds:
        worst = reds[0]
        return f"{worst.id}: {worst.word}; {len(reds)} of {counted(len(cells))} red"
    neutral = sum(cell.state == CellState.NEUTRAL for cell in cells)
    waived = sum(bool(entry.waived) for cell in cells for entry in cell.findings)
    said = f"{len(cells) - neutral} of {counted(len(cells))} passed"
    if neutral:
        said += f", {neutral} undecided"
    findings = "finding" if waived == 1 else "findings"
    return said + (f"; {waived} known {findings} waived" if waived else "")


def _notes(plan: PlanRecord, found: Found, attempts: Sequence[AttemptRecord]) -> Iterable[str]:
    if plan.note:
        yield plan.note
    if attempts:
        today = max(day_of(attempt) for attempt in attempts)
        for waiver in expired(stored_waivers(plan), today):
            yield (
                f"the waiver of {waiver.kind} {waiver.subject} expired on "
                f"{waiver.expires.isoformat()} and waives nothing ({waiver.link})"
            )
    yield from found.notes
    strangers = sorted(set(found.cells) - set(plan.cells))
    if strangers:
        yield f"cells that the plan does not have are left out: {', '.join(strangers)}"
