"""``hybridbench watch``: observe a third-party program from its start to a verdict."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from typing import Annotated, Final

import typer

from hybridbench.cli.observed import (
    CacheBudget,
    Command,
    Course,
    IdleEvery,
    Instrument,
    Log,
    Metrics,
    Pid,
    Probe,
    ProbeOptions,
    Ready,
    ResetCache,
    TargetOptions,
    observed_plan,
    run_observed,
)
from hybridbench.cli.options import (
    Format,
    Output,
    Panel,
    Quiet,
    ReportFormat,
    Store,
    Verbose,
)
from hybridbench.cli.render import output_options
from hybridbench.cli.run_options import (
    Extend,
    Listen,
    SoakUi,
    Stop,
    StopMode,
    Threshold,
    Ui,
)
from hybridbench.foundation.errors import UsageError
from hybridbench.rundir.layout import STORE

EXIT_CODES: Final = (
    "Exit codes: 0 CLEAN, 10 LEAK, 11 DEGRADED, 13 INCONCLUSIVE, 14 CRASHED, 16 INVALID, 2 usage, "
    "130 interrupted, 143 terminated, 1 a bug in hybridbench."
)


def watch(
    command: Command = None,
    pid: Pid = None,
    metrics: Metrics = None,
    ready: Ready = None,
    load: Annotated[
        str | None,
        Panel.WORKLOAD.option(
            metavar="COMMAND",
            help="A load tool to run while the target serves.  It is started again when it ends, "
            "and paused (SIGSTOP) at idle points.",
        ),
    ] = None,
    duration: Annotated[
        str,
        Panel.WORKLOAD.option(
            metavar="TIME", help="How long to watch once the target serves: 90s, 10m, 8h."
        ),
    ] = "10m",
    idle_every: IdleEvery = None,
    log: Log = None,
    reset_cache: ResetCache = None,
    instrument: Instrument = None,
    probe: Probe = True,
    cache_budget: CacheBudget = None,
    stop: Stop = StopMode.AUTO,
    extend: Extend = None,
    threshold: Threshold = None,
    format_: Format = ReportFormat.CONSOLE,
    output: Output = None,
    listen: Listen = None,
    store: Store = STORE,
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
    shown = output_options(format_, output, quiet=quiet, verbose=verbose)
    target = TargetOptions(command, pid, metrics, ready, log)
    probes = ProbeOptions(idle_every, reset_cache, instrument, probe, cache_budget)
    course = Course(store, duration, SoakUi.NONE if quiet else ui, stop, extend, threshold or [])
    plan = observed_plan(target, probes, course, 0.0)
    plan = replace(plan, load=_load(load, metrics, ready))
    raise typer.Exit(run_observed(plan, shown, listen))


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
            "needs --metrics or --ready, to determine when the target is ready.",
            option="--load",
            also=("--metrics", "--ready"),
        )
    return words
