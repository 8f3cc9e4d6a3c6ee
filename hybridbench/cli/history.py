"""``hybridbench history``: show stored runs as series, and where a quantity changed."""

from __future__ import annotations

import contextlib
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hybridbench.cli.options import OnlyModel, OnlyProfile, Output, Panel, ReportFormat
from hybridbench.cli.output import given_outputs
from hybridbench.cli.render import OutputOptions, print_document
from hybridbench.foundation.errors import (
    ErrorCode,
    RunDirectoryError,
    UsageError,
    full_stop,
    nearest,
)
from hybridbench.foundation.units import parse_duration_s
from hybridbench.rundir.layout import STORE

if TYPE_CHECKING:
    from hybridbench.over_time.comparer import Point, Tracked


class HistoryFormat(StrEnum):
    """Values of `history --format`."""

    CONSOLE = "console"
    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"
    JUNIT = "junit"
    GITHUB_SUMMARY = "github-summary"


def history(
    store: Annotated[
        Path,
        Panel.RUNS.option(
            metavar="DIR", help="Results directory; nightly runs in it are read as well."
        ),
    ] = STORE,
    model: OnlyModel = None,
    profile: OnlyProfile = None,
    metric: Annotated[
        list[str] | None,
        Panel.RUNS.option(
            metavar="NAME",
            help="Only these quantities (repeatable): rss, throughput.mean, ttft, hit_rate.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        Panel.RUNS.option(metavar="TIME", help="Only runs since a date or age: 2026-11-01, 30d."),
    ] = None,
    format_: Annotated[
        HistoryFormat, Panel.OUTPUT.option("--format", help="Output format.")
    ] = HistoryFormat.CONSOLE,
    output: Output = None,
) -> None:
    """Show trends of stored runs by model, profile and machine, and what changed when.

    Example: hybridbench history --profile chat-churn --metric rss --since 30d

    Runs are grouped by identical configuration.  The exit code is
    always 0; `--format junit` has a gate for each quantity.
    """
    if not store.is_dir():
        raise RunDirectoryError(
            f"{store} is not a directory; pass the results directory with --store"
        )
    since_s = _since(since)
    options = OutputOptions(ReportFormat(format_), given_outputs(output, HistoryFormat))
    from hybridbench.over_time.comparer import series_of
    from hybridbench.over_time.history_report import history_document, history_json
    from hybridbench.over_time.points import read_points

    every, unread = read_points(store)
    points = [point for point in every if _wanted(point, model, profile, since_s)]
    series = series_of(points, _quantities(metric or []))
    document = history_document(series, unread, store.name, len(every) - len(points))
    json = {ReportFormat.JSON: lambda: history_json(series, unread)}
    print_document(document, options, others=json)


def _wanted(point: Point, model: str | None, profile: str | None, since_s: float) -> bool:
    return (
        (model is None or point.model == model)
        and (profile is None or point.profile == profile)
        and point.started_wall_s >= since_s
    )


def _quantities(names: list[str]) -> list[Tracked]:
    from hybridbench.over_time.comparer import QUANTITIES

    if not names:
        return list(QUANTITIES)
    chosen = []
    for name in names:
        found = [q for q in QUANTITIES if q.name == name or q.name.partition(".")[0] == name]
        if not found:
            known = [quantity.name for quantity in QUANTITIES]
            raise UsageError(
                full_stop(f"{name}: there is no such quantity; {nearest(name, known)}"),
                code=ErrorCode.UNKNOWN_NAME,
                option="--metric",
            )
        chosen += [quantity for quantity in found if quantity not in chosen]
    return chosen


def _since(text: str | None) -> float:
    """Parse a date or an age into seconds since the epoch; a bare date is midnight UTC."""
    if text is None:
        return 0.0
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            # A bare number would be an age in seconds; 2026 is meant as a year.
            if not text.strip()[-1:].isdigit():
                return time.time() - parse_duration_s(text)
        raise UsageError(
            f"{text}: write a date such as 2026-11-01, or an age such as 30d.", option="--since"
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
