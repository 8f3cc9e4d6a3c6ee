"""A comparison's tables: a row per metric, effect first; a row per leak; the versions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from hybridbench.analysis.comparison.leaks import GROWTH
from hybridbench.analysis.comparison.metrics import THROUGHPUT
from hybridbench.analysis.comparison.records import (
    Change,
    Comparison,
    ComparisonVerdict,
    LeakComparison,
    MetricComparison,
    Role,
    SideComparison,
    Version,
)
from hybridbench.analysis.comparison.words import display_name
from hybridbench.foundation.labels import unlabelled, whose
from hybridbench.foundation.metrics import Unit, label_of
from hybridbench.records.finding import Rate
from hybridbench.report.document import Table
from hybridbench.report.quantity import (
    SHARE,
    TIMES,
    Form,
    Quantity,
    Text,
    length,
    of_rate,
    phrase,
    share_text,
    sure_text,
)

_ROLE: Final = {
    Role.PRIMARY: "primary",
    Role.GUARD: "guardrail",
    Role.SHOWN: "informational",
}
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HASH: Final = 12
_UNCHANGED: Final = "UNCHANGED: the interval of the difference includes zero."


def letter(version: int) -> str:
    """Return a report's letter for the version at this position."""
    return _LETTERS[version] if version < len(_LETTERS) else f"#{version + 1}"


def comparison_tables(comparison: Comparison, verdict: ComparisonVerdict) -> tuple[Table, ...]:
    """Return the versions, then metrics and leaks of each compared with the first."""
    tables = [version_table(comparison)]
    for side in verdict.sides:
        against = f"{letter(side.version)} against A"
        tables.append(_metric_table(side, verdict, against))
        tables.append(_leak_table(side, verdict, against))
    return tuple(tables)


def version_table(comparison: Comparison) -> Table:
    """List what was compared; the hash covers the engine files that the worker imported."""
    rows = tuple(_version_row(i, version) for i, version in enumerate(comparison.versions))
    columns = ("", "version", "engine hash", "commit", "own verdict", "ran for")
    return Table("Versions", columns, rows, optional=frozenset({2, 3}))


def _metric_table(side: SideComparison, verdict: ComparisonVerdict, against: str) -> Table:
    other = letter(side.version)
    columns = ("metric", "change", "result", "A", other, "margin", "role")
    rows = tuple(
        (
            m.label,
            change(m, other).shown(Form.CHANGE_CELL),
            m.word,
            _level(m, m.base, "A"),
            _level(m, m.other, other),
            share_text(m.margin),
            _ROLE[m.role],
        )
        for m in side.metrics
    )
    return Table(
        f"Metrics: {against}",
        columns,
        rows,
        frozenset({1, 3, 4, 5}),
        optional=frozenset({5, 6}),
        note=_metric_note(side, verdict),
        empty="no block of both versions has a metric in common",
    )


def change(metric: MetricComparison, other: str) -> Quantity:
    """Return the ratio of ``metric`` in version ``other`` to the first, over all blocks."""
    return Quantity(
        f"{metric.metric}.ratio",
        metric.ratio,
        TIMES,
        lower=metric.lower,
        upper=metric.upper,
        confidence=metric.confidence,
        count=metric.pairs,
        of=other,
        form=Form.CHANGE,
    )


def _level(metric: MetricComparison, value: float, of: str) -> Quantity:
    unit = SHARE if metric.unit == Unit.RATIO else metric.unit
    return Quantity(f"blocks.{metric.metric}", value, unit, of=of, form=Form.LEVEL)


def _metric_note(side: SideComparison, verdict: ComparisonVerdict) -> Text:
    primary = side.primary()
    if primary is None:
        return ""
    kind = (
        "adjusted for interim analyses"
        if verdict.interleaved
        else "widened by the variation between runs"
    )
    blocks = " pairs" if verdict.interleaved else " windows a run"
    levels = {m.role: sure_text(m.confidence) for m in side.metrics}
    said = ", ".join(f"{_ROLE[role]} {level}" for role, level in levels.items())
    served = ""
    if primary.metric == THROUGHPUT:
        served = (
            " Throughput counts prompt and output tokens served, those from the cache included."
        )
    return phrase(
        change(primary, letter(side.version)).shown(Form.COUNT),
        f"{blocks}; A and {letter(side.version)}: geometric means over them.{served} Intervals, "
        f"{kind}: {said}.",
    )


def _leak_table(side: SideComparison, verdict: ComparisonVerdict, against: str) -> Table:
    other = letter(side.version)
    rows = tuple(_leak_row(row, other) for row in side.leaks)
    difference = f"{other} \N{MINUS SIGN} A"
    interval = f"{sure_text(1.0 - verdict.terms.leak_alpha)} interval of {difference}"
    return Table(
        f"Leaks: {against}",
        ("finding", "change", "A", other, difference, interval),
        rows,
        frozenset({2, 3, 4, 5}),
        # Without it, the interval still shows whether, and by how much, the versions differ.
        optional=frozenset({4}),
        note=_UNCHANGED if any(map(_is_within_noise, side.leaks)) else "",
        empty="neither version has a finding, and no growth could be judged",
    )


def _is_within_noise(row: LeakComparison) -> bool:
    rate = row.difference
    return row.change is Change.UNCHANGED and rate is not None and rate.lower <= 0.0 <= rate.upper


def _leak_row(row: LeakComparison, other: str) -> tuple[Text, ...]:
    rates = leak_rates(row, other)
    return (
        _leak_name(row),
        row.change.value,
        *("" if rate is None else rate.narrow for rate in rates),
        "" if rates[-1] is None else rates[-1].shown(Form.INTERVAL),
    )


def leak_rates(row: LeakComparison, other: str) -> tuple[Quantity | None, ...]:
    """Return the rate of a finding in the first version and in ``other``, and the difference."""

    def quantity(rate: Rate | None, of: str) -> Quantity | None:
        return None if rate is None else of_rate(f"{row.kind}.{row.subject}", rate, of=of)

    difference = f"{other} \N{MINUS SIGN} A"
    return quantity(row.base, "A"), quantity(row.other, other), quantity(row.difference, difference)


def _leak_name(row: LeakComparison) -> str:
    if row.kind == GROWTH:
        return f"growth of {label_of(row.subject)}"
    subject = row.subject
    # Names from other programs may contain braces without labels.
    with contextlib.suppress(ValueError):
        owner = whose(subject)
        subject = f"{unlabelled(subject)} of {owner}" if owner else subject
    return f"{subject}: {row.kind.replace('-', ' ')}"


def _version_row(index: int, version: Version) -> tuple[Text, ...]:
    manifest = version.manifest
    return (
        letter(index),
        display_name(version),
        manifest.engine_hash[:_HASH],
        " ".join(_commit(version)),
        version.verdict.kind.value,
        length("recorded", version.record.last_moment_s, of=letter(index)),
    )


def _commit(version: Version) -> Iterator[str]:
    git = version.manifest.git
    if git is not None and git.commit:
        yield git.commit[:10]
        if git.dirty:
            yield "with changes"
