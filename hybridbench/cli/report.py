"""``hybridbench report``: judge stored results again and render them in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridbench.cli.options import ReportFormat
from hybridbench.cli.render import (
    OutputOptions,
    render,
    render_with_thresholds,
    write_interim_report,
)
from hybridbench.cli.thresholds import given_thresholds
from hybridbench.errors import UsageError


def report(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY",
            help="A run, also one that was killed; a comparison; a night.",
        ),
    ],
    format_: Annotated[
        ReportFormat | None,
        typer.Option(
            "--format",
            help="Print it in this format, and write nothing into the directory.  "
            "Without it the derived files are written anew and the summary is printed.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The file to write --format into; a pipe, a terminal or the target of a symbolic "
            "link is written into.  Default: standard output."
        ),
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Show the page with the charts in your browser.")
    ] = False,
    so_far: Annotated[
        bool,
        typer.Option(
            "--so-far",
            help="Of a run that goes on: write verdict-so-far.json, report-so-far.html and "
            "report-so-far.md.  The run's own process does the same on SIGUSR1.",
        ),
    ] = False,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC.STAT<LIMIT",
            help="Check the run against additional thresholds (repeatable); prints the verdict "
            "and writes nothing.  See docs/reference/thresholds.md.",
        ),
    ] = None,
) -> None:
    """Judge stored results again; rebuild report.html, report.md, junit.xml and the verdict.

    The exit code is that of the soak, the comparison or the night: the verdict's, or 130 or 143 if
    it was interrupted.
    """
    if so_far:
        if format_ is not None or output is not None or open_page or threshold:
            raise UsageError("--so-far writes files of its own: leave out every other option.")
        raise typer.Exit(write_interim_report(directory))
    if output is not None and format_ is None:
        raise UsageError("--output FILE: say what to write into it with --format.")
    options = OutputOptions(format_ or ReportFormat.CONSOLE, output, open_page)
    if threshold:
        raise typer.Exit(render_with_thresholds(directory, given_thresholds(threshold), options))
    raise typer.Exit(render(directory, options, rebuild=format_ is None))
