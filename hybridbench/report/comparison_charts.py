"""A comparison's charts: each round's ratio with the interval, and the versions overlaid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from hybridbench.analysis.comparison.records import (
    Block,
    Comparison,
    ComparisonVerdict,
    MetricComparison,
    Role,
    SideComparison,
)
from hybridbench.analysis.comparison.words import display_name
from hybridbench.foundation.metrics import COLLECTIBLE, MEMORY, Unit, spec_of
from hybridbench.report.charts import legend_of, level_chart, slug
from hybridbench.report.comparison_tables import letter
from hybridbench.report.document import Chart, ChartGroup, Ink, Line
from hybridbench.report.pool_charts import POOL_NAMES
from hybridbench.report.wording import capital

_LEVELS: Final = (
    (MEMORY, "Private memory"),
    (COLLECTIBLE, "Collectible memory"),
)
_RATES: Final = (
    ("ttft_ms_p50", "Time to first token (TTFT), median"),
    ("itl_ms_p50", "Inter-token latency (ITL), median"),
)
# An interval is drawn beyond points and margin by at most this multiple of their span.
_SPREAD_ROOM: Final = 2.0


def comparison_charts(comparison: Comparison, verdict: ComparisonVerdict) -> tuple[ChartGroup, ...]:
    """Return the chart groups that have data."""
    groups = []
    if comparison.interleaved:
        ratios = [c for side in verdict.sides for c in _ratio_charts(comparison.blocks, side)]
        groups.append(ChartGroup("Ratio in each round", tuple(ratios)))
        groups.append(ChartGroup("Blocks", tuple(_block_charts(comparison, verdict))))
    groups.append(ChartGroup("Memory side by side", tuple(_overlays(comparison, _LEVELS))))
    groups.append(
        ChartGroup("Pools side by side", tuple(_overlays(comparison, _pools(comparison))))
    )
    groups.append(ChartGroup("Latency side by side", tuple(_overlays(comparison, _RATES))))
    return tuple(group for group in groups if group.charts)


def _ratio_charts(blocks: Sequence[Block], side: SideComparison) -> Iterator[Chart]:
    for metric in side.metrics:
        if metric.role is not Role.SHOWN:
            chart = _ratio_chart(blocks, side, metric)
            if chart is not None:
                yield chart


def _ratio_chart(
    blocks: Sequence[Block], side: SideComparison, metric: MetricComparison
) -> Chart | None:
    by_round = [
        {
            b.round: b.values[metric.metric]
            for b in blocks
            if b.version == version and metric.metric in b.values
        }
        for version in (0, side.version)
    ]
    rounds = sorted(r for r in by_round[0].keys() & by_round[1].keys() if by_round[0][r] > 0)
    if len(rounds) < 2:
        return None
    x = np.array(rounds, np.float64) + 1.0
    ratio = np.array([by_round[1][r] / by_round[0][r] for r in rounds])

    def level(label: str, value: float, ink: Ink) -> Line:
        return Line(label, x, np.full(x.size, value), ink)

    edge = 1.0 + metric.margin
    least, most = min(ratio.min(), 1.0 / edge), max(ratio.max(), edge)
    # With few rounds, the interval may be so wide that the points would appear on one line.
    room = _SPREAD_ROOM * (most - least)
    lower, upper = max(metric.lower, least - room), min(metric.upper, most + room)
    is_cut = metric.lower < lower or upper < metric.upper
    cut = " The interval goes beyond the chart." if is_cut else ""
    name = letter(side.version)
    return Chart(
        key=f"ratio-{side.version}-{slug(metric.metric)}",
        title=f"{capital(metric.label)}, {name} over A",
        unit="ratio",
        lines=(
            Line(f"{name} / A", x, ratio, Ink.POINTS),
            level("all rounds", metric.ratio, Ink.FIT),
            level("interval, lower end", lower, Ink.SPREAD),
            level("interval, upper end", upper, Ink.SPREAD),
            level("margin, below", 1.0 / edge, Ink.LIMIT),
            level("margin, above", edge, Ink.LIMIT),
        ),
        note=f"{metric.word}; a point is one pair of blocks with the same requests.{cut}",
        from_zero=False,
        wide=metric.role is Role.PRIMARY,
        counted="round",
    )


def _block_charts(comparison: Comparison, verdict: ComparisonVerdict) -> Iterator[Chart]:
    """Chart the primary metric of each version in each round."""
    primary = next((m for s in verdict.sides if (m := s.primary()) is not None), None)
    if primary is None:
        return
    lines = []
    for index, version in enumerate(comparison.versions):
        mine = sorted(
            (b for b in comparison.blocks if b.version == index and primary.metric in b.values),
            key=lambda block: block.round,
        )
        if mine:
            x = np.array([b.round + 1.0 for b in mine])
            y = np.array([b.values[primary.metric] for b in mine])
            lines.append(Line(f"{letter(index)} {display_name(version)}", x, y, colour=index))
    if lines:
        title = f"{capital(primary.label)} of each block"
        yield Chart("blocks", title, primary.unit, tuple(lines), from_zero=False, counted="round")


def _overlays(comparison: Comparison, wanted: Sequence[tuple[str, str]]) -> Iterator[Chart]:
    """Chart one series of all versions, each over its own time."""
    for name, title in wanted:
        spec = spec_of(name)
        lines = []
        for index, version in enumerate(comparison.versions):
            series = version.record.series.get(name)
            if series is not None and len(series):
                label = f"{letter(index)} {display_name(version)}"
                lines.append(Line(label, series.t_s, series.value, colour=index))
        if not lines or spec is None:
            continue
        memory = spec.unit is Unit.BYTES and name != COLLECTIBLE
        chart = Chart(
            f"side-{slug(name)}",
            title,
            lines=tuple(lines),
            from_zero=not memory,
            wide=memory,
            note="Time of each version itself, without the slices of the others.",
            legend=legend_of(spec),
        )
        yield level_chart(chart, spec.unit)


def _pools(comparison: Comparison) -> list[tuple[str, str]]:
    """Return free slots and unaccounted slots for every pool of any version."""
    found: dict[str, str] = {}
    for version in comparison.versions:
        for name in version.record.series:
            match = re.fullmatch(r"pool\.(\w+)\.(available|residual)", name)
            if match is not None:
                what = "free" if match[2] == "available" else "unaccounted"
                found[name] = f"{POOL_NAMES.get(match[1], match[1])}: {what}"
    return sorted(found.items())
