"""``hybridbench nightly``: plan, cell, merge; ``run`` does all three on one machine."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.output import check_directory
from hybridbench.errors import UsageError
from hybridbench.safe_output import answer_of_verdict, drop_the_dead, echo, emit, one_line, say
from hybridbench.units import parse_duration_s

if TYPE_CHECKING:
    from hybridbench.nightly.child import Child
    from hybridbench.nightly.facts import Night

app = typer.Typer(
    help="A nightly gate: plan what to run, run its cells anywhere, merge them into one answer.",
    no_args_is_help=True,
)

EXIT_CODES = (
    "Exit codes: 0 green; red with the worst cell's: 10 LEAK, 15 INVARIANT, 12 REGRESSION, "
    "14 CRASHED, 11 DEGRADED, 16 MISSING or INVALID, 13 INCONCLUSIVE where the plan lets that "
    "fail, nothing passed or a budget left cells out; 2 usage, 130 interrupted, 143 terminated."
)

_Plan = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan's YAML file, or a shipped name.")
]
_Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Shorten the night to about this long, 30m: cells down to the length that still "
        "decides, then fewer cells.  Default: the plan's.",
        show_default=False,
    ),
]
_Defect = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SLUG",
        help="Rehearse a regression: put this defect into every soak (repeatable).  Cells keep "
        "their ids, so that the last good night is still their baseline.",
    ),
]


_AllowPartial = Annotated[
    bool,
    typer.Option(
        "--allow-partial",
        help="A night may be green though the budget left cells out; otherwise it ends 13.",
    ),
]


@app.command("plan")
def plan(
    plan: _Plan,
    output: Annotated[
        str, typer.Option("--format", help="console, json, github, slurm or k8s.")
    ] = "console",
    budget: _Budget = None,
    defect: _Defect = None,
    out: Annotated[
        str, typer.Option(help="Of slurm and k8s: the directory of nights, seen by all machines.")
    ] = "",
    image: Annotated[
        str, typer.Option(help="Of k8s: an image with hybridbench in it.")
    ] = "hybridbench:latest",
    claim: Annotated[
        str, typer.Option(help="Of k8s: the volume claim that is mounted at /nights.")
    ] = "hybridbench-nights",
    allow_partial: Annotated[
        bool,
        typer.Option("--allow-partial", help="Of slurm and k8s: the merge gets --allow-partial."),
    ] = False,
) -> None:
    """Print the cells of a plan: for people, or for an engine that fans them out.

    github is a matrix for `strategy.matrix`, slurm an array script, k8s an Indexed Job.
    """
    from hybridbench.nightly.fan_out import FORMATS, Wanted, rendered

    if output not in FORMATS:
        raise UsageError(f"--format {output}: choose one of {', '.join(FORMATS)}.")
    night = _night(plan, budget, defect)
    root = "/nights" if output == "k8s" else "nights"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    merging = ["--allow-partial"] if allow_partial else []
    wanted = Wanted(plan, _repeated(budget, defect), out or root, stamp, image, claim, merging)
    text = rendered(night, output, wanted)
    if output == "console":
        echo(text, nl=False)
    else:
        emit(text)


@app.command("cell", epilog=EXIT_CODES)
def cell(
    plan: _Plan,
    out: Annotated[Path, typer.Option(help="The cell gets a directory of its own below this.")],
    cell_id: Annotated[
        str | None, typer.Option("--id", help="Which cell, by name.", show_default=False)
    ] = None,
    index: Annotated[
        int | None,
        typer.Option(help="Which cell, by its position in the plan from 0.", show_default=False),
    ] = None,
    budget: _Budget = None,
    defect: _Defect = None,
) -> None:
    """Run one cell to its verdict, reruns of the policy included.

    Safe to start again: a finished cell is skipped, a killed run goes on as a new segment.  The
    exit code is the cell's after policy and waivers, so that it is 0 for a waived leak.
    """
    from hybridbench.nightly.cells import find_cell
    from hybridbench.nightly.run import run_cell

    check_directory("--out", out)
    night = _night(plan, budget, defect)
    if (cell_id is None) == (index is None):
        raise UsageError(
            "name the cell with either --id or --index; see `hybridbench nightly plan`."
        )
    if index is not None and not 0 <= index < len(night.cells):
        raise UsageError(f"--index {index}: the plan has cells 0 to {len(night.cells) - 1}.")
    chosen = night.cells[index] if index is not None else find_cell(night.cells, cell_id or "")
    with _signals() as child:
        code = run_cell(night, chosen, out, child, _say)
    raise typer.Exit(code)


@app.command("merge", epilog=EXIT_CODES)
def merge(
    dirs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Where cells were put.")],
    out: Annotated[Path, typer.Option(help="Where the night's report goes.")],
    plan: Annotated[
        str | None,
        typer.Option(
            help="Waivers and policy are read from here; default: as the cells carry them.",
            show_default=False,
        ),
    ] = None,
    budget: _Budget = None,
    defect: _Defect = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            help="A night, or a directory of nights, whose newest green one tonight is compared "
            "with.  Default: the nights beside --out.",
            show_default=False,
        ),
    ] = None,
    keep_baseline: Annotated[
        Path | None,
        typer.Option(help="If the night is green, store it here as a baseline for --baseline."),
    ] = None,
    allow_partial: _AllowPartial = False,
) -> None:
    """One report and one exit code from all cells; a lost cell is MISSING and never a pass."""
    from hybridbench.nightly.run import merge_night

    check_directory("--out", out)
    check_directory("--keep-baseline", keep_baseline)
    # Where a green night is to be stored, none need be yet.
    _check_baselines([place for place in baseline or [] if place != keep_baseline])
    night = None if plan is None else _night(plan, budget, defect)
    if night is None and (budget or defect):
        raise UsageError("--budget and --defect belong to --plan, which is missing.")
    record = None if night is None else night.record
    document = merge_night(dirs, out, record, baseline, keep_baseline, allow_partial=allow_partial)
    _tell(document, out)
    raise typer.Exit(document.exit_code)


@app.command("run", epilog=EXIT_CODES)
def run(
    plan: _Plan,
    budget: _Budget = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The night's directory.  Default: a new one under results/nightly, or the last "
            "one there if it was cut off.",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(help="As of merge.  Default: the nights beside --out.", show_default=False),
    ] = None,
    defect: _Defect = None,
    allow_partial: _AllowPartial = False,
) -> None:
    """Run all cells of a plan one after another on this machine, and merge them.

    Killed half-way and started again with the same words, it does the rest, unless the engine's
    files have changed since: then a new night begins.
    """
    from hybridbench.nightly.fan_out import PARTIAL
    from hybridbench.nightly.merge import counted
    from hybridbench.nightly.run import merge_night, night_directory, run_cells
    from hybridbench.rundir.layout import CELLS

    check_directory("--out", out)
    _check_baselines(baseline or [])
    night = _night(plan, budget, defect)
    directory = out or night_directory(Path("results") / "nightly", night)
    _say(f"night {directory}: {counted(len(night.cells))}")
    if night.record.left_out:
        _say(night.budgeted.note)
        if not allow_partial:
            _say(PARTIAL)
    with _signals() as child:
        stopped = run_cells(night, directory / CELLS, child, _say)
    if stopped is not None:
        _say("cut off; start it again with the same words and it does the rest")
        raise typer.Exit(stopped)
    document = merge_night(
        [directory / CELLS], directory, night.record, baseline, None, allow_partial=allow_partial
    )
    _tell(document, directory)
    raise typer.Exit(document.exit_code)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of a plan, for editors."""
    from hybridbench.nightly.plan import plan_json_schema

    emit(json.dumps(plan_json_schema(), indent=2) + "\n")


def _night(plan: str, budget: str | None, defects: list[str] | None) -> Night:
    from hybridbench.cli.chosen_defects import chosen_defects
    from hybridbench.nightly.facts import planned_night

    chosen_defects(defects or [])
    return planned_night(plan, _budget_s(budget), tuple(defects or ()))


def _check_baselines(places: list[Path]) -> None:
    missing = next((place for place in places if not place.is_dir()), None)
    if missing is not None:
        raise UsageError(
            f"--baseline {missing}: there is no such directory; name a night or a directory of "
            "nights, or leave the option out."
        )


def _budget_s(budget: str | None) -> float | None:
    if budget is None:
        return None
    try:
        return parse_duration_s(budget)
    except ValueError as error:
        raise UsageError(f"--budget: {error}.") from error


def _repeated(budget: str | None, defects: list[str] | None) -> list[str]:
    """What every cell must be told again, as it changes the plan."""
    words = [] if budget is None else ["--budget", budget]
    return words + [word for name in defects or () for word in ("--defect", name)]


_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def _signals() -> Iterator[Child]:
    """A child to whom Ctrl-C, SIGTERM, SIGHUP and SIGQUIT are passed on inside the block."""
    from hybridbench.nightly.child import Child

    child = Child()

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGHUP:
            drop_the_dead(sys.stdout, sys.stderr)
        child.stop(signal.Signals(number))

    before = {n: signal.signal(n, pass_on) for n in _PASSED_ON}
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    say(sys.stderr, f"nightly: {one_line(text)}\n")


def _tell(document: object, out: Path) -> None:
    from hybridbench.report.console import render_console
    from hybridbench.report.document import Document
    from hybridbench.rundir.layout import REPORT_HTML
    from hybridbench.terminal import Terminal

    assert isinstance(document, Document)
    with answer_of_verdict():
        Terminal().print(render_console(document, out / REPORT_HTML))
