"""Decide from the verdicts so far when a run may stop early, and how far it is extended.

Repeated looks eventually find a leak in any noise, and every fill looks like a leak while it lasts.
So a trend counts only after ``steady`` or half of the planned time, and only if it holds over two
looks; that keeps false stops as rare as false verdicts (detection.md, "When a run may stop early").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybridbench.analysis.facts.window import FIRST_LOOK
from hybridbench.analysis.findings.decay import CostChanged
from hybridbench.analysis.findings.growth import Growth
from hybridbench.foundation.units import format_duration
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.verdict import Verdict, leak_kind

# The two looks that agree must have different data: they must be at least this far apart, both in
# seconds and as a share of the judged time at the later look.
_APART_S = 60.0
_APART_SHARE = 0.1

# A decay must hold over this much more data, as a share of the planned time: hit rates drift for
# minutes, and neighbours' load comes and goes.
_DECAY_APART_SHARE = 0.5


@dataclass(frozen=True)
class InterimVerdict:
    """The verdict ``t_s`` seconds into the run (``judge.judge_so_far``)."""

    t_s: float
    verdict: Verdict


@dataclass(frozen=True)
class StopReason:
    """Why the run ends now: ``word`` for the manifest, ``sentence`` for the user."""

    word: str  # "leak", "bounded", "exhaustion", "decided" or "decay"
    sentence: str


def decide(
    looks: Sequence[InterimVerdict], planned_s: float, steady_at_s: float | None
) -> StopReason | None:
    """Return the reason to stop after the last of ``looks`` (oldest first), or None to continue.

    ``steady_at_s`` is when the engine reported the end of its warm-up; None if it has not.
    """
    if not looks or looks[-1].t_s >= planned_s:
        return None
    stage = _Stage(looks, planned_s, steady_at_s)
    return _exhausted(stage) or _leaks(stage) or _bounded(stage)


@dataclass(frozen=True)
class _Stage:
    """The looks so far, and the times that decide which of them count."""

    looks: Sequence[InterimVerdict]
    planned_s: float
    steady_at_s: float | None

    @property
    def last(self) -> InterimVerdict:
        return self.looks[-1]

    @property
    def judged_s(self) -> float:
        return self.last.t_s - (self.steady_at_s or 0.0)

    def trend_counts(self, look: InterimVerdict) -> bool:
        if self.steady_at_s is not None and look.t_s >= self.steady_at_s:
            return True
        return look.t_s >= FIRST_LOOK * self.planned_s

    def stands(self, holds: Callable[[InterimVerdict], bool], needed_s: float = 0.0) -> bool:
        """Whether ``holds`` was true at every look of a long enough stretch that ends now."""
        needed = max(_APART_S, _APART_SHARE * self.judged_s, needed_s)
        since = self.last.t_s
        for look in reversed(self.looks):
            if not holds(look):
                return False
            since = look.t_s
            if self.last.t_s - since >= needed:
                return True
        return False

    def leaks(self, look: InterimVerdict) -> dict[tuple[str, str], Finding]:
        """Return the leaks of a look that count, by kind and subject."""
        return {
            (leak_kind(finding.kind), finding.subject): finding
            for finding in look.verdict.findings
            if finding.verdict is VerdictKind.LEAK
            and (finding.kind != Growth.kind or self.trend_counts(look))
        }


def _exhausted(stage: _Stage) -> StopReason | None:
    left_s = stage.planned_s - stage.last.t_s
    for finding in stage.leaks(stage.last).values():
        end = finding.basis.exhaustion if isinstance(finding.basis, Growth) else None
        if end is not None and end.expected_s < left_s:
            return StopReason(
                "exhaustion",
                f"at its present growth {finding.subject} reaches its limit in "
                f"{format_duration(end.expected_s)}, before the planned end",
            )
    return None


def _leaks(stage: _Stage) -> StopReason | None:
    def held_at(key: tuple[str, str]) -> Callable[[InterimVerdict], bool]:
        return lambda look: key in stage.leaks(look)

    for key, finding in stage.leaks(stage.last).items():
        if stage.stands(held_at(key)):
            return StopReason("leak", f"two looks in a row agree: {finding.title}")
    return None


def _bounded(stage: _Stage) -> StopReason | None:
    """Stop if two looks after ``steady`` are CLEAN and the profile's required traffic was seen."""
    steady_at_s = stage.steady_at_s
    if steady_at_s is None:
        return None

    def clean(look: InterimVerdict) -> bool:
        return (
            look.t_s >= steady_at_s
            and look.verdict.kind is VerdictKind.CLEAN
            and bool(look.verdict.metrics)
        )

    covered = all(row.met for row in stage.last.verdict.coverage.values())
    if not covered or not stage.stands(clean):
        return None
    return StopReason(
        "bounded",
        "two looks in a row bound every gated metric below its limit, "
        f"{format_duration(stage.judged_s)} after steady",
    )


def is_undecided(verdict: Verdict) -> bool:
    """Whether nothing is wrong so far, but growth or a threshold needs more time."""
    return verdict.kind is VerdictKind.INCONCLUSIVE and any(
        finding.verdict is VerdictKind.INCONCLUSIVE and finding.basis.needed_s is not None
        for finding in verdict.findings
    )


def settled(looks: Sequence[InterimVerdict]) -> StopReason | None:
    """Return the reason to end a run that has served its planned time, or None to extend it.

    The first of ``looks`` is the one at the planned end.  It decides alone, unless it is undecided
    or its only problem is a decay.  An extension looks at the data repeatedly, so a trend and its
    absence both need two looks at clearly different data; findings that need no statistics end the
    run at once.
    """
    last = looks[-1]
    decays = _only_decays(last.verdict)
    if len(looks) == 1:
        if is_undecided(last.verdict) or decays:
            return None
        return StopReason("decided", f"decided at the planned end: {last.verdict.kind}")
    stage = _Stage(looks, looks[0].t_s, None)
    leak = _leaks(stage)
    if leak is not None:
        return leak
    if last.verdict.kind is VerdictKind.CLEAN:
        if stage.stands(lambda look: look.verdict.kind is VerdictKind.CLEAN):
            return StopReason(
                "bounded", "two interim analyses in a row find every gated metric below its limit"
            )
        return None
    if decays:
        return _decay(stage)
    by_trend = last.verdict.kind is VerdictKind.LEAK and all(
        f.kind == Growth.kind for f in last.verdict.findings if f.verdict is VerdictKind.LEAK
    )
    if by_trend or is_undecided(last.verdict):
        return None
    headline = last.verdict.full_headline
    return StopReason("decided", f"decided by a single interim analysis: {headline}")


def _only_decays(verdict: Verdict) -> frozenset[str]:
    """Return the subjects that decayed, if nothing worse and no other DEGRADED was found."""
    if verdict.kind is not VerdictKind.DEGRADED:
        return frozenset()
    found = [f for f in verdict.findings if f.verdict is VerdictKind.DEGRADED]
    return frozenset(f.subject for f in found if all(f.kind == CostChanged.kind for f in found))


def _decay(stage: _Stage) -> StopReason | None:
    for subject in sorted(_only_decays(stage.last.verdict)):

        def decayed(look: InterimVerdict, subject: str = subject) -> bool:
            return subject in _only_decays(look.verdict)

        if stage.stands(decayed, _DECAY_APART_SHARE * stage.planned_s):
            return StopReason(
                "decay", f"confirmed by later data: {stage.last.verdict.full_headline}"
            )
    return None
