"""``hybridbench soak``: run an engine under traffic, judge the samples, write the report."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hybridbench.cli.chosen_defects import chosen_defects
from hybridbench.cli.completion import complete_defect, complete_result
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
    run_observed,
)
from hybridbench.cli.options import (
    FORMAT_NAMES,
    Ballast,
    Gc,
    Model,
    Output,
    Panel,
    Profiles,
    Quiet,
    ReportFormat,
    Seed,
    Set,
    Store,
    Targets,
    Verbose,
    chosen_model,
    given_thresholds,
    parse_overrides,
    parse_seconds,
    targets_root,
)
from hybridbench.cli.preview import print_preview
from hybridbench.cli.render import OutputOptions, output_options, render_ended
from hybridbench.cli.resumed import resume as resume_run
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
from hybridbench.cli.soak_server import ApiName, Requests, of_prepared, parse_answers, server_plan
from hybridbench.cli.user_settings import option_name, typed_command
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.foundation.units import format_duration
from hybridbench.rundir.layout import STORE

if TYPE_CHECKING:
    from hybridbench.runs.plan import SoakPlan
    from hybridbench.targets.bundled import WorkerProgram
    from hybridbench.workload.trace_replay import TraceOptions

EXIT_CODES = (
    "Exit codes: 0 CLEAN, 10 LEAK, 11 DEGRADED, 13 INCONCLUSIVE, 14 CRASHED, 15 INVARIANT, "
    "16 INVALID, 17 CORRUPT, 2 usage, 130 interrupted, 143 terminated, 1 a bug in hybridbench."
)
# Options that do not apply to servers, or only to them.
_NOT_OF_SERVERS: Final = frozenset(
    {
        "defect",
        "device",
        "dtype",
        "gc",
        "ballast",
        "malloc",
        "watchdog",
        "diagnose",
        "on_leak",
        "memray",
        "resume",
        "dry_run",
    }
)
_OF_SERVERS: Final = frozenset(
    {
        "command",
        "api",
        "stream",
        "vocab",
        "restarts",
        "pid",
        "metrics",
        "ready",
        "idle_every",
        "log",
        "reset_cache",
        "instrument",
        "probe",
        "cache_budget",
    }
)
# Options that do not apply to a released engine's classes.
_NOT_OF_RELEASES: Final = frozenset({"defect", "device", "dtype", "memray", "resume", "answers"})
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


class MallocMode(StrEnum):
    """The worker's malloc settings."""

    PINNED = "pinned"
    SYSTEM = "system"


class DiagnoseMode(StrEnum):
    """When to diagnose the worker at the end."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Dtype(StrEnum):
    """Data type of weights and tensors."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BFLOAT16 = "bfloat16"


def soak(
    context: typer.Context,
    command: Command = None,
    url: Annotated[
        str | None,
        Panel.TARGET.option(
            metavar="URL",
            help="Send the profile's traffic to an OpenAI-compatible server of any engine, such as "
            "http://127.0.0.1:8000, instead of the bundled engine.  COMMAND starts it; without "
            "one, --pid names it.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        Panel.TARGET.option(
            metavar="ENGINE==RELEASE",
            help="Soak a release of another engine instead of the bundled one: a server that "
            "`target prepare` has installed, such as vllm==0.32.0, on a free port; or the "
            "scheduler and caches of one without its server and model, such as "
            "sglang-cache==0.5.23 or vllm-core==0.32.0.  For a server, COMMAND holds further "
            "options, and --model picks the checkpoint: llama or qwen3-next.",
        ),
    ] = None,
    targets: Targets = None,
    api: Annotated[
        ApiName | None,
        Panel.TARGET.option(
            help="With --url: the interface that gets the requests.  ids: /v1/completions with "
            "prompts as token ids below --vocab; generate: SGLang's /generate, with such ids and "
            "sessions.  Default: completions, with prompts as text."
        ),
    ] = None,
    stream: Annotated[
        bool | None,
        Panel.TARGET.option(
            "--stream/--no-stream",
            help="With --url: whether answers come token by token.  Default: --stream.",
        ),
    ] = None,
    vocab: Annotated[
        int | None,
        Panel.TARGET.option(
            metavar="N",
            min=256,
            help="With --api ids or generate: token ids are below N.  Default: 256.",
        ),
    ] = None,
    restarts: Annotated[
        int,
        Panel.TARGET.option(
            metavar="N",
            min=0,
            help="With --url: how many times to start COMMAND again after it has ended.  The run "
            "continues in a new segment, and its verdict is still CRASHED.",
        ),
    ] = 0,
    pid: Pid = None,
    metrics: Metrics = None,
    ready: Ready = None,
    idle_every: IdleEvery = None,
    log: Log = None,
    reset_cache: ResetCache = None,
    instrument: Instrument = None,
    probe: Probe = True,
    cache_budget: CacheBudget = None,
    model: Model = None,
    profile: Profiles = None,
    duration: Annotated[
        str | None,
        Panel.WORKLOAD.option(
            metavar="TIME",
            help="Traffic time, warm-up included: 90s, 5m, 2h.  Default: the profile's (2h).",
        ),
    ] = None,
    defect: Annotated[
        list[str] | None,
        Panel.ENGINE.option(
            autocompletion=complete_defect,
            metavar="SLUG",
            help="A historic defect to inject (repeatable): a slug of `list defects`, "
            "SLUG@200MiB/h for one that has a rate, a .py file with DEFECT, or "
            "defects-as-of:sglang-0.5.10 for those of a release.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        Panel.WORKLOAD.option(
            metavar="FILE",
            help="Replay a trace instead of the profile's traffic: Mooncake, Qwen-Bailian, "
            "Azure or BurstGPT; also as .gz.",
        ),
    ] = None,
    trace_time_unit: Annotated[
        str | None,
        Panel.WORKLOAD.option(
            metavar="UNIT",
            help="Unit of a trace's times that are numbers, s or ms; --dry-run shows the resulting "
            "span and rate.",
        ),
    ] = None,
    length_scale: Annotated[
        str,
        Panel.WORKLOAD.option(
            metavar="FACTOR", help="Factor on all lengths of the trace, at most 1: 1/32, 0.05."
        ),
    ] = "1",
    speedup: Annotated[
        str,
        Panel.WORKLOAD.option(
            metavar="FACTOR", help="Factor by which requests arrive faster than recorded."
        ),
    ] = "1",
    device: Annotated[
        str, Panel.ENGINE.option(metavar="DEVICE", help="Device of the tensors: cpu, cuda, cuda:1.")
    ] = "cpu",
    dtype: Annotated[
        Dtype, Panel.ENGINE.option(help="Data type of weights and tensors.")
    ] = Dtype.FLOAT32,
    seed: Seed = None,
    gc: Gc = None,
    ballast: Ballast = None,
    set_: Set = None,
    malloc: Annotated[
        MallocMode,
        Panel.ENGINE.option(
            help="pinned fixes the worker's malloc arenas and thresholds, so that varied lengths "
            "alone do not move its RSS; system leaves them."
        ),
    ] = MallocMode.PINNED,
    watchdog: Annotated[
        str,
        Panel.PROBES.option(
            metavar="TIME",
            help="Time without an engine step, with requests pending, after which the engine "
            "counts as hung; 15s or more.  Waiting for a CPU does not count.",
        ),
    ] = "30s",
    stop: Stop = StopMode.AUTO,
    extend: Extend = None,
    diagnose: Annotated[
        DiagnoseMode,
        Panel.PROBES.option(
            help="Diagnose the worker's heap at the end of the run. auto: only if the run leaks; "
            "always; never."
        ),
    ] = DiagnoseMode.AUTO,
    threshold: Threshold = None,
    answers: Annotated[
        str | None,
        Panel.PROBES.option(
            metavar="TIME",
            help="Time after the traffic in which a reference without reuse recomputes finished "
            "answers, 3m at least once one is wrong; 0 compares none.  "
            "Default: a tenth of --duration, 10s to 2m.  With --url: time at each idle point in "
            "which a server is asked for answers again, without its cache.  Default: a tenth of "
            "--idle-every.",
        ),
    ] = None,
    on_leak: Annotated[
        str | None,
        Panel.PROBES.option(
            metavar="hold=TIME",
            help="Keep the worker of a run that leaks alive at its end, unchanged, to inspect it "
            "with other tools: hold=2h.  Ctrl-C ends the wait.",
        ),
    ] = None,
    memray: Annotated[
        str | None,
        Panel.PROBES.option(
            metavar="TIME",
            help="After a diagnosis, serve TIME more with every allocation recorded, and name the "
            "calls whose memory was not freed; needs hybridbench[memray].",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            autocompletion=complete_result,
            metavar="RUN_DIR",
            help="Resume an interrupted run with the settings of its manifest.  A defect that is "
            "a .py file must be passed again with --defect.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Build the worker, report what a run would see, its limits and cost, and stop.",
        ),
    ] = False,
    format_: Annotated[
        ReportFormat,
        Panel.OUTPUT.option(
            "--format",
            metavar="FORMAT",
            help=f"Format of the final report: {FORMAT_NAMES}.  --dry-run: console or json.",
        ),
    ] = ReportFormat.CONSOLE,
    output: Output = None,
    listen: Listen = None,
    store: Store = STORE,
    ui: Ui = SoakUi.AUTO,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Soak-test the engine under realistic traffic and report leaks and slowdowns.

    Example: hybridbench soak --profile smoke --duration 5m --threshold 'rss.slope<200MiB/h'

    With --url it soaks a server of any engine, as `hybridbench watch` watches one: hybridbench soak
    --url http://127.0.0.1:8000 --duration 10m -- vllm serve DIR.

    Per run: 240 samples (at most 10 s apart), 90 heap scans (at most 1 minute apart) and 10 idle
    checkpoints (at most 10 minutes apart).

    The run directory under --store holds the samples and report.html.  Ctrl-C drains the engine and
    writes the report, as do SIGTERM, SIGQUIT, a closed terminal and a trace that cannot be read any
    further; a second signal stops at once.
    """
    shown = output_options(format_, output, quiet=quiet, verbose=verbose)
    ui = SoakUi.NONE if quiet else ui
    replay = _trace(trace, trace_time_unit, length_scale, speedup)
    served = _is_server(target)
    if url is not None or served:
        _refuse_of_the_wire(context, "--target" if served else "--url")
        server = TargetOptions(command, pid, metrics, ready, log, restarts)
        probes = ProbeOptions(idle_every, reset_cache, instrument, probe, cache_budget)
        asked = Requests(
            url or "", api, stream, vocab, model, profile or [], seed, set_ or [], replay, answers
        )
        course = Course(store, duration, ui, stop, extend, threshold or [])
        if target is not None:
            asked, server = of_prepared(target, targets_root(targets), asked, server)
        raise typer.Exit(run_observed(server_plan(asked, server, probes, course), shown, listen))
    _refuse_of_others(context, target)
    hold_s = _hold(on_leak)
    if resume is not None:
        given = _given(context) | ({"ui": ui} if quiet else {})
        raise typer.Exit(_resumed(resume, given, hold_s, shown, listen))
    if dry_run:
        _check_preview(format_)
    thresholds = given_thresholds(threshold or [])
    if _DEVICE.fullmatch(device) is None:
        raise UsageError(f"{device}: write cpu, cuda or, of several, cuda:1.", option="--device")
    defects = chosen_defects(defect or [])
    source, chosen = defects.profile_with(parse_overrides(set_ or [], gc, ballast), _only(profile))
    from hybridbench.records.manifest import Options
    from hybridbench.runs.plan import SoakPlan

    duration_s = chosen_duration_s(duration, chosen.duration_s)
    soak_plan = SoakPlan(
        profile=chosen.for_replay() if replay is not None else chosen,
        model=chosen_model(model, chosen, source),
        store=store,
        duration_s=duration_s,
        seed=chosen.seed if seed is None else seed,
        device=device,
        dtype=dtype.value,
        defects=defects.names,
        defects_as_of=defects.releases,
        trace=replay,
        profile_source=source,
        malloc=malloc.value,
        ui=ui.value,
        options=Options(
            watchdog_s=_watchdog(watchdog),
            stop=stop.value,
            extend_s=chosen_extend_s(extend, duration_s),
            diagnose=diagnose.value,
            hold_s=hold_s,
            memray_s=_memray(memray, diagnose),
            answers_s=0.0 if target is not None else _answers(answers, duration_s),
        ),
        thresholds=thresholds,
        command=typed_command(),
        name=target or "",
        program=_program(target, targets),
    )
    if dry_run:
        with listening(listen):
            print_preview(soak_plan, format_)
    else:
        _run(soak_plan, shown, listen)


def _only(profiles: Sequence[str] | None) -> str | None:
    """Return the profile of a run that is driven by our worker; None if none was given.

    Raises:
        UsageError: there are several.
    """
    if profiles and len(profiles) > 1:
        raise UsageError(
            f"{' and '.join(profiles)}: only a server takes several profiles; name a server with "
            "--url, or soak each profile by itself.",
            code=ErrorCode.OPTION_CONFLICT,
            option="--profile",
        )
    return profiles[0] if profiles else None


def _program(target: str | None, targets: Path | None) -> WorkerProgram:
    """The worker's program: the bundled engine, or a prepared release."""
    if target is None:
        from hybridbench.targets.bundled import WorkerProgram

        return WorkerProgram()
    from hybridbench.targets.driven import driven_program

    return driven_program(target, targets_root(targets))


def _run(plan: SoakPlan, options: OutputOptions, listen: int | None) -> None:
    from hybridbench.runs.soak import run_soak
    from hybridbench.workload.trace_replay import check_trace

    check_trace(plan.trace)
    with listening(listen) as listener:
        outcome = run_soak(plan, on_started=None if listener is None else listener.start)
    raise typer.Exit(render_outcome(outcome, options))


def _resumed(
    run_dir: Path,
    given: Mapping[str, Any],
    hold_s: float,
    shown: OutputOptions,
    listen: int | None,
) -> int:
    """Resume an interrupted run and print its report; return the exit code."""
    with listening(listen) as listener:
        if listener is not None:
            listener.start(run_dir)
        ended_dir, hint = resume_run(run_dir, given, hold_s)
    return render_ended(ended_dir, shown, hint)


def _is_server(target: str | None) -> bool:
    """Whether ``target`` names a server, not a release whose classes a worker drives."""
    if target is None:
        return False
    from hybridbench.targets.engines.catalog import named_engine

    return bool(named_engine(target)[0].servers)


def _refuse_of_the_wire(context: typer.Context, other: str) -> None:
    """Refuse options that do not apply to servers; ``other`` is the option that names a server.

    Raises:
        UsageError: an option applies only to engines in our worker, or names another target.
    """
    _refuse(context, _NOT_OF_SERVERS, f"does not apply to a server, which {other} names", other)
    if other == "--url":
        _refuse(context, {"target", "targets"}, "and --url name two targets")
    else:
        _refuse(context, {"url", "pid"}, "names another target", other)


def _refuse_of_others(context: typer.Context, target: str | None) -> None:
    """
    Raises:
        UsageError: an option applies only to servers, or, given ``target``, to the bundled engine.
    """
    _refuse(context, _OF_SERVERS, "needs --url, which names a server")
    if target is not None:
        _refuse(
            context,
            _NOT_OF_RELEASES,
            "applies to the bundled engine only, and --target names another",
            "--target",
        )


def _refuse(context: typer.Context, names: Collection[str], why: str, other: str = "--url") -> None:
    """Refuse options that contradict or need the option ``other``.

    Raises:
        UsageError: one of ``names`` is on the command line.
    """
    given = _given(context)
    for parameter in context.command.params:
        if parameter.name not in names or parameter.name not in given:
            continue
        if parameter.name == "command":
            raise UsageError(
                f"{given['command'][0]}: a command needs --url; `hybridbench watch -- COMMAND` "
                "needs none, and sends no traffic.",
                code=ErrorCode.EXTRA_ARGUMENT,
            )
        raise UsageError(
            f"{why}.",
            option=option_name(parameter),
            also=(other,),
        )


def _given(context: typer.Context) -> dict[str, Any]:
    """The options on the command line, by parameter name."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        name: value
        for name, value in context.params.items()
        if (source := sources[name]) is not None and source.name == "COMMANDLINE"
    }


def _check_preview(format_: ReportFormat) -> None:
    if format_ not in (ReportFormat.CONSOLE, ReportFormat.JSON):
        raise UsageError(
            f"{format_} with --dry-run: choose console or json.",
            option="--format",
            also=("--dry-run",),
        )


def _trace(
    path: Path | None, time_unit: str | None, length_scale: str, speedup: str
) -> TraceOptions | None:
    from hybridbench.workload.trace import TIME_UNITS
    from hybridbench.workload.trace_replay import (
        TraceOptions,
        parse_length_scale,
        parse_speedup,
    )

    if time_unit not in (None, *TIME_UNITS):
        raise UsageError(f"{time_unit}: write s or ms.", option="--trace-time-unit")
    if path is None:
        if length_scale != "1" or speedup != "1" or time_unit is not None:
            raise UsageError(
                "and --speedup belong to --trace FILE, which is missing, and so does "
                "--trace-time-unit.",
                option="--length-scale",
                also=("--speedup", "--trace-time-unit", "--trace"),
            )
        return None
    scale = parse_length_scale(length_scale)
    return TraceOptions(path, scale, parse_speedup(speedup), time_unit or "")


def _answers(given: str | None, duration_s: float) -> float:
    from hybridbench.runs.plan import default_answers_s

    if given is None:
        return default_answers_s(duration_s)
    return parse_answers(given)


# An idle worker sends only replies, every 10 s in a long run, and a probe may stall it for 5 s
# (probe.max_stall_ms).  Under load, in 70 s of `smoke` and of `chat-churn` on two busy cores, no
# step was older than 0.06 s and no silence longer than 1 s.
_WATCHDOG_LEAST_S = 15.0


def _watchdog(given: str) -> float:
    watchdog_s = parse_seconds("--watchdog", given)
    if watchdog_s < _WATCHDOG_LEAST_S:
        raise UsageError(
            f"{given}: a healthy worker can be silent for seconds while its heap is "
            f"scanned; use {format_duration(_WATCHDOG_LEAST_S)} or more.",
            option="--watchdog",
        )
    return watchdog_s


def _hold(on_leak: str | None) -> float:
    """Parse ``hold=2h`` into seconds; 0 without the option."""
    if on_leak is None:
        return 0.0
    action, equals, text = on_leak.partition("=")
    if action != "hold" or not equals:
        raise UsageError(f"{on_leak}: write hold=TIME, for example hold=2h.", option="--on-leak")
    return parse_seconds("--on-leak", text)


def _memray(given: str | None, diagnose: DiagnoseMode) -> float:
    """Parse ``--memray`` into seconds; 0 without the option."""
    if given is None:
        return 0.0
    if diagnose is DiagnoseMode.NEVER:
        raise UsageError(
            "cannot be combined with --diagnose never.",
            option="--memray",
            also=("--diagnose",),
        )
    from hybridbench.sampling.allocations import is_installed

    if not is_installed():
        raise UsageError(
            ": memray is not installed here; pip install 'hybridbench[memray]' first.",
            option="--memray",
        )
    return parse_seconds("--memray", given)
