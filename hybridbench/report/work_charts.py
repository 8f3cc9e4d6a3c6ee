"""Charts of the cost of work: milliseconds per call and per token, and the hit rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.work_cost import DERIVED_METRICS, work_blocks
from hybridbench.report.document import Chart, Legend, Line
from hybridbench.report.quantity import Quantity
from hybridbench.report.serving import NOTHING_SERVED

# Key, title and unit of each chart, and its lines: derived quantities under short labels.
_CHARTS: Final[Mapping[tuple[str, str, str], Mapping[str, str]]] = {
    ("hit-rate", "Prompt tokens served by the cache", "%"): {"hit_rate": "hit rate"},
    ("evict-ms", "Processor time of an eviction", "ms"): {
        "evict_ms": "per call",
        "evict_ms_per_node": "per node",
    },
    ("cache-ms", "Processor time of a cache call", "ms"): {
        "match_ms": "match",
        "insert_ms": "insert",
    },
    ("schedule-ms", "Processor time to form and settle a batch", "ms"): {
        "schedule_ms": "cache calls left out"
    },
    ("check-ms", "Processor time of the engine's own checks", "ms"): {"check_ms": "per step"},
    ("token-ms", "Time for each token", "ms"): {"token_ms": "whole step", "forward_ms": "model"},
}
_PERCENT: Final = 100.0


def work_charts(
    record: RunRecord, known: Mapping[str, Quantity] = NOTHING_SERVED
) -> tuple[Chart, ...]:
    """Return the charts for which this record has counters; one point per stretch of equal length.

    ``known`` are values of the judged window, for the legend.
    """
    sampled = [series for series in record.series.values() if len(series)]
    if not sampled:
        return ()
    start_s = min(float(series.t_s[0]) for series in sampled)
    end_s = max(float(series.t_s[-1]) for series in sampled)
    charts = []
    for (key, title, unit), labels in _CHARTS.items():
        factor = _PERCENT if unit == "%" else 1.0
        lines: list[Line] = []
        for derived in DERIVED_METRICS:
            label = labels.get(derived.name)
            blocks = work_blocks(record, derived, start_s, end_s) if label is not None else None
            if label is not None and blocks is not None and len(blocks):
                values = factor * blocks.value
                shown = known.get(derived.name)
                lines.append(Line(label, blocks.t_s, values, colour=len(lines), shown=shown))
        if lines:
            charts.append(as_served(Chart(key, title, unit, tuple(lines), legend=Legend.MEAN)))
    return tuple(charts)


def as_served(chart: Chart) -> Chart:
    """Use the values of the run's table in the legend, if it has all lines of ``chart``."""
    known = all(line.shown is not None for line in chart.lines)
    return replace(chart, legend=Legend.SERVED) if known else chart
