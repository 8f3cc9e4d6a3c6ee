"""Pure functions: the result of a cell's attempts after waivers, and whether another is due."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from hybridbench.analysis.findings.words import times
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.units import format_duration
from hybridbench.records.finding import VerdictKind
from hybridbench.records.nightly import (
    Attempt,
    AttemptFinding,
    AttemptReason,
    Cell,
    CellFinding,
    CellKind,
    CellResult,
    CellState,
    Policy,
    Waiver,
    parse_max_rate,
)
from hybridbench.records.verdict import EXIT_CODE, leak_kind, precedence
from hybridbench.runs.plan import default_extend_s

SLOWER: Final = "slower"  # kind of finding for a comparison's throughput or cost
# Far from the seeds that users choose, so that a rerun never repeats another cell.
_OTHER_SEED: Final = 7919
_NOTE_ON: Final = {
    AttemptReason.RERUN: "run again with another seed, as only statistics had found something",
    AttemptReason.RETRY: "run again, because the previous run was INVALID",
}
_GROWTH, _UNDECIDED = "growth", "undecided"
_FAILURES: Final = frozenset(
    {
        VerdictKind.LEAK,
        VerdictKind.DEGRADED,
        VerdictKind.INVARIANT,
        VerdictKind.CORRUPT,
        VerdictKind.CRASHED,
    }
)


@dataclass(frozen=True)
class NextAttempt:
    """The attempt that the policy requires next."""

    reason: AttemptReason
    seed: int
    duration_s: float
    extend_s: float = 0.0  # how long it may be extended while undecided, if there is time


@dataclass(frozen=True)
class Rules:
    """Policy and waivers of a plan for one cell."""

    cell: Cell
    policy: Policy
    waivers: tuple[Waiver, ...]

    def judged(self, attempt: Attempt) -> tuple[CellFinding, ...]:
        """Return the attempt's findings, each with its waiver.

        A waiver applies to attempts that began by the end of the day on which it expires.
        """
        names = Path(self.cell.profile).stem, Path(self.cell.model).name
        waivers = [
            waiver
            for waiver in self.waivers
            if _matches(names[0], waiver.profile) and _matches(names[1], waiver.model)
        ]
        return tuple(_judged(found, waivers, attempt.started_on) for found in attempt.findings)

    def kind(self, attempt: Attempt) -> VerdictKind | None:
        """Return the verdict after waivers; None for an attempt without a verdict."""
        if not attempt.verdict:
            return None
        if attempt.verdict != VerdictKind.CLEAN and not attempt.findings:
            return VerdictKind(attempt.verdict)
        return worst_kind(entry.finding for entry in self.judged(attempt) if not entry.waived)


def worst_kind(findings: Iterable[AttemptFinding]) -> VerdictKind:
    """Return the verdict that follows from ``findings``."""
    worst = min(findings, key=lambda f: precedence(f.verdict, exact=f.exact), default=None)
    return VerdictKind.CLEAN if worst is None else worst.verdict


def expired(waivers: Iterable[Waiver], today: date) -> tuple[Waiver, ...]:
    """Return the waivers that have expired."""
    return tuple(waiver for waiver in waivers if waiver.expires < today)


def next_attempt(rules: Rules, attempts: Sequence[Attempt]) -> NextAttempt | None:
    """Return the run to make after ``attempts``, all of which have ended; None if it is decided.

    A purely statistical failure is rerun with another seed, and an INVALID run is retried, each at
    most once per cell.  Undecided soaks were already extended as far as allowed, and undecided
    comparisons ran for their maximum time: neither is repeated.
    """
    cell, policy = rules.cell, rules.policy
    extend_s = extension_s(cell, policy)
    if not attempts:
        return NextAttempt(AttemptReason.FIRST, cell.seed, cell.duration_s, extend_s)
    last = attempts[-1]
    done = {attempt.reason for attempt in attempts}
    kind = rules.kind(last)
    if kind is None:
        return None
    retried, rerun = AttemptReason.RETRY in done, AttemptReason.RERUN in done
    if kind is VerdictKind.INVALID and policy.rerun_invalid and not retried:
        return NextAttempt(AttemptReason.RETRY, last.seed, last.duration_s, extend_s)
    if _only_statistics(rules, last) and policy.rerun_statistical_leak and not rerun:
        return NextAttempt(AttemptReason.RERUN, cell.seed + _OTHER_SEED, last.duration_s, extend_s)
    return None


def extension_s(cell: Cell, policy: Policy) -> float:
    """Return how long an undecided run of ``cell`` may be extended, if there is time.

    A comparison has interim analyses of its own, and its length is already the maximum.
    """
    if cell.kind is CellKind.COMPARE:
        return 0.0
    return default_extend_s(cell.duration_s) if policy.extend is None else policy.extend


def result(rules: Rules, attempts: Sequence[Attempt]) -> CellResult:
    """Return the result of a finished cell.

    An exact failure decides; a statistical one needs a second run that agrees, if the policy asks
    for one.  Otherwise the last run decides.
    """
    last = attempts[-1]
    if not last.verdict:
        complaint = last.complaint or f"it ended with exit code {last.exit_code}"
        return missing(rules.cell.id, complaint, rules.cell, attempts)
    failed = [attempt for attempt in attempts if rules.kind(attempt) in _FAILURES]
    unconfirmed = failed[-1] if len(failed) == 1 and failed[0] is not last else None
    deciding = failed[-1] if failed and unconfirmed is None else last
    kind = rules.kind(deciding) or VerdictKind.INVALID
    # A failure in a comparison means that a version is worse than the first.
    worse = rules.cell.kind is CellKind.COMPARE and kind in _FAILURES
    word = "REGRESSION" if worse else kind.value
    state = _state(kind, rules.policy)
    code = ExitCode.REGRESSION if worse else EXIT_CODE[kind]
    findings = rules.judged(deciding)
    return CellResult(
        id=rules.cell.id,
        state=state,
        word=word,
        exit_code=0 if state is CellState.NEUTRAL else int(code),
        headline=_headline(word, deciding, findings),
        cell=rules.cell,
        run=deciding.run,
        attempts=tuple(attempts),
        findings=findings,
        notes=(*_notes(attempts, unconfirmed, kind), *_undecided(rules, deciding)),
        metrics=deciding.metrics,
        growth=deciding.growth,
        machine_class=deciding.machine_class,
        engine=deciding.engine,
    )


def missing(
    cell_id: str, headline: str, cell: Cell | None = None, attempts: Sequence[Attempt] = ()
) -> CellResult:
    """Return the result of a cell without a verdict."""
    return CellResult(
        id=cell_id,
        state=CellState.MISSING,
        word="MISSING",
        exit_code=int(ExitCode.INVALID),
        headline=headline,
        cell=cell,
        attempts=tuple(attempts),
    )


def _headline(word: str, attempt: Attempt, findings: Sequence[CellFinding]) -> str:
    """Summarise a cell in a sentence that says whether a finding is waived."""
    waived = sum(bool(entry.waived) for entry in findings)
    if waived and word != attempt.verdict:
        found = times(waived, "waived finding")
        return f"{word} apart from {found}; before waivers: {attempt.headline}"
    return attempt.headline


def _undecided(rules: Rules, attempt: Attempt) -> tuple[str, ...]:
    """Return a note if the run is undecided and had no time for the plan's full extension."""
    if rules.kind(attempt) is not VerdictKind.INCONCLUSIVE:
        return ()
    if attempt.extend_s >= extension_s(rules.cell, rules.policy):
        return ()
    allowed = "no time" if not attempt.extend_s else f"only {format_duration(attempt.extend_s)}"
    return (f"undecided, and the budget left {allowed} to extend it",)


def _only_statistics(rules: Rules, attempt: Attempt) -> bool:
    """Whether the attempt failed, and every failure is only statistical."""
    if rules.kind(attempt) not in _FAILURES:
        return False
    counted = [entry.finding for entry in rules.judged(attempt) if not entry.waived]
    failures = [finding for finding in counted if finding.verdict in _FAILURES]
    return bool(failures) and not any(finding.exact for finding in failures)


def _state(kind: VerdictKind, policy: Policy) -> CellState:
    if kind is VerdictKind.CLEAN:
        return CellState.PASS
    if kind is VerdictKind.INCONCLUSIVE and policy.inconclusive == "neutral":
        return CellState.NEUTRAL
    return CellState.FAIL


def _notes(
    attempts: Sequence[Attempt], unconfirmed: Attempt | None, kind: VerdictKind
) -> Iterable[str]:
    if unconfirmed is not None:
        decided = kind is VerdictKind.CLEAN
        shows = "does not show it" if decided else f"is {kind} and does not rule it out"
        yield (
            f"not confirmed: {unconfirmed.headline} (seed {unconfirmed.seed}); the run with seed "
            f"{attempts[-1].seed} {shows}"
        )
    yield from (_NOTE_ON[a.reason] for a in attempts if a.reason in _NOTE_ON)
    for a in attempts:
        if a.extended_s:
            yield (
                f"run {a.number} was extended by {format_duration(a.extended_s)} beyond its "
                f"{format_duration(a.duration_s)}, as it was undecided"
            )
    for a in attempts:
        if a.segments > 1:
            yield (
                f"interrupted and resumed: run {a.number} has {a.segments} segments, each with its "
                "own worker; no slope is fitted across segments"
            )


def _judged(finding: AttemptFinding, waivers: Sequence[Waiver], today: date) -> CellFinding:
    reasons = []
    for waiver in waivers:
        if not _covers(waiver, finding):
            continue
        why_not = _refusal(waiver, finding, today)
        if not why_not:
            until = f"until {waiver.expires.isoformat()}: {waiver.reason} ({waiver.link})"
            return CellFinding(finding=finding, waived=until, waived_until=waiver.expires)
        reasons.append(why_not)
    return CellFinding(finding=finding, why_not="; ".join(reasons))


def _covers(waiver: Waiver, finding: AttemptFinding) -> bool:
    """Whether ``waiver`` names ``finding``.

    A waiver for growth also covers an undecided finding about the same subject: a known leak moves
    memory, and a run too short to call that growth would otherwise never pass.
    """
    if not _matches(finding.subject, waiver.subject):
        return False
    if waiver.kind == _GROWTH and finding.kind == _UNDECIDED:
        return True
    same_kind = leak_kind(waiver.kind) == leak_kind(finding.kind)
    return same_kind and _matches(finding.driver or "", waiver.driver)


def _matches(name: str, pattern: str) -> bool:
    # Only * is special: the name of a nested container has brackets, as in ``app.kept[][]``.
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def _refusal(waiver: Waiver, finding: AttemptFinding, today: date) -> str:
    """Explain why ``waiver`` does not apply to a finding that it names; empty if it does."""
    if waiver.expires < today:
        return f"its waiver expired on {waiver.expires.isoformat()} ({waiver.link})"
    if waiver.max_rate is None:
        return ""
    most = parse_max_rate(waiver.max_rate)
    rate = finding.rate_in(most.unit, most.per)
    if rate is None:
        return f"its waiver allows {waiver.max_rate}, and the finding has no such rate"
    if finding.kind == _UNDECIDED and not rate.upper <= most.value:
        return f"it may grow faster than its waiver allows ({waiver.max_rate}, {waiver.link})"
    if rate.value > most.value:
        return f"it grows faster than its waiver allows ({waiver.max_rate}, {waiver.link})"
    return ""
