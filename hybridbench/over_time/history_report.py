"""A history as a document: for each series a row per run, a trend per quantity, and charts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from hybridbench.analysis.change_points import ALPHA, FEWEST_BEFORE, FEWEST_ON_A_SIDE, Change
from hybridbench.analysis.findings.words import times
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.metrics import Unit, declared
from hybridbench.foundation.thresholds import Stat
from hybridbench.foundation.units import format_percent, sparkline
from hybridbench.over_time.comparer import THROUGHPUT, Point, Series, Tracked, Trend
from hybridbench.over_time.points import Unread
from hybridbench.records.codec import to_json
from hybridbench.records.json_value import JsonValue, json_text
from hybridbench.report.charts import scaled
from hybridbench.report.document import (
    Badge,
    Chart,
    ChartGroup,
    Document,
    DocumentKind,
    Gate,
    GateState,
    Ink,
    Line,
    Table,
    Tone,
)
from hybridbench.report.quantity import (
    SHARE,
    Form,
    Phrase,
    Quantity,
    Text,
    joined,
    phrase,
)

_SPARKS_MOST: Final = 40
_ROWS_MOST: Final = 30
_WORD: Final = {True: "WORSE", False: "BETTER"}


def history_document(
    series: Sequence[Series], unread: Sequence[Unread], where: str, left: int = 0
) -> Document:
    """Return the report of ``series``, newest first.

    ``where`` names the results directory; ``left`` of its runs were not selected.
    """
    changes = [
        (one, trend, change) for one in series for trend in one.trends for change in trend.changes
    ]
    worse = [found for found in changes if found[1].is_worse(found[2])]
    runs = sum(len(one.points) for one in series)
    return Document(
        kind=DocumentKind.HISTORY,
        run_id=where,
        subtitle=f"{times(runs, 'run')} in {times(len(series), 'series', 'series')}",
        badge=_badge(series, bool(worse)),
        meaning="Runs are compared only where model, profile and machine agree.",
        exit_code=int(ExitCode.CLEAN),
        headline=_headline(series, worse, left, len(unread)),
        answer=(),
        gates=tuple(_gate(one, trend) for one in series for trend in one.trends),
        suite="hybridbench history",
        tables=tuple(table for one in series for table in _tables(one, series)),
        notes=tuple(_notes(series, unread)),
        charts=tuple(_charts(index, one, series) for index, one in enumerate(series)),
        data_file="",
    )


def change_text(trend: Trend, change: Change) -> Phrase:
    """Describe a change: from what to what, at which run, and its significance."""
    quantity = trend.quantity
    run, last = trend.points[change.at], trend.points[change.at - 1]
    sure = (
        f"outside the prediction interval of the {change.at} runs before it"
        if change.p_value is None
        else f"permutation p = {change.p_value:.2g}"
    )
    versions = "" if run.version == last.version else f", engine {last.version} → {run.version}"
    environment = "" if run.environment == last.environment else f", now {run.environment}"
    since = f" since {run.run_id}{versions}{environment} ({sure})"
    before = _amount(quantity, change.before, f"before {run.run_id}")
    after = _amount(quantity, change.after, f"since {run.run_id}")
    return phrase(f"{_WORD[trend.is_worse(change)]}: ", before, " → ", after, since)


def series_title(one: Series, every: Sequence[Series]) -> str:
    """Name the series by model and profile, and by what distinguishes it from similar series."""
    same = [other for other in every if (other.model, other.profile) == (one.model, one.profile)]
    title = _name(one)
    if len(same) < 2:
        return title
    parts = [f"{name} {value}" for name, value in list(one.differs_in.items())[:4]]
    more = len(one.differs_in) - len(parts)
    return f"{title} ({', '.join(parts)}{f' and {more} more' if more else ''})"


def _name(one: Series) -> str:
    """Return the model and the profile; a watched program has no profile."""
    return " / ".join(filter(None, (one.model, one.profile)))


def _is_short(trend: Trend) -> bool:
    """Whether there are too few runs to detect even a large change."""
    return len(trend.points) < min(2 * FEWEST_ON_A_SIDE, FEWEST_BEFORE + 1)


def _badge(series: Sequence[Series], worse: bool) -> Badge:
    if not series:
        return Badge("NO RUNS", "∅", Tone.VOID)
    if all(_is_short(trend) for one in series for trend in one.trends):
        return Badge("TOO FEW RUNS", "?", Tone.OPEN)
    return Badge("WORSE", "▼", Tone.BAD) if worse else Badge("STEADY", "=", Tone.GOOD)


def _headline(
    series: Sequence[Series], worse: Sequence[tuple[Series, Trend, Change]], left: int, unread: int
) -> Text:
    if not series and unread and not left:
        return f"No run here can be read; {times(unread, 'run')} left out."
    if not series:
        none = f"The options select no run; {times(left, 'run')} left out."
        return none if left else "There is no run here."
    if all(_is_short(trend) for one in series for trend in one.trends):
        return f"No series has the {FEWEST_BEFORE + 1} judged runs that change detection needs."
    if not worse:
        return "No quantity of any series changed for the worse."
    # The first bad run of the most recent series comes first.
    one, trend, change = worse[0]
    name = f"{_name(one)}: {trend.quantity.name}"
    more = len(worse) - 1
    others = f" (and {times(more, 'more change')})" if more else ""
    return phrase(f"{name} ", change_text(trend, change), others)


def _tables(one: Series, every: Sequence[Series]) -> Iterable[Table]:
    title = series_title(one, every)
    quantities = [trend.quantity for trend in one.trends]
    shown = one.points[-_ROWS_MOST:]
    left = len(one.points) - len(shown)
    yield Table(
        f"{title}: trends",
        ("quantity", "runs", "oldest to newest", "change"),
        tuple(_trend_row(trend) for trend in one.trends),
        frozenset({1}),
    )
    yield Table(
        title,
        ("started", "engine", "verdict", *(quantity.name for quantity in quantities)),
        tuple(_row(point, quantities) for point in reversed(shown)),
        frozenset({0, *range(3, 3 + len(quantities))}),  # dates are never split either
        f"{times(left, 'older run')} left out." if left else "",
    )


def _row(point: Point, quantities: Sequence[Tracked]) -> tuple[Text, ...]:
    values = (
        _amount(one, point.values[one.name].value, point.run_id) if one.name in point.values else ""
        for one in quantities
    )
    started = time.strftime("%Y-%m-%d %H:%M", time.gmtime(point.started_wall_s))
    return (started, point.version, point.verdict or "not judged", *values)


def _trend_row(trend: Trend) -> tuple[Text, ...]:
    said = joined("; ", (change_text(trend, change) for change in trend.changes))
    quiet = "too few runs to decide" if _is_short(trend) else "none"
    return (
        trend.quantity.name,
        str(len(trend.points)),
        sparkline(trend.values[-_SPARKS_MOST:]),
        said if trend.changes else quiet,
    )


def _gate(one: Series, trend: Trend) -> Gate:
    worse = [change for change in trend.changes if trend.is_worse(change)]
    few = _is_short(trend)
    state = GateState.FAILED if worse else GateState.SKIPPED if few else GateState.PASSED
    said = joined("; ", (change_text(trend, change) for change in worse))
    quiet = "too few runs to decide" if few else "no change for the worse"
    apart = ", ".join(f"{name} {value}" for name, value in one.differs_in.items())
    group = _name(one) + (f" ({apart})" if apart else "")
    return Gate(trend.quantity.name, group, state, said if worse else quiet)


def _notes(series: Sequence[Series], unread: Sequence[Unread]) -> Iterable[str]:
    if any(one.trends for one in series):
        yield (
            f"A change is reported where a permutation test gives p < {ALPHA:g}, with "
            f"{FEWEST_ON_A_SIDE} runs or more on either side; or, for the newest run alone, where "
            f"it is outside the {format_percent(1 - ALPHA)} prediction interval of {FEWEST_BEFORE} "
            "or more runs before it."
        )
    if any(trend.quantity.metric == THROUGHPUT for one in series for trend in one.trends):
        yield "throughput.mean is in computed tokens: those from the cache are left out."
    invalid = sum(point.invalid for one in series for point in one.points)
    if invalid:
        yield f"{times(invalid, 'INVALID run')} shown, and left out of the trends."
    for one in unread:
        yield f"left out: {one.problem}"


def _charts(index: int, one: Series, every: Sequence[Series]) -> ChartGroup:
    charts = tuple(
        _chart(f"history-{index}-{position}", trend)
        for position, trend in enumerate(one.trends)
        if len(trend.points) > 1
    )
    return ChartGroup(series_title(one, every), charts)


def _chart(key: str, trend: Trend) -> Chart:
    quantity = trend.quantity
    found = [point.values[quantity.name] for point in trend.points]
    runs = np.arange(1.0, len(found) + 1.0)
    value = np.array([one.value for one in found])
    lines = [Line(quantity.name, runs, value, Ink.POINTS)]
    lower, upper = (
        np.array([float("nan") if end is None else end for end in ends])
        for ends in zip(*((one.lower, one.upper) for one in found), strict=True)
    )
    if np.isfinite(lower).any() and quantity.stat is Stat.SLOPE:
        lines += [
            Line("lower", runs, lower, Ink.SPREAD),
            Line("upper", runs, upper, Ink.SPREAD),
        ]
    note = joined("; ", (change_text(trend, change) for change in trend.changes))
    chart = Chart(key, quantity.name, "", tuple(lines), note, from_zero=False, counted="run")
    chart = scaled(chart, declared(quantity.metric).unit)
    return replace(chart, unit=f"{chart.unit}/h") if quantity.stat is Stat.SLOPE else chart


def _amount(quantity: Tracked, value: float, of: str) -> Quantity:
    """Return a value of ``of``: a run, or the runs on one side of a change; slopes are per hour."""
    unit = declared(quantity.metric).unit
    if quantity.stat is Stat.SLOPE:
        return Quantity(quantity.name, value, unit.value, per="h", of=of, signed=True)
    shown = SHARE if unit is Unit.RATIO else unit.value
    return Quantity(quantity.name, value, shown, of=of, form=Form.LEVEL)


def history_json(series: Sequence[Series], unread: Sequence[Unread]) -> str:
    """Return every point and every change, for programs."""
    document: dict[str, JsonValue] = {
        "schema": "hybridbench.history/1",
        "series": [_series_json(one) for one in series],
        "unread": [to_json(one) for one in unread],
    }
    return json_text(document)


def _series_json(one: Series) -> dict[str, JsonValue]:
    runs = [to_json(point) for point in one.points]
    for run in runs:
        # What all runs share is stored once, in the series.
        del run["model"], run["profile"], run["facts"]
    return {
        "model": one.model,
        "profile": one.profile,
        "facts": one.points[0].facts,
        "runs": runs,
        "changes": [
            {
                "quantity": trend.quantity.name,
                "first_run": trend.points[change.at].run_id,
                "last_run_before": trend.points[change.at - 1].run_id,
                "before": change.before,
                "after": change.after,
                "worse": trend.is_worse(change),
                "p_value": change.p_value,
            }
            for trend in one.trends
            for change in trend.changes
        ],
    }
