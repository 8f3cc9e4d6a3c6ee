"""Options and plan of third-party targets, shared by `watch` and `soak --url`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from hybridbench.cli.environment import of_the_user
from hybridbench.cli.options import Panel, given_thresholds, parse_seconds
from hybridbench.cli.run_options import (
    SoakUi,
    StopMode,
    chosen_duration_s,
    chosen_extend_s,
    listening,
    render_outcome,
)
from hybridbench.cli.user_settings import typed_command
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.foundation.foreign import is_http_address
from hybridbench.foundation.units import format_duration, parse_bytes

if TYPE_CHECKING:
    from hybridbench.cli.render import OutputOptions
    from hybridbench.runs.watch import WatchPlan

_IDLE_EVERY_S: Final = 60.0
_IDLE_EVERY_S_MIN: Final = 10.0
# For a short run: exact counts need three intervals between idle points; the rest is reserve.
_IDLE_POINTS: Final = 8

Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[--] COMMAND...",
        help="The program to start and watch, with its arguments: vllm serve DIR --port 8000.",
        show_default=False,
    ),
]

Pid = Annotated[
    int | None,
    Panel.TARGET.option(
        metavar="PID",
        min=1,
        help="Watch a running process and its children.  It is neither paused nor ended; it has a "
        "probe only if it was started with one (`probe export`).",
    ),
]

Metrics = Annotated[
    str | None,
    Panel.TARGET.option(
        metavar="URL",
        help="The target's page of metrics in Prometheus' format, such as "
        "http://127.0.0.1:8000/metrics: growth is then reported per request, and the target's own "
        "gauges say when it is idle.",
    ),
]

Ready = Annotated[
    str | None,
    Panel.TARGET.option(
        metavar="URL",
        help="A page that answers once the target serves.  Default: one completion at the "
        "server of --metrics.",
    ),
]

IdleEvery = Annotated[
    str | None,
    Panel.PROBES.option(
        metavar="TIME",
        help="Time from one idle point to the next; 0 for none.  At an idle point the load pauses, "
        "and what is left is counted.  Without a load to pause, moments at which the target is "
        "idle are used.  Default: 60s, or less in a short run.",
    ),
]

Log = Annotated[
    Path | None,
    Panel.TARGET.option(
        metavar="FILE",
        help="A log of the engine, whose lines about its pools are read.  Default: what COMMAND "
        "writes.",
    ),
]

ResetCache = Annotated[
    str | None,
    Panel.PROBES.option(
        metavar="URL",
        help="Address that gets a POST at each idle point, to empty the target's cache; "
        "http://127.0.0.1:30000/flush_cache for SGLang.",
    ),
]

Instrument = Annotated[
    list[str] | None,
    Panel.PROBES.option(
        metavar="REGEX",
        help="Give a probe to Python processes whose command line matches (repeatable).  "
        "Default: COMMAND and its Python children that run the same program.",
    ),
]

Probe = Annotated[
    bool,
    Panel.PROBES.option(
        "--probe/--no-probe",
        help="Look inside Python processes with a probe that is loaded through their environment; "
        "--no-probe watches from outside only.",
    ),
]

CacheBudget = Annotated[
    list[str] | None,
    Panel.PROBES.option(
        metavar="NAME=SIZE",
        help="A cache that may grow to SIZE before its growth counts as a leak (repeatable): "
        "prompt=8GiB.",
    ),
]


@dataclass(frozen=True)
class Course:
    """The options of any run, as given on the command line."""

    store: Path
    duration: str | None
    ui: SoakUi
    stop: StopMode
    extend: str | None
    thresholds: Sequence[str]


@dataclass(frozen=True)
class TargetOptions:
    """The options that select the target, as given on the command line.

    The first ``added`` words of ``command`` are ours, not the user's.
    """

    command: Sequence[str] | None
    pid: int | None
    metrics: str | None
    ready: str | None
    log: Path | None
    restarts: int = 0
    added: int = 0


@dataclass(frozen=True)
class ProbeOptions:
    """The options that select the probes, as given on the command line."""

    idle_every: str | None
    reset_cache: str | None
    instrument: Sequence[str] | None
    probe: bool
    cache_budget: Sequence[str] | None


def observed_plan(
    target: TargetOptions, probes: ProbeOptions, course: Course, default_s: float, url: str = ""
) -> WatchPlan:
    """Plan the run that the options describe, without a source of requests.

    ``default_s`` is the default duration.  With the ``url`` of a server, neither a command nor a
    process is required.

    Raises:
        UsageError: an option is invalid.
    """
    words = tuple(target.command or ())
    _check_target(words, target.pid, alone=not url)
    for option, address, path in (
        ("--metrics", target.metrics, "/metrics"),
        ("--ready", target.ready, "/health"),
        ("--reset-cache", probes.reset_cache, "/flush_cache"),
    ):
        check_url(option, address, path)
    if target.log is not None and not target.log.is_file():
        what = "is a directory; name a file" if target.log.is_dir() else "there is no such file"
        raise UsageError(f"{target.log}: {what}.", option="--log")
    from hybridbench.records.manifest import Options
    from hybridbench.runs.watch import API_KEY, WatchPlan
    from hybridbench.targets.prepared import prepared_target

    prepared = prepared_target(words)
    duration_s = chosen_duration_s(course.duration, default_s)
    plan = WatchPlan(
        name=prepared.name if prepared is not None else _name(words, target.pid, url),
        store=course.store,
        duration_s=duration_s,
        ui=course.ui.value,
        thresholds=given_thresholds(course.thresholds),
        options=Options(
            stop=course.stop.value,
            extend_s=chosen_extend_s(course.extend, duration_s),
            diagnose="never",
            cache_budgets=_budgets(probes.cache_budget or ()),
        ),
        command=_stored(words[target.added :]),
        target=words,
        pid=target.pid,
        environment=of_the_user(),
        metrics_url=target.metrics or "",
        ready_url=target.ready or "",
        log=target.log,
        idle_every_s=_idle_every(probes.idle_every, duration_s),
        reset_url=probes.reset_cache or "",
        instrument=_patterns(probes.instrument or ()),
        prepared=prepared,
        probed=probes.probe,
    )
    if not (plan.key.isascii() and plan.key.isprintable()):
        raise UsageError(f"{API_KEY} has characters that no HTTP header can hold.")
    return plan


def run_observed(plan: WatchPlan, shown: OutputOptions, listen: int | None) -> int:
    """Run the plan and print its report; return the exit code."""
    from hybridbench.runs.watch import run_watched

    with listening(listen) as listener:
        outcome = run_watched(plan, on_started=None if listener is None else listener.start)
    return render_outcome(outcome, shown)


def _check_target(command: Sequence[str], pid: int | None, *, alone: bool) -> None:
    """Refuse two targets, or none; ``alone`` means that no other option names the target."""
    if (command and pid is not None) or (alone and not command and pid is None):
        raise UsageError(
            "and COMMAND: give one of them, for example -- python server.py.",
            code=ErrorCode.OPTION_CONFLICT if command else ErrorCode.MISSING_ARGUMENT,
            option="--pid",
        )


def check_url(option: str, url: str | None, path: str) -> None:
    """Check the value of ``option``; ``path`` is the path of the error message's example.

    Raises:
        UsageError: ``url`` is not an HTTP address.
    """
    if url is None or is_http_address(url):
        return
    # The address itself is not repeated: it may contain a password.
    begins = url.startswith(("http://", "https://"))
    wrong = "the host is missing, or the port is not 1 to 65535"
    raise UsageError(
        f": {wrong if begins else 'an address begins with http://'}; "
        f"write for example http://127.0.0.1:8000{path}.",
        option=option,
    )


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
    """The command line for the manifest: ``--`` before the target's, and secrets redacted."""
    from hybridbench.sampling.redaction import redacted

    typed = list(typed_command())
    if target and "--" not in typed[: len(typed) - len(target)]:
        typed.insert(len(typed) - len(target), "--")
    return redacted(typed)


def _name(command: Sequence[str], pid: int | None, url: str) -> str:
    """The run's name: the program, or the script or module that an interpreter runs."""
    if pid is not None:
        return f"pid-{pid}"
    if not command:
        parts = urlsplit(url)
        return f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)
    from hybridbench.sampling.roles import role_of_command

    return role_of_command(command)
