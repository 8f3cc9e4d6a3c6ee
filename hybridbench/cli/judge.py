"""``hybridbench judge``: run only the analysis, on series recorded elsewhere."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.options import Detail, Output, Panel, Quiet, ReportFormat, parse_seconds
from hybridbench.cli.output import given_outputs
from hybridbench.cli.render import OutputOptions, print_document
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.foundation.safe_output import echo, output_after_verdict, print_error

if TYPE_CHECKING:
    from hybridbench.series.judge import FileVerdict

EXIT_CODES = "Exit codes: 0 CLEAN, 10 LEAK, 11 DEGRADED, 13 INCONCLUSIVE, 2 usage or a bad file."


class JudgeFormat(StrEnum):
    """Values of `judge --format`."""

    CONSOLE = "console"
    JSON = "json"
    MARKDOWN = "markdown"


def judge(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE...]",
            help="A table (CSV, TSV or blanks, with a heading or without one), JSON (one document, "
            "or one object a line), or names and numbers in a loop: what ps, top, pidstat, "
            "psrecord, mprof, smem, jstat, nvidia-smi, docker stats, kubectl top, /metrics, /proc, "
            "cgroups, Prometheus, CloudWatch and Datadog write; each also as .gz; a run directory; "
            "- for standard input.",
            show_default=False,
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        Panel.COLUMNS.option(
            metavar="URL", help="Also query this Prometheus server; one row per set of labels."
        ),
    ] = None,
    query: Annotated[
        str | None,
        Panel.COLUMNS.option(
            metavar="PROMQL", help="PromQL query, such as process_resident_memory_bytes."
        ),
    ] = None,
    last: Annotated[
        str, Panel.COLUMNS.option(metavar="TIME", help="How far back to query.")
    ] = "24h",
    metric: Annotated[
        list[str] | None,
        Panel.COLUMNS.option(
            metavar="NAME[:UNIT]",
            help="A column to judge (repeatable).  Default: every level.  Units: bytes, KiB, MB, "
            "pages, count, s, ms, 1/s, ratio.",
        ),
    ] = None,
    work_column: Annotated[
        list[str] | None,
        Panel.COLUMNS.option(
            metavar="NAME",
            help="A cumulative counter (requests, tokens) that growth may follow (repeatable).  "
            "Default: columns that look like one.",
        ),
    ] = None,
    unit: Annotated[
        str | None,
        Panel.COLUMNS.option(
            "--unit", "-u", metavar="UNIT", help="Unit of columns whose header has none."
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        Panel.VERDICT.option(
            metavar="NAME<RATE",
            help="How much a column may worsen: 'rss<200MiB/h', 'fds<1/h' (repeatable).  It "
            "decides for its column; others count if they leak, not if they are undecided.",
        ),
    ] = None,
    only: Annotated[
        bool,
        Panel.VERDICT.option("--only", help="Judge only the columns of --threshold and --metric."),
    ] = False,
    steady_at: Annotated[
        str | None,
        Panel.VERDICT.option(
            metavar="TIME",
            help="When warm-up ended: a duration from the start (10m) or a time as in the file.",
        ),
    ] = None,
    lower_is_worse: Annotated[
        list[str] | None,
        Panel.COLUMNS.option(metavar="NAME", help="A column that must not fall (repeatable)."),
    ] = None,
    time_column: Annotated[
        str | None,
        Panel.COLUMNS.option(
            metavar="NAME",
            help="Time column, if its name does not show it; NAME:UNIT (s, ms, min, h, d) if that "
            "does not show its unit.",
        ),
    ] = None,
    interval: Annotated[
        str | None,
        Panel.COLUMNS.option(
            metavar="TIME", help="Time between two samples of a file without times: 10s."
        ),
    ] = None,
    never_restarted: Annotated[
        bool,
        Panel.VERDICT.option(
            "--never-restarted",
            help="Treat sudden drops as a sawtooth of one process, not as restarts.",
        ),
    ] = False,
    format_: Annotated[
        JudgeFormat, Panel.OUTPUT.option("--format", help="Output format.")
    ] = JudgeFormat.CONSOLE,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Judge recorded series: tables, JSON, /metrics, a Prometheus server, runs.

    Example: hybridbench judge rss.csv --threshold 'rss<200MiB/h'

    Each column gets a rate with its interval, a bound, and a verdict; the worst one is the exit
    code.  Nothing is started and no engine is loaded.
    """
    # Imported here: `--help` and usage errors should not wait for numpy.
    from hybridbench.records.verdict import EXIT_CODE
    from hybridbench.series.judge import JudgeOptions, judge_columns, judge_file, worst

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
        only=only,
    )
    if only and not (threshold or metric):
        raise UsageError(
            "needs --threshold or --metric: which columns?",
            code=ErrorCode.OPTION_CONFLICT,
            option="--only",
        )
    detail = Detail.BRIEF if quiet else Detail.USUAL
    shown = OutputOptions(ReportFormat(format_), given_outputs(output, JudgeFormat), detail=detail)
    files = files or []
    if files.count("-") > 1:
        raise UsageError("- may appear only once: standard input.", code=ErrorCode.BAD_VALUE)
    if (prometheus is None) != (query is None) or not (files or prometheus):
        raise UsageError(
            "give files, or --prometheus URL with --query PROMQL.", code=ErrorCode.OPTION_CONFLICT
        )
    judged = [judge_file(file, ask) for file in files]
    if prometheus is not None and query is not None:
        from hybridbench.foundation.clock import SystemClock
        from hybridbench.series.prometheus_api import RangeQuery, read_prometheus

        wanted = RangeQuery(
            prometheus, query, parse_seconds("--last", last), SystemClock().wall_s()
        )
        judged.append(judge_columns(read_prometheus(wanted), ask))
    code = int(EXIT_CODE[worst([file.kind for file in judged])])
    try:
        with output_after_verdict():
            _print(judged, shown)
    except UsageError as error:
        print_error(error)
        code = code or int(error.exit_code)
    for file in judged:
        for failure in file.failures:
            echo(f"{file.source}: {failure.trace}", err=True)
    raise typer.Exit(code)


def _print(judged: list[FileVerdict], shown: OutputOptions) -> None:
    from hybridbench.report.external_series import series_document, series_json

    json = {ReportFormat.JSON: lambda: series_json(judged) + "\n"}
    print_document(series_document(judged), shown, others=json)
