"""What a cell and a night leave on disk: cell.json and night.json, read back or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from hybridbench.errors import RunDirectoryError
from hybridbench.foreign import (
    DOCUMENT_BYTES_MAX,
    INT_MAX,
    INT_MIN,
    TIME_S_MAX,
    WALL_S_MAX,
    ForeignDataError,
    check_plain,
    read_bytes,
)
from hybridbench.nightly.cells import CellKind
from hybridbench.nightly.plan import Policy, Waiver
from hybridbench.nightly.waivers import parse_max_rate
from hybridbench.records.verdict import Finding, Rate, VerdictKind, leak_kind
from hybridbench.rundir.atomic import write_atomically

CELL_SCHEMA: Final = "hybridbench.cell/1"
NIGHT_SCHEMA: Final = "hybridbench.night/1"


# What a clock and the rest of the bench can take.
Wall = Annotated[float, msgspec.Meta(ge=0.0, le=WALL_S_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=TIME_S_MAX)]
Int64 = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]


class RateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A growth with its interval; None where an end is unknown."""

    value: float | None
    lower: float | None
    upper: float | None
    unit: str
    per: str
    confidence: float = 0.95


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A finding by its signature, its sentence and its rates; the evidence is in the run."""

    kind: str
    verdict: str
    subject: str
    title: str
    driver: str | None = None
    rates: tuple[RateRecord, ...] = ()
    exact: bool = True  # needs no statistics: running again with another seed proves nothing more

    @property
    def signature(self) -> tuple[str, str, str]:
        """What makes it the same finding another night."""
        return leak_kind(self.kind), self.subject, self.driver or ""


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a cell; without an exit code it is under way or was cut off."""

    number: int
    why: str  # "extended" in nights of older versions: a run of its own, longer than the first
    seed: Int64
    duration_s: Seconds
    started_wall_s: Wall
    command: tuple[str, ...]
    run: str = ""  # the run's directory, below the cell's
    exit_code: int | None = None
    verdict: str = ""  # empty: it ended without one, and ``complaint`` says how
    headline: str = ""
    complaint: str = ""
    findings: tuple[FindingRecord, ...] = ()
    metrics: dict[str, float] = {}  # medians over the judged window
    growth: dict[str, RateRecord] = {}  # of the gated metrics, an hour
    judged_s: Seconds = 0.0
    segments: int = 1  # more than one: it was cut off and gone on with
    extend_s: Seconds | None = None  # how long it might go on undecided; None: an older version
    extended_s: Seconds = 0.0  # how long it did
    machine_class: str = ""
    engine: str = ""  # hash of the engine files that ran
    ended_wall_s: Wall = 0.0


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plan that every cell carries, so that cells can be merged without it."""

    name: str
    hash: str
    cells: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    note: str = ""
    false_red: str = ""
    policy: dict[str, Any] = {}
    waivers: tuple[dict[str, Any], ...] = ()


class CellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """cell.json."""

    schema: str
    plan: PlanRecord
    cell: dict[str, Any]
    attempts: tuple[AttemptRecord, ...] = ()
    finished: bool = False
    engine: str = ""  # hash of all files of the engine; empty: an older version did not say

    @property
    def id(self) -> str:
        return str(self.cell["id"])


class FindingOfNight(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with what the plan and the last good night say of it."""

    finding: FindingRecord
    waived: str = ""  # until when, why and where; empty: it counts
    why_not: str = ""  # a waiver names it and does not hold
    news: str = ""


class CellOfNight(msgspec.Struct, frozen=True, kw_only=True):
    """One cell in night.json: enough to be the next night's baseline."""

    id: str
    state: str
    word: str
    exit_code: int
    headline: str
    cell: dict[str, Any] = {}
    run: str = ""
    attempts: tuple[AttemptRecord, ...] = ()
    findings: tuple[FindingOfNight, ...] = ()
    notes: tuple[str, ...] = ()
    metrics: dict[str, float] = {}
    growth: dict[str, RateRecord] = {}
    machine_class: str = ""
    engine: str = ""
    baseline: str = ""  # the night it was compared with
    changes: tuple[str, ...] = ()
    gone: tuple[FindingRecord, ...] = ()


class NightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """night.json."""

    schema: str
    plan: PlanRecord
    started_wall_s: Wall
    ended_wall_s: Wall
    good: bool
    exit_code: int
    word: str
    headline: str
    cells: tuple[CellOfNight, ...] = ()
    notes: tuple[str, ...] = ()
    rehearsed: tuple[str, ...] = ()  # defects that were put into every soak: never a baseline
    allow_partial: bool = False  # cells that the budget left out were accepted


_Record = TypeVar("_Record", CellRecord, NightRecord)


def read_cell(path: Path) -> CellRecord:
    """The cell stored in the file at ``path``.

    Raises:
        RunDirectoryError: it is damaged, or another version wrote it.
    """
    return _read(path, CellRecord, CELL_SCHEMA)


def read_night(path: Path) -> NightRecord:
    """The night stored in the file at ``path``.

    Raises:
        RunDirectoryError: it is damaged, or another version wrote it.
    """
    return _read(path, NightRecord, NIGHT_SCHEMA)


def write_record(path: Path, record: CellRecord | NightRecord) -> None:
    """Replace the file at ``path``, whole or not at all.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(record), indent=2).decode()
    write_atomically(path, text + "\n")


def another_engine(one: str, other: str) -> bool:
    """Whether two cells tell of different engines; one that does not say is as any other."""
    return bool(one and other) and one != other


def finding_record(finding: Finding, *, exact: bool) -> FindingRecord:
    """``finding`` as it is stored."""
    return FindingRecord(
        kind=finding.kind,
        verdict=finding.verdict.value,
        subject=finding.subject,
        title=finding.title,
        driver=finding.driver,
        rates=tuple(rate_record(rate) for rate in finding.rates),
        exact=exact,
    )


def rate_record(rate: Rate) -> RateRecord:
    """``rate`` as it is stored; JSON has no infinity."""
    return RateRecord(
        value=_finite(rate.value),
        lower=_finite(rate.lower),
        upper=_finite(rate.upper),
        unit=rate.unit,
        per=rate.per,
        confidence=rate.confidence,
    )


def stored_finding(record: FindingRecord) -> Finding:
    """``record`` as the analysis wrote it, without its evidence."""
    return Finding(
        kind=record.kind,
        verdict=VerdictKind(record.verdict),
        subject=record.subject,
        title=record.title,
        driver=record.driver,
        rates=tuple(stored_rate(rate) for rate in record.rates),
    )


def stored_rate(record: RateRecord) -> Rate:
    """``record`` with an unknown end at infinity again."""
    return Rate(
        value=float("nan") if record.value is None else record.value,
        lower=float("-inf") if record.lower is None else record.lower,
        upper=float("inf") if record.upper is None else record.upper,
        unit=record.unit,
        per=record.per,
        confidence=record.confidence,
    )


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _read(path: Path, kind: type[_Record], schema: str) -> _Record:
    try:
        data = read_bytes(path, DOCUMENT_BYTES_MAX)
    except ForeignDataError as error:
        raise RunDirectoryError(f"{path} {error}") from error
    except OSError as error:
        raise RunDirectoryError(f"cannot read {path}: {error.strerror}") from error
    try:
        found = msgspec.json.decode(data, type=_Head).schema
        if found != schema:
            raise RunDirectoryError(
                f"{path} has schema {found!r}, and this hybridbench reads {schema!r} only: "
                "read it with the version that wrote it"
            )
        record = msgspec.json.decode(data, type=kind)
        _check(record)
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise RunDirectoryError(f"{path} is damaged: {said}") from error
    return record


def stored_policy(record: PlanRecord) -> Policy:
    """The policy that a cell carries; what older versions could run again is no part of it."""
    kept = {key: value for key, value in record.policy.items() if key != "extend_inconclusive"}
    return Policy(**kept)


def _check(record: CellRecord | NightRecord) -> None:
    """Raise ValueError, TypeError or DecodeError for what the record's own types leave open."""
    stored_policy(record.plan)
    for waiver in record.plan.waivers:
        max_rate = Waiver(**waiver).max_rate
        if max_rate is not None:
            parse_max_rate(max_rate)
    if isinstance(record, CellRecord):
        msgspec.convert(record.cell, _PlannedCell)
        _check_attempts(record.cell, record.attempts)
        return
    for cell in record.cells:
        _check_attempts(cell.cell, cell.attempts)
        for found in (*(entry.finding for entry in cell.findings), *cell.gone):
            VerdictKind(found.verdict)


def _check_attempts(cell: dict[str, Any], attempts: tuple[AttemptRecord, ...]) -> None:
    check_plain(cell)
    for attempt in attempts:
        for finding in attempt.findings:
            VerdictKind(finding.verdict)


class _PlannedCell(msgspec.Struct):
    """What a merge needs of a cell."""

    id: str
    kind: CellKind
    profile: str
    model: str
    versions: tuple[str, ...]
    seed: Int64
    duration_s: Seconds


class _Head(msgspec.Struct):
    schema: str = ""
