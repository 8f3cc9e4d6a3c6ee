"""Options shared by the commands that run until there is a verdict: soak and watch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from hybridbench.cli.listening import Listener
from hybridbench.cli.options import Panel, parse_seconds
from hybridbench.foundation.errors import UsageError
from hybridbench.foundation.safe_output import echo
from hybridbench.foundation.units import format_duration

if TYPE_CHECKING:
    from hybridbench.cli.render import OutputOptions
    from hybridbench.runs.plan import SoakOutcome

SHORTEST_S: Final = 20.0


class SoakUi(StrEnum):
    """Progress display of a run."""

    AUTO = "auto"
    LIVE = "live"
    PLAIN = "plain"
    NONE = "none"


class StopMode(StrEnum):
    """What can end a run before its planned duration."""

    AUTO = "auto"
    EARLY = "early"
    NEVER = "never"


Stop = Annotated[
    StopMode,
    Panel.PROBES.option(
        help="auto: stop on a confirmed leak, after 10 minutes or later. early: also stop once "
        "every metric is below its limit. never: stop only if memory or disk runs out."
    ),
]

Extend = Annotated[
    str | None,
    Panel.PROBES.option(
        metavar="TIME",
        help="Time by which an undecided run may exceed --duration; 0 ends it on time.  "
        "Default: --duration, at least 10m.",
    ),
]

Threshold = Annotated[
    list[str] | None,
    Panel.PROBES.option(
        metavar="METRIC.STAT<LIMIT",
        help="Extra thresholds, in addition to the profile's (repeatable): "
        "'rss.slope<200MiB/h', 'throughput.p50>900/s'; see docs/reference/thresholds.md.",
    ),
]

Listen = Annotated[
    int | None,
    Panel.OUTPUT.option(
        metavar="PORT",
        min=0,
        help="Serve the live report on http://127.0.0.1:PORT/ during the run, and its "
        "last samples for Prometheus on /metrics; 0 is any free port.",
    ),
]

Ui = Annotated[
    SoakUi,
    Panel.OUTPUT.option(
        help="Progress display. plain: a line at intervals; auto: live on a terminal."
    ),
]


def chosen_duration_s(given: str | None, default_s: float) -> float:
    """``--duration`` in seconds.

    Raises:
        UsageError: it is not a duration, or too short to be judged.
    """
    duration_s = default_s if given is None else parse_seconds("--duration", given)
    if duration_s < SHORTEST_S:
        bare = given is not None and given.strip().replace(".", "", 1).isdigit()
        unit = f"a number without a unit is in seconds, and {given} s is " if bare else ""
        raise UsageError(
            f"{given}: {unit}too short to be judged; use at least {format_duration(SHORTEST_S)}.",
            option="--duration",
        )
    return duration_s


def chosen_extend_s(given: str | None, duration_s: float) -> float:
    """``--extend`` in seconds.

    Raises:
        UsageError: it is not a duration.
    """
    from hybridbench.runs.plan import default_extend_s

    if given is None:
        return default_extend_s(duration_s)
    return 0.0 if given == "0" else parse_seconds("--extend", given)


def listening(port: int | None) -> AbstractContextManager[Listener | None]:
    """Bind the port of ``--listen``, before anything else starts."""
    return nullcontext() if port is None else Listener(port)


def render_outcome(outcome: SoakOutcome, options: OutputOptions) -> int:
    """Print the report of a run that has just ended; return the exit code."""
    from hybridbench.cli.render import render_ended

    if outcome.unwritten:
        echo(f"hybridbench: stopped, what was written is kept: {outcome.unwritten}", err=True)
    return render_ended(outcome.run_dir, options, outcome.exit_hint)
