"""The charts' arrays, decimated and quantised to be small enough to embed in the page.

Times and values become whole multiples of a step, stored as differences.  An hour of samples then
takes a few kilobytes, and the error is below a tenth of a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.facts.window import PAUSES, Window
from hybridbench.analysis.record import FloatArray
from hybridbench.records.events import Segment, kind_of
from hybridbench.records.json_value import JsonValue
from hybridbench.report.decimate import gaps, kept
from hybridbench.report.document import Chart, Document, Ink, Legend, Line, Timeline
from hybridbench.report.quantity import SHARE, Form, Quantity, Text

_TIME_STEP_S: Final = 0.1
_STEPS: Final = 50_000.0


def page_data(document: Document) -> dict[str, JsonValue]:
    """Return what the page's script reads: the timeline, and every chart's lines by its key."""
    charts = (chart for group in document.charts for chart in group.charts)
    borders = tuple(mark.t_s for mark in document.timeline.marks if mark.kind == kind_of(Segment))
    return {
        "timeline": _timeline(document.timeline),
        "charts": {
            chart.key: chart_data(chart, borders, _judged(document.timeline)) for chart in charts
        },
    }


def chart_data(
    chart: Chart, borders: Sequence[float] = (), judged: Window | None = None
) -> dict[str, JsonValue]:
    """Return one chart as the page's script expects it; lines over 2,000 points are decimated.

    No line crosses one of ``borders``, where another worker took over.  Means cover the window
    that was ``judged``.
    """
    shared = _shared_positions(chart) if chart.stacked else None
    return {
        "unit": chart.unit,
        "stacked": chart.stacked,
        "counted": chart.counted,
        "fromZero": chart.from_zero,
        "minSpan": float(f"{chart.min_span:.6g}"),
        "legend": _legend_text(chart.legend, judged),
        "lines": [
            {**_line(line, shared, borders), "shown": _legend_value(line, chart.legend, judged)}
            for line in chart.lines
        ],
    }


def chart_numbers(chart: Chart) -> list[tuple[Text, ...]]:
    """Return first, least, most and last value of every measured line, in the chart's unit."""
    rows: list[tuple[Text, ...]] = []
    for line in chart.lines:
        if line.ink in {Ink.PLAIN, Ink.POINTS, Ink.LIMIT} and line.value.size:
            value = line.value
            four = {"first": value[0], "least": value.min(), "most": value.max(), "last": value[-1]}
            numbers = (
                Quantity(f"{chart.key}.{line.label}.{which}", float(one), form=Form.PLAIN)
                for which, one in four.items()
            )
            rows.append((line.label, *numbers))
    return rows


def packed(values: FloatArray, step: float) -> list[JsonValue]:
    """Encode ``values`` as counts of ``step``: the first absolute, the others as differences.

    A NaN (a gap to be drawn) becomes None.
    """
    counts: list[JsonValue] = []
    last = 0
    for value in values.tolist():
        if math.isnan(value):
            counts.append(None)
            continue
        count = round(value / step)
        counts.append(count - last)
        last = count
    return counts


def _line(
    line: Line, shared: NDArray[np.intp] | None, borders: Sequence[float]
) -> dict[str, JsonValue]:
    positions = kept(line.t_s, line.value) if shared is None else shared
    t_s, value = _with_holes(line, positions, borders)
    step = _step(value)
    return {
        "label": line.label,
        "ink": line.ink.value,
        "colour": line.colour,
        "step": step,
        "t": packed(t_s, _TIME_STEP_S),
        "v": packed(value, step),
    }


def _judged(timeline: Timeline) -> Window | None:
    """Return the judged window without its pauses, as in the serving table."""
    if timeline.window_s is None:
        return None
    pauses = tuple((s.start_s, s.end_s) for s in timeline.phases if s.name in PAUSES)
    return Window(*timeline.window_s, steady=True, pauses=pauses)


def _legend_text(legend: Legend, judged: Window | None) -> str:
    if legend is Legend.SERVED:
        return "judged window"
    of_window = legend is Legend.MEAN and judged is not None
    return f"{legend.value} of the judged window" if of_window else legend.value


def _legend_value(line: Line, legend: Legend, judged: Window | None) -> float | None:
    """Return the legend's value for ``line``, from its samples or from the table of serving."""
    if legend is Legend.SERVED and line.shown is not None:
        scale = 100.0 if line.shown.unit == SHARE else 1.0
        return float(f"{scale * line.shown.value:.6g}")
    keep = np.isfinite(line.value)
    if legend is Legend.MEAN and judged is not None:
        keep &= judged.covers(line.t_s)
    value = line.value[keep]
    if not value.size:
        return None
    return float(f"{value.mean() if legend is Legend.MEAN else value[-1]:.6g}")


def _shared_positions(chart: Chart) -> NDArray[np.intp]:
    """Return positions at which all lines of a stack can be summed."""
    rows = [line.value for line in chart.lines if line.ink is Ink.PLAIN]
    return kept(chart.lines[0].t_s, np.stack(rows))


def _with_holes(
    line: Line, positions: NDArray[np.intp], borders: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    """Return times and values at ``positions``, with a NaN in the middle of every gap in the data
    and at every border.
    """
    t_s, value = line.t_s[positions], line.value[positions]
    holes = gaps(line.t_s) if line.ink is Ink.PLAIN else np.zeros(0, np.intp)
    crossed = np.searchsorted(line.t_s, np.asarray(borders, np.float64)) - 1
    crossed = crossed[(crossed >= 0) & (crossed < line.t_s.size - 1)]
    holes = np.union1d(holes, crossed)
    if not holes.size:
        return t_s, value
    middle = (line.t_s[holes] + line.t_s[holes + 1]) / 2
    where = np.searchsorted(t_s, middle)
    return np.insert(t_s, where, middle), np.insert(value, where, np.nan)


def _step(value: FloatArray) -> float:
    """Return the largest step (1, 2 or 5 times a power of ten) whose rounding is invisible."""
    finite = value[np.isfinite(value)]
    span = float(np.ptp(finite)) if finite.size else 0.0
    if span == 0.0:
        span = float(np.abs(finite).max()) if finite.size else 0.0
    if span == 0.0:
        return 1.0
    fine = span / _STEPS
    power = 10.0 ** np.floor(np.log10(fine))
    # The logarithm of a value just below a power of ten may be rounded up to the power's.
    steps = (factor * power for factor in (1.0, 2.0, 5.0))
    step = max((step for step in steps if step <= fine), default=power)
    # Whole numbers stay whole: a count of three slots reads as 3.
    whole = bool(np.all(finite == np.round(finite)))
    return float(f"{max(step, 1.0) if whole else step:.6g}")


def _timeline(timeline: Timeline) -> dict[str, JsonValue]:
    phases: Sequence[JsonValue] = [[s.name, s.start_s, s.end_s] for s in timeline.phases]
    return {
        "end": timeline.end_s,
        "timeStep": _TIME_STEP_S,
        "phases": phases,
        "window": timeline.window_s,
        "marks": [[m.kind, round(m.t_s, 1), m.label] for m in timeline.marks],
    }
