"""Records of a nightly run: cells, attempts, cell.json and night.json.

A plan's machine needs, policy and waivers are stored as written, so that the plan file and
cell.json share one declaration: pydantic validates the file, msgspec reads cell.json.  Their
records need slots, because without them msgspec would write only the keys that it has read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from hybridbench.foundation.foreign import TIME_S_MAX
from hybridbench.foundation.setting_types import (
    AutoDurationS,
    Count,
    CountOrZero,
    Day,
    Flag,
    Name,
    ProfileGroup,
    Share,
    SizeBytes,
    Text,
)
from hybridbench.foundation.units import PER_HOUR, parse_amount
from hybridbench.records.finding import Finding, Rate, VerdictKind
from hybridbench.records.manifest import INT64, Int64, Wall
from hybridbench.records.verdict import leak_kind

CELL_SCHEMA: Final = "hybridbench.cell/1"
NIGHTLY_SCHEMA: Final = "hybridbench.night/1"

# Limited to what a clock and the rest of the bench can represent.
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=TIME_S_MAX)]

_WORDS: Final = re.compile(r"[A-Za-z][\w ]*/[\w ]+")


class CellKind(StrEnum):
    """The command that a cell runs."""

    SOAK = "soak"
    COMPARE = "compare"
    WATCH = "watch"


class CellState(StrEnum):
    """What a cell's result means for its nightly run."""

    PASS = "pass"  # noqa: S105  # no password
    FAIL = "fail"
    NEUTRAL = "neutral"
    MISSING = "missing"  # no verdict: never a pass


class AttemptReason(StrEnum):
    """Why an attempt was made."""

    FIRST = "first"
    RERUN = "rerun"  # another seed, after a failure that is only statistical
    RETRY = "retry"  # the previous attempt was INVALID


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs(ProfileGroup):
    """A cell's machine requirements, for the scheduler that places it.

    ``labels`` are those of a GitHub runner.  Without labels the runner is ubuntu-latest, or a
    self-hosted one if ``gpu`` is set.
    """

    gpu: Annotated[CountOrZero, INT64] = 0
    cores: Annotated[Count, INT64] = 2
    memory_bytes: Annotated[SizeBytes, INT64] = 0
    labels: tuple[Text, ...] = ()


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a nightly run: one soak, or one comparison with all versions on one machine.

    Attributes:
        profile: empty for a watched run, whose ``model`` is the name of its target.
        versions: one for a soak, two or more for a comparison, none for a watched run.
        duration_s: length of the traffic; for a comparison, the maximum.
        settings: overridden profile keys.
        watch: options and command of a watched run, without secrets.
        work: hash of everything except length and seed; only cells with the same hash are compared
            between nightly runs.
    """

    id: str
    kind: CellKind
    profile: str
    model: str
    versions: tuple[str, ...]
    seed: Int64
    duration_s: Seconds
    ballast: Int64 | None = None
    gc: str | None = None
    device: str | None = None
    settings: dict[str, str] = msgspec.field(name="set", default_factory=dict)
    thresholds: tuple[str, ...] = ()
    block_s: Seconds | None = None
    margin: float | None = None
    needs: Needs = Needs()
    watch: tuple[str, ...] = ()
    work: str = ""


class MaxRate(msgspec.Struct, frozen=True):
    """``value`` of ``unit`` per ``per``, named as in a finding's rates."""

    value: float
    unit: str
    per: str


def parse_max_rate(text: str) -> MaxRate:
    """Parse ``2GiB/h`` or ``0.9 nodes/evicted node``, with the finding's units.

    Raises:
        ValueError: part of a sentence, with examples of accepted forms.
    """
    amount = parse_amount(text)
    if amount is None or amount.minus or not _WORDS.fullmatch(f"{amount.unit}/{amount.per}"):
        raise ValueError(
            f"{text!r} is not a rate; write 200MiB/h, 4KiB/request or 1.1 slots/retract"
        )
    size = amount.in_bytes
    if size is None:
        return MaxRate(amount.number, amount.unit, amount.per)
    if amount.per in ("min", "s"):
        return MaxRate(size * PER_HOUR[amount.per], "B", "h")
    return MaxRate(float(size), "B", amount.per)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy(ProfileGroup):
    """How a nightly run treats cells that fail or stay undecided.

    Attributes:
        rerun_statistical_leak: rerun a LEAK or DEGRADED that is based only on statistics, once,
            with another seed; the cell fails only if that run also fails.  Exact findings fail it
            at once.
        rerun_invalid: repeat an INVALID run (such as on a busy machine) once.
        extend: seconds by which an undecided soak may exceed its length; None (auto) is the default
            of ``soak``, 0 disables extensions.  A comparison ends when it is decided.
        inconclusive: state of a cell that stays undecided.
        throughput_ratio: a cell fails below this share of the last green run's tokens per second;
            0 only reports it.  Nightly runs are not interleaved, so it includes machine drift.
    """

    rerun_statistical_leak: Flag = True
    rerun_invalid: Flag = True
    extend: AutoDurationS = None
    inconclusive: Literal["neutral", "fail"] = "neutral"
    throughput_ratio: Share = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiver(ProfileGroup):
    """An exemption of one known finding, and no other, from failing a cell until ``expires``.

    ``kind``, ``subject`` and ``driver`` are the finding's signature in verdict.json; subject,
    driver, profile and model may contain ``*``.  Faster growth than ``max_rate`` (``2GiB/h``,
    ``1.1 slots/retract``) is not waived.
    """

    kind: Name
    subject: Text
    driver: Text = "*"
    profile: Text = "*"
    model: Text = "*"
    max_rate: Text | None = None
    expires: Day
    link: Text
    reason: Text


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plan stored with every cell, so that cells can be merged without the plan."""

    name: str
    hash: str
    cells: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    note: str = ""
    false_alarms: str = ""
    policy: Policy = Policy()
    waivers: tuple[Waiver, ...] = ()


@dataclass(frozen=True)
class AttemptFinding:
    """A finding of an attempt; its evidence stays in the run."""

    kind: str
    verdict: VerdictKind
    subject: str
    title: str = ""
    driver: str | None = None
    rates: tuple[Rate, ...] = ()
    exact: bool = True  # needs no statistics, so a rerun with another seed adds nothing

    @property
    def signature(self) -> tuple[str, str, str]:
        """The finding's identity across nightly runs."""
        return leak_kind(self.kind), self.subject, self.driver or ""

    def rate_in(self, unit: str, per: str) -> Rate | None:
        """Return the rate in ``unit`` per ``per``, or None."""
        return next((r for r in self.rates if (r.unit, r.per) == (unit, per)), None)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a cell; without an exit code it is in progress or was interrupted."""

    number: int
    reason: AttemptReason
    seed: Int64
    duration_s: Seconds
    started_wall_s: Wall
    command: tuple[str, ...]
    run: str = ""  # the run's directory, relative to the cell's
    exit_code: int | None = None
    verdict: str = ""  # empty: none, and ``complaint`` says why
    headline: str = ""
    complaint: str = ""
    findings: tuple[AttemptFinding, ...] = ()
    metrics: dict[str, float] = {}  # medians over the judged window
    growth: dict[str, Rate] = {}  # of the gated metrics, per hour
    judged_s: Seconds = 0.0
    segments: int = 1  # more than one: it was interrupted and resumed
    extend_s: Seconds  # maximum extension while undecided
    extended_s: Seconds = 0.0  # actual extension
    machine_class: str = ""
    engine: str = ""  # hash of the engine files that ran
    ended_wall_s: Wall = 0.0

    def __post_init__(self) -> None:
        if self.verdict:
            VerdictKind(self.verdict)

    @property
    def started_on(self) -> date:
        """The day on which the attempt started, in UTC."""
        return datetime.fromtimestamp(self.started_wall_s, UTC).date()


class CellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """cell.json."""

    schema: str = CELL_SCHEMA
    plan: PlanRecord
    cell: Cell
    attempts: tuple[Attempt, ...] = ()
    finished: bool = False
    engine: str = ""  # hash of all files of the engine; empty: any

    @property
    def id(self) -> str:
        return self.cell.id


class CellFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding together with the plan's waiver and the comparison with the last green run."""

    finding: AttemptFinding
    waived: str = ""  # expiry, reason and link; empty: not waived
    waived_until: date | None = None
    why_not: str = ""  # why a waiver that names it does not apply
    news: str = ""  # whether new or known, with the run; empty: neither
    is_new: bool = False


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One cell in night.json, complete enough to serve as the next nightly run's baseline."""

    id: str
    state: CellState
    word: str
    exit_code: int
    headline: str
    cell: Cell | None = None  # None: its cell.json is missing
    run: str = ""
    attempts: tuple[Attempt, ...] = ()
    findings: tuple[CellFinding, ...] = ()
    notes: tuple[str, ...] = ()
    metrics: dict[str, float] = {}
    growth: dict[str, Rate] = {}
    machine_class: str = ""
    engine: str = ""
    baseline: str = ""  # the nightly run it was compared with
    changes: tuple[str, ...] = ()
    throughput_ratio: float | None = None  # relative to the baseline
    gone: tuple[AttemptFinding, ...] = ()

    @property
    def judged_s(self) -> float:
        """Judged time of all attempts together."""
        return sum(attempt.judged_s for attempt in self.attempts)


class NightlyRun(msgspec.Struct, frozen=True, kw_only=True):
    """night.json."""

    schema: str = NIGHTLY_SCHEMA
    plan: PlanRecord
    started_wall_s: Wall
    ended_wall_s: Wall
    green: bool
    exit_code: int
    word: str
    headline: str
    cells: tuple[CellResult, ...] = ()
    notes: tuple[str, ...] = ()
    rehearsed: tuple[str, ...] = ()  # defects injected into every soak; if any, never a baseline
    allow_partial: bool = False  # cells dropped by the budget were accepted


class PlanHead(msgspec.Struct, frozen=True):
    """The part of a plan that a listing shows."""

    name: str = ""


class NightlyHead(msgspec.Struct, frozen=True):
    """The part of night.json that a listing shows; decoding skips the rest."""

    word: str = ""
    headline: str = ""
    exit_code: int | None = None
    started_wall_s: Wall | None = None
    ended_wall_s: Wall | None = None
    plan: PlanHead = PlanHead()


class AttemptHead(msgspec.Struct, frozen=True):
    """When an attempt began."""

    started_wall_s: Wall | None = None


class CellHead(msgspec.Struct, frozen=True):
    """The part of cell.json that a listing shows, for a nightly run that was not merged."""

    plan: PlanHead = PlanHead()
    attempts: tuple[AttemptHead, ...] = ()


def counted(cells: int) -> str:
    """``1 cell``, ``4 cells``."""
    return "1 cell" if cells == 1 else f"{cells} cells"


def attempt_finding(finding: Finding) -> AttemptFinding:
    """Return ``finding`` as a cell stores it."""
    return AttemptFinding(
        kind=finding.kind,
        verdict=finding.verdict,
        subject=finding.subject,
        title=finding.title,
        driver=finding.driver,
        rates=finding.rates,
        exact=finding.exact,
    )
