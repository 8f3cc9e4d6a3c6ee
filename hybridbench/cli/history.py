"""``hybridbench history``: runs of many nights beside each other, and where something changed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.output import write_output
from hybridbench.errors import RunDirectoryError, UsageError
from hybridbench.safe_output import echo, emit
from hybridbench.units import parse_duration_s

if TYPE_CHECKING:
    from hybridbench.history.points import Point, Quantity

FORMATS = ("console", "markdown", "html", "json", "junit", "github-summary")


def history(
    store: Annotated[
        Path, typer.Option(help="Where the runs are; nights in it are read as well.")
    ] = Path("results"),
    model: Annotated[str | None, typer.Option(help="Only runs of this model.")] = None,
    profile: Annotated[str | None, typer.Option(help="Only runs under this profile.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only these quantities (repeatable): rss, throughput.mean, ttft, hit_rate.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only runs from then on: 2026-11-01, or 30d for ago."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help=f"As {', '.join(FORMATS)}.")] = "console",
    output: Annotated[
        Path | None,
        typer.Option(
            help="The file to write into; a pipe, a terminal or the target of a symbolic link is "
            "written into.  Default: standard output."
        ),
    ] = None,
) -> None:
    """Stored runs by model, profile and machine: a trend for each quantity, and what changed when.

    Runs share a history only where everything agrees that decides what they measure.  The exit code
    is 0 whatever is found; `--format junit` has a gate for each quantity.
    """
    if format_ not in FORMATS:
        raise UsageError(f"--format {format_}: choose one of {', '.join(FORMATS)}.")
    if not store.is_dir():
        raise RunDirectoryError(f"{store} is no directory: name the store of the runs with --store")
    since_s = _since(since)
    from hybridbench.history.points import read_points
    from hybridbench.history.told import history_document, history_json
    from hybridbench.history.trends import series_of

    found = read_points(store)
    points = [point for point in found.points if _wanted(point, model, profile, since_s)]
    series = series_of(points, _quantities(metric or []))
    if format_ == "json":
        text = json.dumps(history_json(series, found.unread), indent=2) + "\n"
    else:
        from hybridbench.report.formats import FORMATS as TABLE

        document = history_document(series, found.unread, store.name)
        if format_ == "console" and output is None:
            from hybridbench.report.console import render_console
            from hybridbench.terminal import Terminal

            Terminal().print(render_console(document))
            return
        text = TABLE[format_].render(document)
    if output is None:
        if format_ in ("html", "json", "junit"):
            emit(text)
        else:
            echo(text, nl=False)
    else:
        write_output(output, text)


def _wanted(point: Point, model: str | None, profile: str | None, since_s: float) -> bool:
    return (
        (model is None or point.model == model)
        and (profile is None or point.profile == profile)
        and point.started_wall_s >= since_s
    )


def _quantities(names: list[str]) -> list[Quantity]:
    from hybridbench.history.points import QUANTITIES

    if not names:
        return list(QUANTITIES)
    chosen = []
    for name in names:
        found = [q for q in QUANTITIES if q.name == name or q.name.partition(".")[0] == name]
        if not found:
            known = ", ".join(quantity.name for quantity in QUANTITIES)
            raise UsageError(f"--metric {name}: choose of {known}.")
        chosen += [quantity for quantity in found if quantity not in chosen]
    return chosen


def _since(text: str | None) -> float:
    """The moment ``text`` names, in seconds since the epoch; a bare date is midnight UTC."""
    if text is None:
        return 0.0
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return time.time() - parse_duration_s(text)
        except ValueError as error:
            raise UsageError(
                f"--since {text}: write a date such as 2026-11-01, or a time ago such as 30d."
            ) from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
