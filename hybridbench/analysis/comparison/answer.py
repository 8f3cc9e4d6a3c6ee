"""From calls and changes to one answer: the word, the sentence, the exit code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hybridbench.analysis.comparison.leaks import GROWTH, leaks_judged
from hybridbench.analysis.comparison.records import (
    OUTCOME_PRECEDENCE,
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
from hybridbench.analysis.thresholds import Measured, gate
from hybridbench.metrics import COLLECTIBLE, MEMORY, Unit, label_of
from hybridbench.records.verdict import Rate, ThresholdOutcome, ThresholdResult, VerdictKind
from hybridbench.thresholds import Stat, Threshold, parse_thresholds
from hybridbench.units import digits_apart, format_byte_rate, format_bytes, format_count

_RED = (Change.INTRODUCED, Change.WORSE)
# An effect of the order is told when it is large and surely there.
_ORDER_LARGE, _ORDER_SURE = 0.02, 0.01

THRESHOLD_MISSED, THRESHOLD_UNDECIDED = "THRESHOLD MISSED", "THRESHOLD UNDECIDED"


def answer_of(
    comparison: Comparison,
    other: int,
    metrics: tuple[MetricComparison, ...],
    leaks: tuple[LeakComparison, ...],
) -> SideComparison:
    """What is said of one version against the first."""
    base, version = comparison.versions[0], comparison.versions[other]
    outcome, word = _outcome(base, version, metrics, leaks)
    parts = [*_leak_parts(leaks), *_metric_parts(metrics), *_run_parts(base, version)]
    return SideComparison(
        version=other,
        name=version.name,
        outcome=outcome,
        word=word,
        headline=_sentence(word, parts),
        metrics=metrics,
        leaks=leaks,
        notes=tuple(_notes(comparison, base, version, metrics)),
    )


def overall(
    comparison: Comparison, sides: Sequence[SideComparison], terms: ComparisonTerms, rounds: int
) -> ComparisonVerdict:
    """All versions against the first: the gravest of the sides is the answer."""
    if not sides:
        raise ValueError("a comparison needs at least two versions")
    worst = min(sides, key=lambda side: OUTCOME_PRECEDENCE.index(side.outcome))
    headline = worst.headline
    if len(sides) > 1:
        headline = f"{worst.name}: {headline}"
        rest = [f"{s.name} {s.word}" for s in sides if s is not worst]
        headline += f" (and {', '.join(rest)})"
    return ComparisonVerdict(
        outcome=worst.outcome,
        word=worst.word,
        headline=headline,
        sides=tuple(sides),
        rounds=rounds,
        terms=terms,
        interleaved=comparison.interleaved,
        notes=tuple(_common_notes(comparison)),
    )


def worse_guards(metrics: Sequence[MetricComparison]) -> list[MetricComparison]:
    """The guards that are worse beyond their margin."""
    return [m for m in metrics if m.role is Role.GUARD and m.call is Call.WORSE]


def leak_difference(leaks: Sequence[LeakComparison], row: LeakComparison) -> Rate | None:
    """How fast ``row`` leaks: in bytes an hour where that is beyond doubt, of its own or of the
    growth of memory that changed alike; else per event.
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


def _outcome(
    base: Version,
    version: Version,
    metrics: Sequence[MetricComparison],
    leaks: Sequence[LeakComparison],
) -> tuple[Outcome, str]:
    """The gravest thing first; the word names it."""
    red = _regression(base, version, metrics, leaks)
    if red:
        return Outcome.REGRESSION, red
    primary = next((m for m in metrics if m.role is Role.PRIMARY), None)
    undecided = primary is None or primary.call is Call.INCONCLUSIVE
    # Pairs share what disturbed them, and their speed stands; that nothing leaks does not.
    unjudged = not leaks_judged(base, version)
    if undecided or unjudged or any(row.change is Change.UNDECIDED for row in leaks):
        return Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE.value
    gone = next((row for row in leaks if row.change in (Change.FIXED, Change.LESS)), None)
    if gone is not None:
        return Outcome.BETTER, f"{_noun(gone.verdict)} {gone.change.value}"
    if primary is not None and primary.call is Call.BETTER:
        return Outcome.BETTER, primary.word
    return Outcome.SAME, Call.SAME.value


def _regression(
    base: Version,
    version: Version,
    metrics: Sequence[MetricComparison],
    leaks: Sequence[LeakComparison],
) -> str:
    """The word of what is worse; empty when nothing is."""
    crashed = version.verdict.kind is VerdictKind.CRASHED
    if crashed and base.verdict.kind is not VerdictKind.CRASHED:
        return "CRASHED"
    red = next((row for row in leaks if row.change in _RED), None)
    if red is not None:
        return f"{_noun(red.verdict)} {red.change.value}"
    worse = [m for m in metrics if m.role is Role.PRIMARY and m.call is Call.WORSE]
    if worse:
        return worse[0].word
    return next((f"{m.label} {m.word}" for m in worse_guards(metrics)), "")


def _noun(verdict: VerdictKind) -> str:
    words = {VerdictKind.INVARIANT: "CONTRADICTION", VerdictKind.DEGRADED: "DECAY"}
    return words.get(verdict, "LEAK")


def _sentence(word: str, parts: Sequence[str]) -> str:
    """``WORD: what; what``, without saying the word twice."""
    first, *rest = parts or ["nothing could be compared"]
    if first.startswith(f"{word}: "):
        first = first.removeprefix(f"{word}: ")
    return f"{word}: " + "; ".join([first, *rest])


def _leak_parts(leaks: Sequence[LeakComparison]) -> list[str]:
    """New, worse, gone and undecided findings, one clause for each change; else the bound."""
    parts = []
    for change in (Change.INTRODUCED, Change.WORSE, Change.UNDECIDED, Change.FIXED, Change.LESS):
        rows = [row for row in leaks if row.change is change]
        if not rows:
            continue
        row = rows[0]
        rate = leak_difference(leaks, row)
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        what = f"{_rate(rate)} in " if rate is not None else ""
        noun = "finding" if change is Change.UNDECIDED else _noun(row.verdict)
        parts.append(f"{noun} {change.value}: {what}{_subject(row)}{more}")
    return parts


def _rate(rate: Rate) -> str:
    """``+3.45 GiB/h (3.39 to 3.51)``, ``+0.86 (0.84 to 0.87) nodes per evicted node``."""
    ends = (rate.value, rate.lower, rate.upper)
    if rate.unit != Unit.BYTES:
        digits = digits_apart(format_count, ends)
        value, lower, upper = (format_count(v, digits) for v in ends)
        sign = "+" * (rate.value >= 0)
        return f"{sign}{value} ({lower} to {upper}) {rate.unit} per {rate.per}"
    per = "/h" if rate.per == "h" else f" per {rate.per}"
    digits = digits_apart(format_bytes, ends)
    words = [format_bytes(v, digits).split(" ") for v in ends]
    units = {unit for _, unit in words}
    value, lower, upper = (
        number if len(units) == 1 else f"{number} {unit}" for number, unit in words
    )
    unit = f" {words[0][1]}" if len(units) == 1 else ""
    return f"{'+' * (rate.value >= 0)}{value}{unit}{per} ({lower} to {upper})"


def _subject(row: LeakComparison) -> str:
    return f"{label_of(row.subject)} ({row.kind})" if row.kind != GROWTH else label_of(row.subject)


def _metric_parts(metrics: Sequence[MetricComparison]) -> list[str]:
    told = [m for m in metrics if m.role is Role.PRIMARY] + worse_guards(metrics)
    if not told:
        return ["no round gave a throughput or a cost to compare"]
    return [_metric_part(m) for m in told]


def _metric_part(metric: MetricComparison) -> str:
    said = f"{metric.label} {metric.word} ({metric.ratio:.3f}, {metric.lower:.3f} to "
    said += f"{metric.upper:.3f})"
    if metric.call is Call.INCONCLUSIVE:
        needed = metric.pairs_needed
        said += f": {metric.reason}"
        said += f", about {needed} more pairs would decide" if needed is not None else ""
    return said


def _run_parts(base: Version, version: Version) -> list[str]:
    """Crashes, and what keeps the leak side from being judged."""
    told = (("the first version", base), (version.name, version))
    void = (VerdictKind.CRASHED, VerdictKind.INVALID)
    return [
        f"leaks not judged, {name} is {one.verdict.headline}"
        for name, one in told
        if one.verdict.kind in void
    ]


def _notes(
    comparison: Comparison,
    base: Version,
    version: Version,
    metrics: Sequence[MetricComparison],
) -> list[str]:
    notes = []
    for metric in metrics:
        effect, p = metric.position_effect, metric.position_p
        large = effect is not None and abs(effect) >= _ORDER_LARGE
        if large and p is not None and p < _ORDER_SURE and metric.role is not Role.SHOWN:
            notes.append(
                f"{metric.label}: the second turn of a round differs by {100 * (effect or 0):+.1f} "
                "% from the first; order was swapped each round, and this is taken out"
            )
        if not metric.lower <= metric.robust_ratio <= metric.upper:
            notes.append(
                f"{metric.label}: the robust ratio {metric.robust_ratio:.3f} lies outside the "
                "interval; a few rounds were far from the others"
            )
    bound = _memory_bound(base, version)
    return [*notes, *([bound] if bound else [])]


def _memory_bound(base: Version, version: Version) -> str:
    """What a comparison without a leak can exclude."""
    sides = []
    for one in (base, version):
        result = next((m for m in one.verdict.metrics if m.metric == MEMORY), None)
        if result is None or result.rate_per_hour is None:
            return ""
        sides.append(format_byte_rate(max(0.0, result.rate_per_hour.upper)))
    return f"growth of private memory: no more than {sides[0]} and {sides[1]} (95 % each)"


def _common_notes(comparison: Comparison) -> list[str]:
    notes = []
    if comparison.interleaved and comparison.renew_every != 1:
        rounds = 1 + max((block.round for block in comparison.blocks), default=0)
        processes = math.ceil(rounds / comparison.renew_every) if comparison.renew_every else 1
        ran = "one process" if processes == 1 else f"{processes} processes"
        notes.append(
            f"each version ran in {ran}: what differs from one start of a process to the next is "
            "in the ratio, and the margin has to cover it"
        )
    if not comparison.interleaved:
        notes.append(
            "the runs were not interleaved: what the machine did between them is in the ratio; "
            "about 7 % either way is allowed for that, so they are not called the same within less"
        )
    if comparison.allowed_mismatches:
        allowed = ", ".join(sorted(comparison.allowed_mismatches))
        notes.append(f"compared although these differ: {allowed}")
    return notes


@dataclass(frozen=True)
class CheckedRatio:
    """One threshold against one version; ``result`` is None where its metric was not measured.

    ``said`` is one sentence, made by ``sentences/``.
    """

    version: str
    text: str
    result: ThresholdResult | None
    said: str = ""

    @property
    def outcome(self) -> ThresholdOutcome:
        return ThresholdOutcome.UNDECIDED if self.result is None else self.result.outcome


def check_ratios(
    verdict: ComparisonVerdict, thresholds: Sequence[str]
) -> tuple[ComparisonVerdict, tuple[CheckedRatio, ...]]:
    """``verdict`` with the ratios among ``thresholds`` held against it.

    A missed one is a regression; one that could not be decided keeps what else would be SAME from
    being called so.
    """
    wanted = [t for t in parse_thresholds(thresholds) if t.stat is Stat.RATIO]
    held = tuple(_checked(side, threshold) for side in verdict.sides for threshold in wanted)
    outcomes = {ratio.outcome for ratio in held}
    if ThresholdOutcome.MISSED in outcomes:
        # What is a regression by itself keeps its word.
        if verdict.outcome is not Outcome.REGRESSION:
            verdict = replace(verdict, outcome=Outcome.REGRESSION, word=THRESHOLD_MISSED)
    elif ThresholdOutcome.UNDECIDED in outcomes and verdict.outcome in (
        Outcome.SAME,
        Outcome.BETTER,
    ):
        verdict = replace(verdict, outcome=Outcome.INCONCLUSIVE, word=THRESHOLD_UNDECIDED)
    return verdict, held


def _checked(side: SideComparison, threshold: Threshold) -> CheckedRatio:
    metric = next((m for m in side.metrics if m.metric == threshold.metric), None)
    if metric is None:
        return CheckedRatio(side.name, threshold.text, None)
    measured = Measured(metric.ratio, metric.lower, metric.upper)
    return CheckedRatio(side.name, threshold.text, gate(threshold, measured))
