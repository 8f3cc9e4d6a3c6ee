"""A comparison's text: the headlines of each side and of the whole, and the notes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from hybridbench.analysis.comparison.answer import finding_noun, leak_difference, worse_guards
from hybridbench.analysis.comparison.leaks import GROWTH, unjudged
from hybridbench.analysis.comparison.records import (
    Change,
    Comparison,
    ComparisonVerdict,
    InterimAnalysis,
    LeakComparison,
    MetricComparison,
    Outcome,
    Role,
    SideComparison,
    Version,
)
from hybridbench.analysis.findings.incomplete import BenchError
from hybridbench.analysis.findings.words import certain, headline, times
from hybridbench.foundation.metrics import Unit, label_of
from hybridbench.foundation.units import format_byte_rate
from hybridbench.records.finding import VerdictKind
from hybridbench.records.rates import full_rate_text, rate_text
from hybridbench.records.verdict import Verdict, memory_result

# The changes that a report lists, in the order of a headline.
TOLD: Final = (Change.INTRODUCED, Change.WORSE, Change.UNDECIDED, Change.FIXED, Change.LESS)


_LARGEST_SHOWN: Final = 11.0


def phrased_comparison(comparison: Comparison, verdict: ComparisonVerdict) -> ComparisonVerdict:
    """Return ``verdict`` with its texts filled in."""
    sides = tuple(_phrased_side(comparison, side) for side in verdict.sides)
    verdict = replace(verdict, sides=sides)
    notes = list(_common_notes(comparison))
    said, names_version = _headline(verdict), len(sides) > 1
    if verdict.failures:
        parts = ", ".join(dict.fromkeys(failure.part for failure in verdict.failures))
        failed = f"the analysis of {parts} failed, a defect of hybridbench"
        notes.append(failed)
        if verdict.outcome is Outcome.INCONCLUSIVE:
            alone = replace(verdict, headline=said, names_version=names_version).full_headline
            said, names_version = headline(verdict.word, failed, [alone]), False
    return replace(verdict, headline=said, names_version=names_version, notes=tuple(notes))


def display_name(version: Version) -> str:
    """Return the user's name for the version; for a run directory, the directory's name."""
    if version.kind == "run":
        return Path(version.name).name
    return ". (working tree)" if version.name == "." else version.name


def look_text(seen: InterimAnalysis) -> str:
    """Summarise an interim analysis in one line."""
    if seen.failure is not None:
        return f"the analysis of {seen.failure.part} failed ({seen.failure.said})"
    if not seen.metrics:
        return "no two rounds are complete"
    needed = seen.rounds_needed
    more = "" if needed is None else f"; about {times(needed, 'more round')}"
    return "; ".join(f"{m.label} {change_text(m)} {m.word}" for m in seen.metrics) + more


def percent(ratio: float) -> str:
    """Format a ratio as a change: ``−4.9%``, ``+651%``; never below −100%."""
    change = max(-100.0, 100.0 * (ratio - 1.0))
    sign = "\N{MINUS SIGN}" if change < -0.05 else ("+" if change > 0.05 else "")
    places = 1 if abs(change) < 99.95 else 0
    return f"{sign}{abs(change):,.{places}f}%"


def change_text(metric: MetricComparison) -> str:
    """Format a change with both ends, which are often asymmetric: ``−4.9% (−5.7% to −4.1%)``."""
    return f"{percent(metric.ratio)} ({ends_text(metric.lower, metric.upper)})"


def ends_text(lower: float, upper: float) -> str:
    """Format the ends of a ratio as ``−5.7% to −4.1%``; an unknown end is spelled out."""
    least = percent(lower) if math.isfinite(lower) else "no lower bound"
    # Beyond tenfold, the exact number no longer matters.
    if lower >= _LARGEST_SHOWN:
        return f"at least {least}"
    most = percent(upper) if upper < _LARGEST_SHOWN else "over +1,000%"
    return f"{least} to {most}"


def undecided_text(metric: MetricComparison) -> str:
    """Return why ``metric`` is undecided and how many more pairs would decide; may be empty."""
    parts = [metric.reason] if metric.reason else []
    if metric.pairs_needed is not None:
        parts.append(f"about {times(metric.pairs_needed, 'more pair')} would decide")
    return "; ".join(parts)


def unjudged_runs(*versions: Version) -> list[tuple[str, Verdict]]:
    """Return the names and verdicts of those whose lack of a finding is meaningless."""
    return [(display_name(v), v.verdict) for v in versions if unjudged(v.verdict)]


def unjudged_text(runs: Sequence[tuple[str, Verdict]]) -> str:
    """Say what each run is: ``b is INVALID``."""
    return " and ".join(dict.fromkeys(f"{name} is {_word(own)}" for name, own in runs))


def _phrased_side(comparison: Comparison, side: SideComparison) -> SideComparison:
    metrics = tuple(
        metric if metric.why is None else replace(metric, reason=metric.why.text)
        for metric in side.metrics
    )
    side = replace(side, metrics=metrics, leaks=tuple(map(_phrased_leak, side.leaks)))
    base, version = comparison.versions[0], comparison.versions[side.version]
    open_runs = unjudged_runs(base, version)
    first, *rest = [*_leak_parts(side), *_metric_parts(side), *_not_compared(side, open_runs)]
    # Two runs of the same name, as in `compare . .`, may have the same reason.
    reasons = [
        f"{_what_is_open(side)} not compared, because the run of {name} is {_why_unjudged(own)}"
        for name, own in open_runs
    ]
    return replace(
        side,
        headline=headline(side.word, first, rest),
        notes=(*dict.fromkeys(reasons), *_side_notes(base, version, metrics)),
    )


def _phrased_leak(row: LeakComparison) -> LeakComparison:
    title = row.title or f"growth of {label_of(row.subject)}"
    return replace(row, title=title, reason="; ".join(why.text for why in row.why))


def _headline(verdict: ComparisonVerdict) -> str:
    """The worst side's headline; with several sides, also its name and the words of the others."""
    worst = verdict.worst()
    if len(verdict.sides) == 1:
        return worst.headline
    rest = ", ".join(f"{side.name} {side.word}" for side in verdict.sides if side is not worst)
    return headline("", f"{worst.name}: {worst.full_headline}", tail=f" (and {rest})")


def _leak_parts(side: SideComparison) -> Iterator[str]:
    """Yield new, worse, undecided and fixed findings, one clause for each change."""
    for change in TOLD:
        rows = [row for row in side.leaks if row.change is change]
        if not rows:
            continue
        noun = "finding" if change is Change.UNDECIDED else finding_noun(rows[0].verdict)
        word = f"{noun} {change.value}"
        lead = "" if word == side.word else f"{word}: "
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        yield f"{lead}{_brief_leak(rows[0], side.leaks)}{more}"


def _brief_leak(row: LeakComparison, leaks: Sequence[LeakComparison]) -> str:
    """The leak's title, and its rate if that is certain; the answer has the intervals."""
    rate = leak_difference(leaks, row)
    rate = None if rate is None or not certain(rate) else rate
    if row.kind == GROWTH:
        return label_of(row.subject) + ("" if rate is None else f" {rate_text(rate)}")
    if rate is None or row.change not in (Change.WORSE, Change.LESS):
        return row.title
    return f"{row.title}; difference {rate_text(rate)}"


def leak_text(row: LeakComparison, leaks: Sequence[LeakComparison]) -> str:
    """The leak's title, and how its rate differs from the first version's."""
    rate = leak_difference(leaks, row)
    if row.kind == GROWTH:
        return label_of(row.subject) + ("" if rate is None else f" {full_rate_text(rate)}")
    # The title has the rate per event; for a finding in both versions, add the difference.
    in_both = row.change in (Change.WORSE, Change.LESS)
    if rate is None or (rate.unit != Unit.BYTES and not in_both):
        return row.title
    return f"{row.title}; difference {full_rate_text(rate)}"


def _metric_parts(side: SideComparison) -> Iterator[str]:
    primary = side.primary()
    metrics = [*([] if primary is None else [primary]), *worse_guards(side.metrics)]
    if not metrics:
        yield "no complete round has a throughput or a cost to compare"
    for metric in metrics:
        said = f"{metric.label} {change_text(metric)}"
        yield said if metric.word == side.word else f"{said}, {metric.word}"
        if metric.word == side.word and metric.reason:
            yield metric.reason


def _not_compared(side: SideComparison, runs: Sequence[tuple[str, Verdict]]) -> Iterator[str]:
    """Yield a clause on the runs that prevent comparing leaks; the notes explain their outcomes."""
    if runs:
        yield f"{_what_is_open(side)} not compared: {unjudged_text(runs)}"


def _what_is_open(side: SideComparison) -> str:
    """Return the subject of "not compared"; exact findings are compared in any case."""
    return "growth was" if any(row.exact for row in side.leaks) else "leaks were"


def _word(verdict: Verdict) -> VerdictKind:
    if verdict.kind is VerdictKind.CRASHED:
        return verdict.kind
    return VerdictKind.INVALID if verdict.invalid else VerdictKind.INCONCLUSIVE


def _why_unjudged(verdict: Verdict) -> str:
    void = (VerdictKind.CRASHED, VerdictKind.INVALID)
    if verdict.kind in void:
        return verdict.full_headline
    because = (f for f in verdict.findings if f.verdict in void or f.kind == BenchError.kind)
    first = next(because)
    return f"{first.verdict}: {first.title}"


def _side_notes(
    base: Version, version: Version, metrics: Iterable[MetricComparison]
) -> Iterator[str]:
    for metric in metrics:
        if metric.depends_on_order and metric.role is not Role.SHOWN:
            effect = percent(1.0 + (metric.position_effect or 0.0))
            yield (
                f"{metric.label}: the version that runs second in a round differs by {effect}; the "
                "order alternates from round to round, and the effect is removed from the ratio"
            )
        if metric.has_outliers:
            yield (
                f"{metric.label}: the Hodges-Lehmann estimate of {percent(metric.robust_ratio)} is "
                "outside the interval, because a few rounds are far from the others"
            )
    bounds = [_memory_bound(one) for one in (base, version)]
    if all(bounds):
        yield (
            f"judged alone, the private memory of {display_name(base)} grows by at most "
            f"{bounds[0]}, that of {display_name(version)} by at most {bounds[1]} (95% each)"
        )


def _memory_bound(version: Version) -> str:
    """The growth that the run of ``version`` excludes; empty if it measured none."""
    result = memory_result(version.verdict.metrics)
    rate = None if result is None else result.rate_per_hour
    return "" if rate is None else format_byte_rate(max(0.0, rate.upper))


def _common_notes(comparison: Comparison) -> Iterator[str]:
    if comparison.interleaved and comparison.renew_every != 1:
        rounds = 1 + max((block.round for block in comparison.blocks), default=0)
        processes = math.ceil(rounds / comparison.renew_every) if comparison.renew_every else 1
        ran = "one process" if processes == 1 else f"{processes} processes"
        yield (
            f"each version ran in {ran}: the ratio includes differences from one process start to "
            "the next, and the margin must cover them"
        )
    if not comparison.interleaved:
        yield (
            "the runs were not interleaved: the ratio includes changes of the machine between "
            "them, for which about 7% either way is allowed"
        )
    if comparison.allowed_mismatches:
        keys = ", ".join(sorted(comparison.allowed_mismatches))
        yield f"these were allowed to differ (--allow-mismatch): {keys}"
