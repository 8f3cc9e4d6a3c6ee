"""Combine calls and changes into one answer: the outcome, the leading word, the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hybridbench.analysis.comparison.leaks import GROWTH, leaks_judged
from hybridbench.analysis.comparison.metrics import COMPARED, PRIMARIES, word_of
from hybridbench.analysis.comparison.records import (
    Call,
    Change,
    Comparison,
    ComparisonTerms,
    ComparisonVerdict,
    LeakComparison,
    MetricComparison,
    Outcome,
    Role,
    SideComparison,
    Version,
)
from hybridbench.foundation.metrics import COLLECTIBLE, MEMORY
from hybridbench.records.finding import Rate, VerdictKind

_LEAK: Final = VerdictKind.LEAK.value
_RED = (Change.INTRODUCED, Change.WORSE)
THRESHOLD_MISSED, THRESHOLD_UNDECIDED = "THRESHOLD MISSED", "THRESHOLD UNDECIDED"
# The leading word of a run that leaks, and of comparisons about a leak.
LEAK_WORDS: Final = frozenset((_LEAK, *(f"{_LEAK} {change.value}" for change in Change)))


def answer_of(
    comparison: Comparison,
    other: int,
    metrics: tuple[MetricComparison, ...],
    leaks: tuple[LeakComparison, ...],
) -> SideComparison:
    """Return the answer for one version compared with the first."""
    base, version = comparison.versions[0], comparison.versions[other]
    outcome, word = _outcome(base, version, metrics, leaks)
    return SideComparison(other, version.name, outcome, word, metrics, leaks)


def overall(
    comparison: Comparison, sides: Sequence[SideComparison], terms: ComparisonTerms, rounds: int
) -> ComparisonVerdict:
    """Combine the answers for all versions: the worst one is the overall answer."""
    if not sides:
        raise ValueError("a comparison needs at least two versions")
    verdict = ComparisonVerdict(
        outcome=Outcome.SAME,
        word=Call.SAME.value,
        sides=tuple(sides),
        rounds=rounds,
        terms=terms,
        interleaved=comparison.interleaved,
    )
    worst = verdict.worst()
    return replace(verdict, outcome=worst.outcome, word=worst.word)


def worse_guards(metrics: Sequence[MetricComparison]) -> list[MetricComparison]:
    """Return the guards that are worse beyond their margin."""
    return [m for m in metrics if m.role is Role.GUARD and m.call is Call.WORSE]


def leak_difference(leaks: Sequence[LeakComparison], row: LeakComparison) -> Rate | None:
    """Return how much faster ``row`` leaks in the second version.

    The rate is in bytes per hour if that is certain, from memory growth that changed the same way
    or from the row itself; otherwise it is per event.
    """
    alike = [
        other
        for name in (MEMORY, COLLECTIBLE)
        for other in leaks
        if other.kind == GROWTH and other.subject == name and other.change is row.change
    ]
    for one in (*alike, row):
        rate = one.bytes_per_hour
        if rate is not None and (rate.lower > 0 or rate.upper < 0):
            return rate
    return row.difference


def answer_words() -> list[str]:
    """Return every word that can lead an answer."""
    nouns = dict.fromkeys(map(finding_noun, VerdictKind))
    changes = (*_RED, Change.FIXED, Change.LESS)
    primaries = [metric for metric in COMPARED if metric.name in PRIMARIES]
    return [
        Call.SAME.value,
        Outcome.INCONCLUSIVE.value,
        "CRASHED",
        THRESHOLD_MISSED,
        THRESHOLD_UNDECIDED,
        *(f"{noun} {change.value}" for noun in nouns for change in changes),
        *{word_of(metric, call) for metric in primaries for call in (Call.BETTER, Call.WORSE)},
        *(f"{metric.label} {word_of(metric, Call.WORSE)}" for metric in COMPARED if metric.guards),
    ]


def _outcome(
    base: Version,
    version: Version,
    metrics: Sequence[MetricComparison],
    leaks: Sequence[LeakComparison],
) -> tuple[Outcome, str]:
    """Return the worst outcome and the word that names it."""
    red = _regression(base, version, metrics, leaks)
    if red:
        return Outcome.REGRESSION, red
    primary = next((m for m in metrics if m.role is Role.PRIMARY), None)
    undecided = primary is None or primary.call is Call.INCONCLUSIVE
    # In an unjudged run, the speed of pairs still counts, because both sides of a pair share its
    # disturbances; the absence of a leak does not.
    unjudged = not leaks_judged(base, version)
    if undecided or unjudged or any(row.change is Change.UNDECIDED for row in leaks):
        return Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE.value
    gone = next((row for row in leaks if row.change in (Change.FIXED, Change.LESS)), None)
    if gone is not None:
        return Outcome.BETTER, f"{finding_noun(gone.verdict)} {gone.change.value}"
    if primary is not None and primary.call is Call.BETTER:
        return Outcome.BETTER, primary.word
    return Outcome.SAME, Call.SAME.value


def _regression(
    base: Version,
    version: Version,
    metrics: Sequence[MetricComparison],
    leaks: Sequence[LeakComparison],
) -> str:
    """Return the word for the regression, or an empty string."""
    crashed = version.verdict.kind is VerdictKind.CRASHED
    if crashed and base.verdict.kind is not VerdictKind.CRASHED:
        return "CRASHED"
    red = next((row for row in leaks if row.change in _RED), None)
    if red is not None:
        return f"{finding_noun(red.verdict)} {red.change.value}"
    worse = [m for m in metrics if m.role is Role.PRIMARY and m.call is Call.WORSE]
    if worse:
        return worse[0].word
    return next((f"{m.label} {m.word}" for m in worse_guards(metrics)), "")


def finding_noun(verdict: VerdictKind) -> str:
    """Return the noun for a finding with this verdict in a comparison."""
    words = {
        VerdictKind.INVARIANT: "CONTRADICTION",
        VerdictKind.CORRUPT: "WRONG ANSWERS",
        VerdictKind.DEGRADED: "DECAY",
    }
    return words.get(verdict, _LEAK)
