"""``hybridbench prune``: delete old results by rules; ``--dry-run`` lists them first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.options import Panel
from hybridbench.errors import ErrorCode, ExitCode, RunDirectoryError, UsageError
from hybridbench.safe_output import echo, one_line
from hybridbench.units import format_bytes

if TYPE_CHECKING:
    from hybridbench.over_time.prune import PruneDecision


def prune(
    keep: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=Panel.RULES,
            metavar="N",
            min=0,
            help="Keep the newest N of each model, profile and setting that decides what a run "
            "measures; runs with a defect count separately.",
        ),
    ] = None,
    keep_days: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=Panel.RULES,
            metavar="D",
            min=0.0,
            help="Keep results that started less than D days ago.",
        ),
    ] = None,
    keep_failed: Annotated[
        bool,
        typer.Option(
            "--keep-failed", rich_help_panel=Panel.RULES, help="Keep everything that did not pass."
        ),
    ] = False,
    leaks: Annotated[
        bool,
        typer.Option(
            "--leaks",
            rich_help_panel=Panel.RULES,
            help="Also delete leaks; they are kept by default.",
        ),
    ] = False,
    damaged: Annotated[
        bool,
        typer.Option(
            "--damaged", rich_help_panel=Panel.RULES, help="Also delete unreadable results."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be deleted, and delete nothing.")
    ] = False,
    store: Annotated[
        Path, typer.Option(rich_help_panel=Panel.RUNS, metavar="DIR", help="Results directory.")
    ] = Path("results"),
) -> None:
    """Delete runs, comparisons and nightly runs that no rule keeps; give one rule or more.

    Example: hybridbench prune --keep 5 --keep-days 30 --dry-run

    What is being written, leaks, what cannot be read, and the last green run of each plan are kept.
    Only directories that are results of hybridbench by their content are touched, and none that
    holds another file.
    """
    if keep is None and keep_days is None and not keep_failed:
        raise UsageError(
            "prune needs a rule: --keep N, --keep-days D or --keep-failed.",
            code=ErrorCode.NEEDS_OPTION,
        )
    if not store.is_dir():
        raise RunDirectoryError(
            f"{store} is not a directory; pass the results directory with --store"
        )
    from hybridbench.over_time.prune import PruneAction, Rules, decide, delete, size_of

    rules = Rules(keep, keep_days, keep_failed, leaks, damaged)
    decisions = decide(store, rules, time.time())
    if dry_run:
        freed = 0
        for decision in decisions:
            size = size_of(decision.entry.path)
            freed += size if decision.action is PruneAction.DELETE else 0
            _print_decision(decision, size)
        echo(f"{format_bytes(freed)} would be freed; nothing was deleted.")
        return
    for decision in decisions:
        if decision.is_foreign:
            echo(f"kept     {one_line(str(decision.entry.path))}  ({decision.reason})")
    freed, failed, deleted = 0, 0, 0
    for one in delete(store, decisions):
        freed += one.size_bytes
        deleted += not one.problem
        failed += bool(one.problem)
        if one.problem:
            echo(f"hybridbench: not deleted: {one_line(one.problem)}", err=True)
        else:
            echo(f"deleted  {one_line(str(one.path))}  {format_bytes(one.size_bytes)}")
    echo(f"{deleted} deleted, {len(decisions) - deleted} kept, {format_bytes(freed)} freed.")
    if failed:
        raise typer.Exit(int(ExitCode.USAGE))


def _print_decision(decision: PruneDecision, size_bytes: int) -> None:
    path, reason = one_line(str(decision.entry.path)), one_line(decision.reason)
    echo(f"{decision.action:<6} {path}  {format_bytes(size_bytes)}  ({reason})")
