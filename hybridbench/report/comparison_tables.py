"""The tables of a comparison: a row per metric, effect first; a row per leak; the versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hybridbench.analysis.comparison.leaks import GROWTH
from hybridbench.analysis.comparison.metrics import THROUGHPUT
from hybridbench.analysis.comparison.records import (
    Change,
    Comparison,
    ComparisonVerdict,
    LeakComparison,
    Role,
    SideComparison,
    Version,
)
from hybridbench.metrics import label_of
from hybridbench.rates import amount, interval_text, level_text, rate_text
from hybridbench.records.verdict import Rate
from hybridbench.report.document import Table
from hybridbench.sentences.comparison import change_cell, display_name
from hybridbench.units import format_duration

_ROLE: Final = {
    Role.PRIMARY: "primary",
    Role.GUARD: "guardrail",
    Role.SHOWN: "informational",
}
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HASH: Final = 12
_UNCHANGED: Final = "UNCHANGED: the interval of the difference includes zero."


def letter(version: int) -> str:
    """What a report calls the version at this position."""
    return _LETTERS[version] if version < len(_LETTERS) else f"#{version + 1}"


def comparison_tables(comparison: Comparison, verdict: ComparisonVerdict) -> tuple[Table, ...]:
    """The versions, then metrics and leaks of each against the first."""
    tables = [version_table(comparison)]
    for side in verdict.sides:
        against = f"{letter(side.version)} against A"
        tables.append(_metric_table(side, verdict, against))
        tables.append(_leak_table(side, verdict, against))
    return tuple(tables)


def version_table(comparison: Comparison) -> Table:
    """What was compared: the hash is of the engine files that the worker really imported."""
    rows = tuple(_version_row(i, version) for i, version in enumerate(comparison.versions))
    columns = ("", "version", "engine hash", "commit", "own verdict", "ran for")
    return Table("Versions", columns, rows)


def _metric_table(side: SideComparison, verdict: ComparisonVerdict, against: str) -> Table:
    other = letter(side.version)
    columns = ("metric", "change", "result", "A", other, "margin", "role")
    rows = tuple(
        (
            m.label,
            change_cell(m),
            m.word,
            level_text(m.base, m.unit),
            level_text(m.other, m.unit),
            f"{100.0 * m.margin:.3g}%",
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


def _metric_note(side: SideComparison, verdict: ComparisonVerdict) -> str:
    primary = side.primary()
    if primary is None:
        return ""
    kind = (
        "adjusted for interim analyses"
        if verdict.interleaved
        else "widened by the variation between runs"
    )
    blocks = f"{primary.pairs} pairs" if verdict.interleaved else f"{primary.pairs} windows a run"
    levels = {m.role: f"{100.0 * m.confidence:.4g}%" for m in side.metrics}
    said = ", ".join(f"{_ROLE[role]} {level}" for role, level in levels.items())
    served = ""
    if primary.metric == THROUGHPUT:
        served = (
            " Throughput counts prompt and output tokens served, those from the cache included."
        )
    return (
        f"{blocks}; A and {letter(side.version)}: geometric means over them.{served} Intervals, "
        f"{kind}: {said}."
    )


def _leak_table(side: SideComparison, verdict: ComparisonVerdict, against: str) -> Table:
    other = letter(side.version)
    rows = tuple(_leak_row(row) for row in side.leaks)
    difference = f"{other} \N{MINUS SIGN} A"
    interval = f"{100.0 * (1.0 - verdict.terms.leak_alpha):.4g}% interval of {difference}"
    return Table(
        f"Leaks: {against}",
        ("finding", "change", "A", other, difference, interval),
        rows,
        frozenset({2, 3, 4, 5}),
        # The interval alone still says whether, and by how much, the versions differ.
        optional=frozenset({4}),
        note=_UNCHANGED if any(map(_is_within_noise, side.leaks)) else "",
        empty="neither version has a finding, and no growth could be judged",
    )


def _is_within_noise(row: LeakComparison) -> bool:
    rate = row.difference
    return row.change is Change.UNCHANGED and rate is not None and rate.lower <= 0.0 <= rate.upper


def _leak_row(row: LeakComparison) -> tuple[str, ...]:
    return (
        _leak_name(row),
        row.change.value,
        _rate(row.base),
        _rate(row.other),
        _rate(row.difference),
        "" if row.difference is None else interval_text(row.difference),
    )


def _leak_name(row: LeakComparison) -> str:
    if row.kind == GROWTH:
        return f"growth of {label_of(row.subject)}"
    return f"{row.subject}: {row.kind.replace('-', ' ')}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return ""
    if rate.unit == "share":
        return amount(100.0 * rate.value, "%", signed=True)
    return rate_text(rate)


def _version_row(index: int, version: Version) -> tuple[str, ...]:
    manifest = version.manifest
    return (
        letter(index),
        display_name(version),
        manifest.engine_hash[:_HASH],
        " ".join(_commit(version)),
        version.verdict.kind.value,
        format_duration(version.record.last_moment_s),
    )


def _commit(version: Version) -> Iterator[str]:
    git = version.manifest.git
    if git is not None and git.commit:
        yield git.commit[:10]
        if git.dirty:
            yield "with changes"
