"""``hybridbench compare``: run versions of the engine side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridbench.cli.compare_options import CompareOptions
from hybridbench.cli.compare_versions import compared
from hybridbench.cli.options import (
    Ballast,
    CompareUi,
    Format,
    Gc,
    Model,
    Output,
    Panel,
    ProfileName,
    Quiet,
    ReportFormat,
    Seed,
    Set,
    Store,
    Targets,
    Verbose,
    given_thresholds,
    targets_root,
)
from hybridbench.cli.render import output_options, refuse_samples, render_ended
from hybridbench.rundir.layout import STORE

EXIT_CODES = (
    "Exit codes: 0 nothing is worse, 12 a regression (slower, or a leak introduced), "
    "13 INCONCLUSIVE, 14 a worker cannot be started, 2 usage, 130 interrupted, 143 terminated, "
    "1 a bug in hybridbench."
)

MaxTime = Annotated[
    str,
    Panel.ROUNDS.option(metavar="TIME", help="Time limit; no round starts that would exceed it."),
]
BlockTime = Annotated[
    str,
    Panel.ROUNDS.option(
        "--block",
        metavar="TIME",
        help="Duration of a block of the first version; fixes its number of requests.",
    ),
]
SliceTime = Annotated[
    str,
    Panel.ROUNDS.option(
        "--slice",
        metavar="TIME",
        help="Time slice per version within a block, the others paused, to average out machine "
        "noise.  0: alternate whole blocks (always used for open-loop arrivals).",
    ),
]
Rounds = Annotated[
    int | None,
    Panel.ROUNDS.option(
        metavar="N", min=1, help="Maximum number of rounds of one block each.  Default: 24."
    ),
]
Margin = Annotated[
    str,
    Panel.VERDICT.option(
        metavar="SHARE", help="Largest difference that counts as the same: 3% or 0.03."
    ),
]
Renew = Annotated[
    int,
    Panel.ENGINE.option(
        min=0,
        metavar="ROUNDS",
        help="Start a new, warmed-up process for each version after this number of rounds, to "
        "average out process-to-process variation: 1 for each block, 0 never.",
    ),
]
Allow = Annotated[
    list[str] | None,
    Panel.VERDICT.option(
        "--allow-mismatch", metavar="KEY", help="Compare even if the versions differ in KEY."
    ),
]
SameEngine = Annotated[
    bool,
    Panel.VERDICT.option(
        "--same-engine",
        help="Compare even if all versions run the same engine files. Without it, compare reports "
        "that and exits with code 0. Implied if all versions are spelled the same (compare . .).",
    ),
]
Ui = Annotated[
    CompareUi, Panel.OUTPUT.option(help="Progress display. plain: a line for each round on stderr.")
]


def compare(
    versions: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C ...]",
            help="Each one of: . (the working tree), git:REF, python:PATH (an interpreter or "
            "environment), defect:SLUG, defect:FILE.py, defects-as-of:sglang-0.5.10, "
            "sglang-cache==RELEASE or vllm-core==RELEASE (prepared), or a run directory.  Or "
            "prepared servers: vllm==RELEASE, sglang==RELEASE, llamacpp==RELEASE.",
        ),
    ],
    model: Model = None,
    profile: ProfileName = None,
    max_time: MaxTime = "20m",
    block: BlockTime = "15s",
    slice_: SliceTime = "50ms",
    rounds: Rounds = None,
    margin: Margin = "3%",
    seed: Seed = None,
    gc: Gc = None,
    ballast: Ballast = None,
    set_: Set = None,
    renew: Renew = 0,
    allow_mismatch: Allow = None,
    same_engine: SameEngine = False,
    threshold: Annotated[
        list[str] | None,
        Panel.VERDICT.option(
            metavar="METRIC.STAT<LIMIT",
            help="Extra thresholds (repeatable): throughput.ratio>0.97 against the first version, "
            "rss.slope<200MiB/h for each version's own run; see docs/reference/thresholds.md.",
        ),
    ] = None,
    targets: Targets = None,
    store: Store = STORE,
    format_: Format = ReportFormat.CONSOLE,
    output: Output = None,
    ui: Ui = CompareUi.AUTO,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare versions of the engine side by side: which is slower, and which leaks.

    Example: hybridbench compare git:v0.1.0 . --profile smoke

    Live versions serve blocks of the same requests, interleaved in slices of milliseconds and in
    the order AB BA AB ...; an interim analysis after 6, 12, 18 and 24 rounds stops early once
    throughput is decided.  Stored runs are compared as they are.  Servers are soaked one after the
    other under the same requests, within --max-time in total.

    The directory under --store holds the raw blocks and a run directory for each version.  Ctrl-C
    finishes the current round, then reports; a second one stops at once.
    """
    shown = output_options(format_, output, quiet=quiet, verbose=verbose)
    refuse_samples("a comparison", shown)
    options = CompareOptions(
        model=model, profile=profile, max_time=max_time, block=block, slice_=slice_, rounds=rounds,
        margin=margin, seed=seed, gc=gc, ballast=ballast, set_=tuple(set_ or ()),
        renew_every=renew,
        allowed=tuple(allow_mismatch or ()), same_engine=same_engine,
        thresholds=given_thresholds(threshold or [], of_comparison=True), store=store,
        targets=targets_root(targets), ui=CompareUi.NONE if quiet else ui,
    )  # fmt: skip
    directory, hint = compared(versions, options)
    raise typer.Exit(render_ended(directory, shown, hint))
