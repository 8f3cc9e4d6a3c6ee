"""``hybridbench watch``: a program that others wrote, from its start to a verdict."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from hybridbench.cli.environment import of_the_user
from hybridbench.cli.options import (
    FORMAT_NAMES,
    Panel,
    Quiet,
    ReportFormat,
    Store,
    Verbose,
    detail_of,
    given_thresholds,
    parse_seconds,
)
from hybridbench.cli.render import OutputOptions
from hybridbench.cli.run_options import (
    Extend,
    Listen,
    SoakUi,
    Stop,
    StopMode,
    Threshold,
    Ui,
    chosen_duration_s,
    chosen_extend_s,
    listening,
    render_outcome,
)
from hybridbench.cli.user_settings import typed_command
from hybridbench.errors import ErrorCode, UsageError
from hybridbench.foreign import is_http_address
from hybridbench.units import format_duration, parse_bytes

EXIT_CODES: Final = (
    "Exit codes: 0 CLEAN, 10 LEAK, 11 DEGRADED, 13 INCONCLUSIVE, 14 CRASHED, 16 INVALID, 2 usage, "
    "130 interrupted, 143 terminated, 1 a bug in hybridbench."
)
_IDLE_EVERY_S: Final = 60.0
_IDLE_EVERY_S_MIN: Final = 10.0
# Of a short run: three rounds between idle points are what exact counts need, and some to spare.
_IDLE_POINTS: Final = 8


def watch(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND...",
            help="The program to start and watch, with its arguments: vllm serve DIR --port 8000.",
            show_default=False,
        ),
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=Panel.TARGET,
            metavar="PID",
            min=1,
            help="Watch a process that runs already, with all that it has started.  It is neither "
            "paused nor ended; it has a probe only if it was started with one (`probe export`).",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Panel.TARGET,
            metavar="URL",
            help="The target's page of metrics in Prometheus' format, such as "
            "http://127.0.0.1:8000/metrics: growth is then told per request, and the target's own "
            "gauges say when it is idle.",
        ),
    ] = None,
    ready: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Panel.TARGET,
            metavar="URL",
            help="A page that answers once the target serves.  Default: one completion at the "
            "server of --metrics.",
        ),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Panel.WORKLOAD,
            metavar="COMMAND",
            help="A load tool to run while the target serves.  It is started again when it ends, "
            "and paused (SIGSTOP) at idle points.",
        ),
    ] = None,
    duration: Annotated[
        str,
        typer.Option(
            rich_help_panel=Panel.WORKLOAD,
            metavar="TIME",
            help="How long to watch once the target serves: 90s, 10m, 8h.",
        ),
    ] = "10m",
    idle_every: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Panel.PROBES,
            metavar="TIME",
            help="From one idle point to the next; 0 for none.  There the load pauses, and what "
            "is left is counted.  Without --load, points at which the target is idle by itself.  "
            "Default: 60s, or less in a short run.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=Panel.TARGET,
            metavar="FILE",
            help="The log to read for what the engine says of its pools.  Default: what COMMAND "
            "writes.",
        ),
    ] = None,
    reset_cache: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Panel.PROBES,
            metavar="URL",
            help="Address that gets a POST at each idle point, to empty the target's cache; "
            "http://127.0.0.1:30000/flush_cache for SGLang.",
        ),
    ] = None,
    instrument: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=Panel.PROBES,
            metavar="REGEX",
            help="Give a probe to Python processes whose command line matches (repeatable).  "
            "Default: COMMAND and its Python children that run the same program.",
        ),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe/--no-probe",
            rich_help_panel=Panel.PROBES,
            help="Look inside Python processes with a probe that their environment carries in; "
            "--no-probe watches from outside only.",
        ),
    ] = True,
    cache_budget: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=Panel.PROBES,
            metavar="NAME=SIZE",
            help="A cache that may grow to SIZE before its growth counts as a leak (repeatable): "
            "prompt=8GiB.",
        ),
    ] = None,
    stop: Stop = StopMode.AUTO,
    extend: Extend = None,
    threshold: Threshold = None,
    format_: Annotated[
        ReportFormat,
        typer.Option(
            "--format",
            rich_help_panel=Panel.OUTPUT,
            metavar="FORMAT",
            help=f"Format of the final report: {FORMAT_NAMES}.",
        ),
    ] = ReportFormat.CONSOLE,
    listen: Listen = None,
    store: Store = Path("results"),
    ui: Ui = SoakUi.AUTO,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Watch a server of any engine under any load, and report what it leaks.

    Example: hybridbench watch --metrics http://127.0.0.1:8000/metrics --load 'vllm bench serve
    --model DIR --num-prompts 600' -- vllm serve DIR

    Python processes of COMMAND get a probe, which counts objects and entries of containers and
    reads none of them.  All options stand before COMMAND.  Ctrl-C ends COMMAND and writes the
    report; a second signal stops at once.
    """
    shown = OutputOptions(format_, detail=detail_of(quiet=quiet, verbose=verbose))
    words = _target(command or [], pid)
    duration_s = chosen_duration_s(duration, 0.0)
    for option, url in (
        ("--metrics", metrics),
        ("--ready", ready),
        ("--reset-cache", reset_cache),
    ):
        _check_url(option, url)
    if log is not None and not log.is_file():
        raise UsageError(f"{log}: there is no such file.", option="--log")
    load_words = _load(load, metrics, ready)
    from hybridbench.records.manifest import Options
    from hybridbench.runs.soak import soak
    from hybridbench.runs.watch import WatchedUnderSoak, WatchPlan
    from hybridbench.targets.prepared import prepared_target

    prepared = prepared_target(words)
    plan = WatchPlan(
        name=prepared.name if prepared is not None else _name(words, pid),
        store=store,
        duration_s=duration_s,
        ui=(SoakUi.NONE if quiet else ui).value,
        thresholds=given_thresholds(threshold or []),
        options=Options(
            stop=stop.value,
            extend_s=chosen_extend_s(extend, duration_s),
            diagnose="never",
            cache_budgets=_budgets(cache_budget or []),
        ),
        command=_stored(words),
        target=words,
        pid=pid,
        environment=of_the_user(),
        metrics_url=metrics or "",
        ready_url=ready or "",
        log=log,
        load=load_words,
        idle_every_s=_idle_every(idle_every, duration_s),
        reset_url=reset_cache or "",
        instrument=_patterns(instrument or []),
        prepared=prepared,
        probed=probe,
    )
    with listening(listen) as listener, WatchedUnderSoak(plan) as under:
        outcome = soak(under, on_started=None if listener is None else listener.start)
        if outcome.crashed:
            under.print_last_words()
    raise typer.Exit(render_outcome(outcome, shown))


def _target(command: Sequence[str], pid: int | None) -> tuple[str, ...]:
    if bool(command) == (pid is not None):
        raise UsageError(
            "and COMMAND: give one of them, for example hybridbench watch -- python server.py.",
            code=ErrorCode.OPTION_CONFLICT if command else ErrorCode.MISSING_ARGUMENT,
            option="--pid",
        )
    return tuple(command)


def _check_url(option: str, url: str | None) -> None:
    if url is not None and not is_http_address(url):
        raise UsageError(
            ": not an address of HTTP; write for example http://127.0.0.1:8000/metrics.",
            option=option,
        )


def _load(given: str | None, metrics: str | None, ready: str | None) -> tuple[str, ...]:
    if given is None:
        return ()
    try:
        words = tuple(shlex.split(given))
    except ValueError as error:
        raise UsageError(f": {error}; quote it as for a shell.", option="--load") from error
    if not words:
        raise UsageError(": names no command.", option="--load")
    if shutil.which(words[0]) is None:
        raise UsageError(f"{words[0]}: there is no such command.", option="--load")
    if metrics is None and ready is None:
        raise UsageError(
            "needs --metrics or --ready, which tell when the target serves.",
            code=ErrorCode.NEEDS_OPTION,
            option="--load",
            also=("--metrics", "--ready"),
        )
    return words


def _budgets(texts: Sequence[str]) -> dict[str, int]:
    budgets: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.partition("=")
        try:
            size_bytes = parse_bytes(size)
        except ValueError:
            size_bytes = 0
        if not equals or not name.strip() or size_bytes <= 0:
            raise UsageError(
                f"{text}: write NAME=SIZE, for example prompt=8GiB.", option="--cache-budget"
            )
        if budgets.setdefault(name.strip(), size_bytes) != size_bytes:
            raise UsageError(
                f"{name.strip()} is given with two sizes; keep one of them.",
                code=ErrorCode.OPTION_CONFLICT,
                option="--cache-budget",
            )
    return budgets


def _patterns(texts: Sequence[str]) -> tuple[str, ...]:
    for text in texts:
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(
                f"{text}: not a regular expression ({error}).", option="--instrument"
            ) from error
    return tuple(texts)


def _idle_every(given: str | None, duration_s: float) -> float:
    if given is None:
        return max(_IDLE_EVERY_S_MIN, min(_IDLE_EVERY_S, duration_s / _IDLE_POINTS))
    every_s = 0.0 if given == "0" else parse_seconds("--idle-every", given)
    if 0.0 < every_s < _IDLE_EVERY_S_MIN:
        raise UsageError(
            f"{given}: the target is to work between two idle points; use "
            f"{format_duration(_IDLE_EVERY_S_MIN)} or more, or 0 for none.",
            option="--idle-every",
        )
    return every_s


def _stored(target: Sequence[str]) -> tuple[str, ...]:
    """The command line as the manifest has it: ``--`` before that of the target, and no secrets."""
    from hybridbench.sampling.redaction import redacted

    typed = list(typed_command())
    if target and "--" not in typed[: len(typed) - len(target)]:
        typed.insert(len(typed) - len(target), "--")
    return redacted(typed)


def _name(command: Sequence[str], pid: int | None) -> str:
    """What the run is called: the program, or the script or module that an interpreter runs."""
    if pid is not None:
        return f"pid-{pid}"
    from hybridbench.sampling.roles import role_of_command

    return role_of_command(command)
