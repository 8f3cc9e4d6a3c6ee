"""``hybridbench list runs``: list a store's results in any state, newest first."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.options import OnlyModel, OnlyProfile
from hybridbench.foundation.errors import ErrorCode, RunDirectoryError, UsageError
from hybridbench.foundation.safe_output import echo, emit, one_line
from hybridbench.foundation.units import format_duration
from hybridbench.records.finding import VerdictKind
from hybridbench.records.json_value import JsonValue, json_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hybridbench.rundir.listing import RunSummary

_DAMAGED, _RUNNING, _OPEN = "DAMAGED", "RUNNING", "not judged"
# The answers listed for runs and nightly runs; comparisons have further ones.
_ANSWERS = (*VerdictKind, "PASS", "FAIL", _DAMAGED, _RUNNING, _OPEN)


class ListFormat(StrEnum):
    """Values of `list runs --format`."""

    CONSOLE = "console"
    JSON = "json"


def list_stored(
    store: Annotated[Path, typer.Option(metavar="DIR", help="Results directory.")] = Path(
        "results"
    ),
    model: OnlyModel = None,
    profile: OnlyProfile = None,
    verdict: Annotated[
        str | None,
        typer.Option(
            metavar="VERDICT",
            help="Only results with this verdict, such as LEAK, CLEAN, DAMAGED or RUNNING.",
        ),
    ] = None,
    format_: Annotated[
        ListFormat, typer.Option("--format", help="Output format.")
    ] = ListFormat.CONSOLE,
) -> None:
    """List runs, comparisons and nightly runs of a results directory, damaged ones included.

    Example: hybridbench list runs --verdict LEAK
    """
    if not store.is_dir():
        raise RunDirectoryError(f"there is no results directory {store}; pass --store DIR")
    from hybridbench.rundir.listing import list_store

    every = list_store(store)
    if verdict is not None:
        _check_verdict(verdict, every)
    shown = [
        entry
        for entry in every
        if (model is None or entry.model == model)
        and (profile is None or entry.profile == profile)
        and (verdict is None or answer(entry).casefold() == verdict.casefold())
    ]
    if format_ is ListFormat.JSON:
        emit(json_text([_listed(entry) for entry in shown]))
        return
    from hybridbench.foundation.terminal import Terminal

    console = Terminal()
    if console.is_terminal:
        console.print(_table(store, shown))
    else:
        for line in _lines(store, shown):
            echo(line)
    left = len(every) - len(shown)
    if left or not shown:
        echo(f"{len(shown)} of {len(every)} shown." if every else f"{store} holds no runs.")


def _check_verdict(text: str, entries: Sequence[RunSummary]) -> None:
    """Refuse an unknown verdict, which would always give an empty list.

    Raises:
        UsageError: names the nearest verdict, or those of a run.
    """
    # Comparison verdicts need numpy, so try the others first; older versions may have stored more.
    if text.casefold() in {word.casefold() for word in (*_ANSWERS, *map(answer, entries))}:
        return
    from hybridbench.analysis.comparison.answer import answer_words

    known = {word.casefold(): word for word in (*_ANSWERS, *answer_words())}
    if text.casefold() in known:
        return
    near = difflib.get_close_matches(text.casefold(), known, n=1)
    advice = f"did you mean {known[near[0]]}?" if near else f"choose one of {', '.join(_ANSWERS)}."
    raise UsageError(
        f"{text}: there is no such verdict; {advice}",
        code=ErrorCode.UNKNOWN_CHOICE,
        option="--verdict",
    )


def answer(entry: RunSummary) -> str:
    """The verdict, or the reason for its absence."""
    if entry.problem:
        return _DAMAGED
    if entry.writer is not None:
        return _RUNNING
    return entry.verdict or _OPEN


def _table(store: Path, entries: Sequence[RunSummary]) -> RenderableType:
    """One line per run, cut to the width of the terminal."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="fold")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right", style="dim")
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(
        *(Text(head, style="dim") for head in ("directory", "verdict", "length", "result"))
    )
    for row in _rows(store, entries):
        grid.add_row(*map(Text, row))
    return grid


def _lines(store: Path, entries: Sequence[RunSummary]) -> Iterator[str]:
    """One uncut line per run, for a pipe."""
    rows = _rows(store, entries)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    for name, verdict, length, headline in rows:
        yield f"{name:{widths[0]}}  {verdict:{widths[1]}}  {length:>{widths[2]}}  {headline}"


def _rows(store: Path, entries: Sequence[RunSummary]) -> list[tuple[str, str, str, str]]:
    return [
        (
            one_line(str(entry.path.relative_to(store))),
            one_line(answer(entry)),
            "" if entry.duration_s is None else format_duration(entry.duration_s),
            one_line(_summary(entry)),
        )
        for entry in entries
    ]


def _summary(entry: RunSummary) -> str:
    if entry.problem:
        return entry.problem
    if entry.bare_headline:
        return entry.bare_headline
    what = " / ".join(part for part in (entry.model, entry.profile) if part)
    return f"{entry.kind} of {what}" if what else entry.kind.value


def _listed(entry: RunSummary) -> dict[str, JsonValue]:
    """One entry as JSON; ``started`` is in UTC."""
    started = entry.started_wall_s
    stamp = None if started is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started))
    return {
        "path": str(entry.path),
        "kind": entry.kind.value,
        "run_id": entry.run_id,
        "answer": answer(entry),
        "headline": entry.headline,
        "model": entry.model,
        "profile": entry.profile,
        "defects": entry.defects,
        "started": stamp,
        "duration_s": entry.duration_s,
        "problem": entry.problem or None,
    }
