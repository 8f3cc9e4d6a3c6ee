"""``hybridbench judge``: the analysis alone, on series that somebody already has."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.options import Detail, Panel, Quiet, ReportFormat, parse_seconds
from hybridbench.cli.render import OutputOptions, print_document, print_text
from hybridbench.errors import ErrorCode, UsageError
from hybridbench.safe_output import echo, output_after_verdict

if TYPE_CHECKING:
    from hybridbench.series.judge import FileVerdict

EXIT_CODES = "Exit codes: 0 CLEAN, 10 LEAK, 11 DEGRADED, 13 INCONCLUSIVE, 2 usage or a bad file."


class JudgeFormat(StrEnum):
    """What `judge --format` takes."""

    CONSOLE = "console"
    JSON = "json"
    MARKDOWN = "markdown"


def judge(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="CSV (also nvidia-smi's), TSV, JSON lines, a Prometheus range export, a log of "
            "psrecord, mprof, pidstat or top -b; ps -o rss=, docker stats, kubectl top, "
            "nvidia-smi dmon, /metrics or /proc files in a loop; each also as .gz; a run "
            "directory; - for standard input.",
            show_default=False,
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=Panel.COLUMNS,
            metavar="NAME[:UNIT]",
            help="A column to judge (repeatable).  Default: every level.  Units: bytes, KiB, MB, "
            "pages, count, s, ms, 1/s, ratio.",
        ),
    ] = None,
    work_column: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=Panel.COLUMNS,
            metavar="NAME",
            help="A cumulative counter (requests, tokens) that growth may follow (repeatable).  "
            "Default: columns that look like one.",
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            "--unit",
            "-u",
            rich_help_panel=Panel.COLUMNS,
            metavar="UNIT",
            help="Unit of columns whose header has none.",
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=Panel.VERDICT,
            metavar="NAME<RATE",
            help="How much a column may worsen: 'rss<200MiB/h', 'fds<1/h' (repeatable).",
        ),
    ] = None,
    steady_at: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Panel.VERDICT,
            metavar="TIME",
            help="When warm-up ended: a duration from the start (10m) or a time as in the file.",
        ),
    ] = None,
    lower_is_worse: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=Panel.COLUMNS,
            metavar="NAME",
            help="A column that must not fall (repeatable).",
        ),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Panel.COLUMNS,
            metavar="NAME",
            help="Time column, if its name does not show it.",
        ),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Panel.COLUMNS,
            metavar="TIME",
            help="Time between two samples of a file without times: 10s.",
        ),
    ] = None,
    never_restarted: Annotated[
        bool,
        typer.Option(
            "--never-restarted",
            rich_help_panel=Panel.VERDICT,
            help="Treat sudden drops as a sawtooth of one process, not as restarts.",
        ),
    ] = False,
    output: Annotated[
        JudgeFormat, typer.Option("--format", rich_help_panel=Panel.OUTPUT, help="Output format.")
    ] = JudgeFormat.CONSOLE,
    quiet: Quiet = False,
) -> None:
    """Judge recorded series: CSV, JSON lines, Prometheus, psrecord, pidstat, nvidia-smi, ps, runs.

    Example: hybridbench judge rss.csv --threshold 'rss<200MiB/h'

    Each column gets a rate with its interval, a bound, and a verdict; the worst one is the exit
    code.  Nothing is started and no engine is loaded.
    """
    # Imported here: `--help` and usage errors should not wait for numpy.
    from hybridbench.series.judge import JudgeOptions, judge_file, worst

    ask = JudgeOptions(
        metrics=tuple(metric or ()),
        works=tuple(work_column or ()),
        unit=unit,
        thresholds=tuple(threshold or ()),
        steady_at=steady_at,
        lower_is_worse=tuple(lower_is_worse or ()),
        time_column=time_column,
        interval_s=None if interval is None else parse_seconds("--interval", interval),
        never_restarted=never_restarted,
    )
    if files.count("-") > 1:
        raise UsageError("- may appear only once: standard input.", code=ErrorCode.BAD_VALUE)
    judged = [judge_file(file, ask) for file in files]
    with output_after_verdict():
        _print(judged, output, quiet=quiet)
    for file in judged:
        for failure in file.failures:
            echo(f"{file.source}: {failure.trace}", err=True)
    from hybridbench.records.verdict import EXIT_CODE

    raise typer.Exit(int(EXIT_CODE[worst([file.kind for file in judged])]))


def _print(judged: list[FileVerdict], output: JudgeFormat, *, quiet: bool) -> None:
    from hybridbench.report.external_series import series_document, series_json

    if output is JudgeFormat.JSON:
        print_text(series_json(judged) + "\n")
    else:
        detail = Detail.BRIEF if quiet else Detail.USUAL
        print_document(series_document(judged), OutputOptions(ReportFormat(output), detail=detail))
