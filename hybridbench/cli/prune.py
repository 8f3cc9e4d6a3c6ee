"""``hybridbench prune``: delete old results by rules; ``--dry-run`` lists them first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from hybridbench.cli.options import Panel
from hybridbench.foundation.errors import ErrorCode, ExitCode, RunDirectoryError, UsageError
from hybridbench.foundation.safe_output import echo, one_line
from hybridbench.foundation.units import format_bytes
from hybridbench.rundir.layout import STORE


def prune(
    keep: Annotated[
        int | None,
        Panel.RULES.option(
            metavar="N",
            min=0,
            help="Keep the newest N of each model, profile and setting that decides what a run "
            "measures; runs with a defect count separately.",
        ),
    ] = None,
    keep_days: Annotated[
        float | None,
        Panel.RULES.option(
            metavar="D", min=0.0, help="Keep results that started less than D days ago."
        ),
    ] = None,
    keep_failed: Annotated[
        bool, Panel.RULES.option("--keep-failed", help="Keep everything that did not pass.")
    ] = False,
    leaks: Annotated[
        bool, Panel.RULES.option("--leaks", help="Also delete leaks; they are kept by default.")
    ] = False,
    damaged: Annotated[
        bool, Panel.RULES.option("--damaged", help="Also delete unreadable results.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be deleted, and delete nothing.")
    ] = False,
    store: Annotated[Path, Panel.RUNS.option(metavar="DIR", help="Results directory.")] = STORE,
) -> None:
    """Delete runs, comparisons and nightly runs that no rule keeps; give one rule or more.

    Example: hybridbench prune --keep 5 --keep-days 30 --dry-run

    What is being written, leaks, what cannot be read, the last green run of each plan, and runs
    that a kept comparison compares are kept.  Only directories that are results of hybridbench by
    their content are touched, and none that holds another file.  The oldest go first.
    """
    if keep is None and keep_days is None and not keep_failed:
        raise UsageError(
            "prune needs a rule: --keep N, --keep-days D or --keep-failed.",
            code=ErrorCode.OPTION_CONFLICT,
        )
    if not store.is_dir():
        raise RunDirectoryError(
            f"{store} is not a directory; pass the results directory with --store"
        )
    from hybridbench.over_time.prune import Rules, decide, delete, size_of

    rules = Rules(keep, keep_days, keep_failed, leaks, damaged)
    decisions = decide(store, rules, time.time())
    freed, deleted, failed = 0, 0, 0
    for decision in decisions:
        path = decision.entry.path
        size = size_of(path)
        if decision.to_delete:
            try:
                if not dry_run:
                    delete(store, path)
            except (RunDirectoryError, OSError) as error:
                failed += 1
                echo(f"hybridbench: not deleted: {one_line(str(error))}", err=True)
                continue
            freed += size
            deleted += 1
        action = "delete" if decision.to_delete else "keep"
        about = f"{format_bytes(size)}  ({one_line(decision.reason)})"
        echo(f"{action:<6} {one_line(str(path))}  {about}")
    if dry_run:
        echo(f"{format_bytes(freed)} would be freed; nothing was deleted.")
    else:
        echo(f"{deleted} deleted, {len(decisions) - deleted} kept, {format_bytes(freed)} freed.")
    if failed:
        raise typer.Exit(int(ExitCode.USAGE))
