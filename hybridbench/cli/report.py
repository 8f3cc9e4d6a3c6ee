"""``hybridbench report``: judge stored results again and render them in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridbench.cli.completion import complete_result
from hybridbench.cli.options import (
    FORMAT_NAMES,
    Output,
    Panel,
    Quiet,
    ReportFormat,
    Verbose,
    given_thresholds,
)
from hybridbench.cli.render import output_options, render, write_interim_report
from hybridbench.foundation.errors import ErrorCode, UsageError


def report(
    directory: Annotated[
        Path,
        typer.Argument(
            autocompletion=complete_result,
            metavar="DIRECTORY",
            help="Directory of a run (killed ones too), a comparison or a nightly run.",
        ),
    ],
    format_: Annotated[
        ReportFormat | None,
        Panel.OUTPUT.option(
            "--format",
            metavar="FORMAT",
            help=f"Print in this format ({FORMAT_NAMES}), and write nothing into the directory.  "
            "Without it the derived files are rebuilt and the summary is printed.",
        ),
    ] = None,
    output: Output = None,
    open_page: Annotated[
        bool, Panel.OUTPUT.option("--open", help="Open the report with its charts in a browser.")
    ] = False,
    so_far: Annotated[
        bool,
        Panel.VERDICT.option(
            "--so-far",
            help="For a run in progress: write verdict-so-far.json, report-so-far.html and "
            "report-so-far.md.  The run's own process does the same on SIGUSR1.",
        ),
    ] = False,
    threshold: Annotated[
        list[str] | None,
        Panel.VERDICT.option(
            metavar="METRIC.STAT<LIMIT",
            help="Check the run against additional thresholds (repeatable); prints the verdict "
            "and writes nothing.  See docs/reference/thresholds.md.",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Judge stored results again; rebuild report.html, report.md, junit.xml and the verdict.

    Example: hybridbench report results/20261124-101500-qwen3-next-chat-churn --format markdown

    The exit code is that of the soak, comparison or nightly run: the verdict's, or 130 or 143 if
    it was interrupted.
    """
    if so_far:
        if format_ is not None or output or open_page or threshold or quiet or verbose:
            raise UsageError(
                "cannot be combined with other options.",
                code=ErrorCode.OPTION_CONFLICT,
                option="--so-far",
            )
        raise typer.Exit(write_interim_report(directory))
    options = output_options(
        format_ or ReportFormat.CONSOLE, output, quiet=quiet, verbose=verbose, open_page=open_page
    )
    thresholds = given_thresholds(threshold or [])
    rebuild = format_ is None and not thresholds
    raise typer.Exit(render(directory, options, rebuild=rebuild, thresholds=thresholds))
