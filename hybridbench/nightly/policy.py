"""What a cell's runs come to, and whether it is run again before it turns the night red; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from hybridbench.errors import ExitCode
from hybridbench.nightly.cells import Cell, CellKind
from hybridbench.nightly.plan import Policy, Waiver
from hybridbench.nightly.records import AttemptRecord, stored_finding
from hybridbench.nightly.waivers import Judged, judged, kind_left
from hybridbench.records.verdict import EXIT_CODE, VerdictKind
from hybridbench.runs.plan import default_extend_s
from hybridbench.units import format_duration

SLOWER: Final = "slower"  # the kind of finding that a comparison's throughput or cost makes
# What chance alone can make; everything else is counted.
STATISTICAL: Final = frozenset(
    {"growth", "observer-grows", "decay", "below-threshold", "threshold", SLOWER}
)
# Far from the seeds that people choose, so that a rerun never repeats another cell.
_OTHER_SEED: Final = 7919
_ATTEMPTS_MAX: Final = 5
_WHY: Final = {
    "rerun": "run again with another seed, as only statistics had found something",
    "retry": "run once more, as the run before proved nothing",
    # Nights of older versions have such runs; no run is made for this any more.
    "extended": "run longer, as the run before was undecided",
}


class Why(StrEnum):
    """Why an attempt was made."""

    FIRST = "first"
    RERUN = "rerun"  # another seed, after a red that only statistics saw
    RETRY = "retry"  # the run before proved nothing


class CellState(StrEnum):
    """What a cell means for its night."""

    PASS = "pass"  # noqa: S105  # no password
    FAIL = "fail"
    NEUTRAL = "neutral"
    MISSING = "missing"  # there is no verdict: never a pass


@dataclass(frozen=True)
class Next:
    """The attempt that the policy asks for."""

    why: Why
    seed: int
    duration_s: float
    extend_s: float = 0.0  # how long it may go on undecided, if there is time


@dataclass(frozen=True)
class Outcome:
    """What the attempts of a cell come to."""

    state: CellState
    word: str  # the verdict in one word, after waivers
    exit_code: int
    attempt: AttemptRecord | None  # the one that decides
    findings: tuple[Judged, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rules:
    """Policy and waivers of a plan for one cell."""

    cell: Cell
    policy: Policy
    waivers: tuple[Waiver, ...]

    def judged(self, attempt: AttemptRecord) -> tuple[Judged, ...]:
        """The attempt's findings, each with its waiver; waivers hold on the day it began."""
        findings = [stored_finding(record) for record in attempt.findings]
        names = Path(self.cell.profile).stem, Path(self.cell.model).name
        return judged(findings, self.waivers, names, day_of(attempt))

    def kind(self, attempt: AttemptRecord) -> VerdictKind | None:
        """The verdict that is left after waivers; None for an attempt without a verdict."""
        if not attempt.verdict:
            return None
        if attempt.verdict != VerdictKind.CLEAN and not attempt.findings:
            return VerdictKind(attempt.verdict)
        return kind_left(self.judged(attempt))


def day_of(attempt: AttemptRecord) -> date:
    """The day on which ``attempt`` began, in UTC."""
    return datetime.fromtimestamp(attempt.started_wall_s, UTC).date()


def next_attempt(rules: Rules, attempts: Sequence[AttemptRecord]) -> Next | None:
    """The run that is to be made after ``attempts``, all of which have ended; None: it is decided.

    A red of statistics alone is tried once with another seed, a run that proved nothing once more.
    Each happens once in the life of a cell.  An undecided soak went on by itself for as long as it
    might, and an undecided comparison took its longest time: neither is made again.
    """
    cell, policy = rules.cell, rules.policy
    if not attempts:
        return Next(Why.FIRST, cell.seed, cell.duration_s, extension_s(cell, policy))
    last = attempts[-1]
    done = {attempt.why for attempt in attempts}
    extend_s = extension_s(cell, policy)
    kind = rules.kind(last)
    if kind is None or len(attempts) >= _ATTEMPTS_MAX:
        return None
    if kind is VerdictKind.INVALID and policy.rerun_invalid and Why.RETRY not in done:
        return Next(Why.RETRY, last.seed, last.duration_s, extend_s)
    if _only_statistics(rules, last) and policy.rerun_statistical_leak and Why.RERUN not in done:
        return Next(Why.RERUN, cell.seed + _OTHER_SEED, last.duration_s, extend_s)
    return None


def extension_s(cell: Cell, policy: Policy) -> float:
    """How long a run of ``cell`` may go on while it is undecided, given the time.

    A comparison has interim analyses of its own, and its length is the longest time it may take.
    """
    if cell.kind is CellKind.COMPARE:
        return 0.0
    return default_extend_s(cell.duration_s) if policy.extend is None else policy.extend


def outcome(rules: Rules, attempts: Sequence[AttemptRecord]) -> Outcome:
    """What a finished cell says.

    A red that counting saw decides; a red of statistics needs a second run that agrees, if the
    policy asks for one.  Otherwise the last run speaks.
    """
    last = attempts[-1]
    if not last.verdict:
        said = last.complaint or f"it ended with exit code {last.exit_code}"
        return Outcome(
            CellState.MISSING, "MISSING", int(EXIT_CODE[VerdictKind.INVALID]), None, (), (said,)
        )
    reds = [attempt for attempt in attempts if _is_red(rules.kind(attempt))]
    unconfirmed = reds[-1] if len(reds) == 1 and reds[0] is not last else None
    deciding = reds[-1] if reds and unconfirmed is None else last
    kind = rules.kind(deciding) or VerdictKind.INVALID
    # Whatever a comparison found, it is worse than the version beside it.
    worse = rules.cell.kind is CellKind.COMPARE and _is_red(kind)
    return Outcome(
        state=_state(kind, rules.policy),
        word="REGRESSION" if worse else kind.value,
        exit_code=int(ExitCode.REGRESSION) if worse else _exit_code(kind, rules.policy),
        attempt=deciding,
        findings=rules.judged(deciding),
        notes=(*_notes(attempts, unconfirmed), *_undecided(rules, deciding)),
    )


def _undecided(rules: Rules, attempt: AttemptRecord) -> tuple[str, ...]:
    """That a run ended undecided because it was not given the time that the plan allows."""
    if rules.kind(attempt) is not VerdictKind.INCONCLUSIVE or attempt.extend_s is None:
        return ()
    wanted_s = extension_s(rules.cell, rules.policy)
    if attempt.extend_s >= wanted_s:
        return ()
    allowed = "no time" if not attempt.extend_s else f"only {format_duration(attempt.extend_s)}"
    return (f"undecided, and the budget left {allowed} to extend it",)


def _only_statistics(rules: Rules, attempt: AttemptRecord) -> bool:
    """Whether it is red, and everything that makes it so is a matter of chance."""
    if not _is_red(rules.kind(attempt)):
        return False
    counted = zip(attempt.findings, rules.judged(attempt), strict=True)
    reds = [
        record
        for record, entry in counted
        if entry.waiver is None and _is_red(entry.finding.verdict)
    ]
    return bool(reds) and not any(record.exact for record in reds)


def _is_red(kind: VerdictKind | None) -> bool:
    return kind in (
        VerdictKind.LEAK,
        VerdictKind.DEGRADED,
        VerdictKind.INVARIANT,
        VerdictKind.CRASHED,
    )


def _state(kind: VerdictKind, policy: Policy) -> CellState:
    if kind is VerdictKind.CLEAN:
        return CellState.PASS
    if kind is VerdictKind.INCONCLUSIVE and policy.inconclusive == "neutral":
        return CellState.NEUTRAL
    return CellState.FAIL


def _exit_code(kind: VerdictKind, policy: Policy) -> int:
    return 0 if _state(kind, policy) is CellState.NEUTRAL else int(EXIT_CODE[kind])


def _notes(attempts: Sequence[AttemptRecord], unconfirmed: AttemptRecord | None) -> tuple[str, ...]:
    notes = []
    if unconfirmed is not None:
        notes.append(
            f"not confirmed: {unconfirmed.headline} (seed {unconfirmed.seed}); the run with seed "
            f"{attempts[-1].seed} does not show it"
        )
    notes += [_WHY[a.why] for a in attempts if a.why in _WHY]
    notes += [
        f"run {a.number} was extended by {format_duration(a.extended_s)} beyond its "
        f"{format_duration(a.duration_s)}, as it was undecided"
        for a in attempts
        if a.extended_s
    ]
    notes += [
        f"cut off and gone on with, run {a.number} in {a.segments} segments: each has a worker of "
        "its own, and no slope crosses a cut"
        for a in attempts
        if a.segments > 1
    ]
    return tuple(notes)
