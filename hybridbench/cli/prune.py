"""``hybridbench prune``: delete old results by rules, after saying what would go."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.errors import ExitCode, RunDirectoryError, UsageError
from hybridbench.safe_output import echo, one_line
from hybridbench.units import format_bytes

if TYPE_CHECKING:
    from hybridbench.history.prune import Doom


def prune(
    keep: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Keep the newest so many of each model, profile and setting that decides what a "
            "run measures; runs with a defect count apart.",
        ),
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option(min=0.0, help="Keep what began less than so many days ago.")
    ] = None,
    keep_failed: Annotated[
        bool, typer.Option("--keep-failed", help="Keep everything whose answer is not good.")
    ] = False,
    leaks: Annotated[
        bool, typer.Option("--leaks", help="Let leaks go too; without it they stay.")
    ] = False,
    damaged: Annotated[
        bool, typer.Option("--damaged", help="Let what cannot be read go too.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")
    ] = False,
    store: Annotated[Path, typer.Option(help="Where the results are.")] = Path("results"),
) -> None:
    """Delete runs, comparisons and nights that no rule keeps; give one rule or more.

    What is being written, leaks, what cannot be read, and the last good night of each plan stay.
    Only what proves by its content to be a result of hybridbench is touched, and nothing that has
    another file in it.
    """
    if keep is None and keep_days is None and not keep_failed:
        raise UsageError("prune needs a rule: --keep N, --keep-days D or --keep-failed.")
    if not store.is_dir():
        raise RunDirectoryError(f"{store} is no directory: name the store of the runs with --store")
    from hybridbench.history.prune import Fate, Rules, doomed, remove, size_of

    rules = Rules(keep, keep_days, keep_failed, leaks, damaged)
    dooms = doomed(store, rules, time.time())
    if dry_run:
        freed = 0
        for doom in dooms:
            size = size_of(doom.entry.path)
            freed += size if doom.fate is Fate.GOES else 0
            _say(doom, size)
        echo(f"{format_bytes(freed)} would be freed; nothing was deleted.")
        return
    for doom in dooms:
        if doom.is_foreign:
            echo(f"kept     {one_line(str(doom.entry.path))}  ({doom.why})")
    freed, failed, gone = 0, 0, 0
    for one in remove(store, dooms):
        freed += one.size_bytes
        gone += not one.problem
        failed += bool(one.problem)
        if one.problem:
            echo(f"hybridbench: not deleted: {one_line(one.problem)}", err=True)
        else:
            echo(f"deleted  {one_line(str(one.path))}  {format_bytes(one.size_bytes)}")
    echo(f"{gone} deleted, {len(dooms) - gone} kept, {format_bytes(freed)} freed.")
    if failed:
        raise typer.Exit(int(ExitCode.USAGE))


def _say(doom: Doom, size_bytes: int) -> None:
    path, why = one_line(str(doom.entry.path)), one_line(doom.why)
    echo(f"{doom.fate:<5} {path}  {format_bytes(size_bytes)}  ({why})")
