"""``hybridbench report``: judge a stored run again and rebuild its report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridbench.cli.judged import tell, tell_so_far


def report(
    run: Annotated[Path, typer.Argument(help="A run directory, also of a run that was killed.")],
    so_far: Annotated[
        bool,
        typer.Option(
            "--so-far",
            help="Of a run that goes on: write verdict-so-far.json, report-so-far.html and "
            "report-so-far.md.  The run's own process does the same on SIGUSR1.",
        ),
    ] = False,
) -> None:
    """Judge a stored run again; rebuild verdict.json, report.html and report.md.

    The exit code is that of the soak: the verdict's, or 130 or 143 if it was interrupted.
    """
    raise typer.Exit(tell_so_far(run) if so_far else tell(run))
