"""``hybridbench nightly``: plan, cell and merge; ``run`` does all three on one machine."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.command_group import Command, CommandGroup
from hybridbench.cli.completion import complete_defect
from hybridbench.cli.options import Detail, Panel, Quiet, parse_seconds
from hybridbench.cli.output import check_directory
from hybridbench.cli.render import print_console, say_failures
from hybridbench.foundation.errors import ConfigError, ErrorCode, ExitCode, UsageError, full_stop
from hybridbench.foundation.safe_output import (
    discard_dead_streams,
    echo,
    emit,
    one_line,
    output_after_verdict,
    say,
)
from hybridbench.rundir.layout import STORE

if TYPE_CHECKING:
    from hybridbench.over_time.cells import PlannedCell
    from hybridbench.over_time.child import Child
    from hybridbench.over_time.plan import LoadedPlan
    from hybridbench.over_time.planned import PlannedRun
    from hybridbench.records.verdict import Failure
    from hybridbench.report.document import Document

app = typer.Typer(
    cls=CommandGroup,
    help="Plan a nightly gate, run its cells anywhere, and merge them into one verdict.",
    no_args_is_help=True,
)

EXIT_CODES = (
    "Exit codes: 0 passed; else the worst cell's: 10 LEAK, 15 INVARIANT, 17 CORRUPT, "
    "12 REGRESSION, 14 CRASHED, 11 DEGRADED, 16 MISSING or INVALID, 13 INCONCLUSIVE where the plan "
    "lets that fail, nothing passed or a budget left cells out; 2 usage, 130 interrupted, "
    "143 terminated."
)


class PlanFormat(StrEnum):
    """Values of `nightly plan --format`: the keys of over_time/plan_formats.py."""

    CONSOLE = "console"
    JSON = "json"
    GITHUB = "github"


_Plan = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan's YAML file, or a shipped name.")
]
_Budget = Annotated[
    str | None,
    Panel.PLAN.option(
        metavar="TIME",
        help="Time budget, such as 30m: shortens cells down to the length that still decides, then "
        "leaves cells out.  Default: the plan's.",
    ),
]
_Defect = Annotated[
    list[str] | None,
    Panel.PLAN.option(
        autocompletion=complete_defect,
        metavar="SLUG",
        help="Rehearse a regression: add this defect to every soak (repeatable).  Cells keep their "
        "ids, so that the last green run is still their baseline.",
    ),
]


_AllowPartial = Annotated[
    bool,
    Panel.VERDICT.option(
        "--allow-partial",
        help="Pass even if the budget left cells out; otherwise the exit code is 13.",
    ),
]


@app.command("plan", cls=Command)
def plan(
    plan: _Plan,
    output: Annotated[
        PlanFormat, Panel.OUTPUT.option("--format", help="Output format.")
    ] = PlanFormat.CONSOLE,
    budget: _Budget = None,
    defect: _Defect = None,
) -> None:
    """Print the cells of a plan, and how often they would fail by chance.

    Example: hybridbench nightly plan nightly --format github

    --format github prints a matrix for `strategy.matrix`, json the cells for any other scheduler.
    """
    from hybridbench.over_time.plan_formats import FORMATS

    text = FORMATS[output](_planned(plan, budget, defect))
    if output is PlanFormat.CONSOLE:
        echo(text, nl=False)
    else:
        emit(text)


@app.command("cell", cls=Command, epilog=EXIT_CODES)
def cell(
    plan: _Plan,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Results directory; the cell is stored in a directory below it."
        ),
    ],
    cell_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Name of the cell.")
    ] = None,
    index: Annotated[
        int | None,
        typer.Option(metavar="N", help="Position of the cell in the plan, from 0."),
    ] = None,
    budget: _Budget = None,
    defect: _Defect = None,
) -> None:
    """Run one cell of a plan, with the reruns that the plan's policy asks for.

    Example: hybridbench nightly cell nightly --index 0 --out results/nightly/one

    Safe to rerun: a finished cell is skipped, a killed run is resumed.  The exit code is that of
    the cell after policy and waivers: 0 for a waived leak.
    """
    from hybridbench.over_time.cells import find_cell
    from hybridbench.over_time.run import CellRunner

    check_directory("--out", out)
    nightly = _planned(plan, budget, defect)
    if (cell_id is None) == (index is None):
        raise UsageError(
            "name the cell with either --id or --index; see `hybridbench nightly plan`.",
            also=("--id", "--index"),
        )
    if index is not None and not 0 <= index < len(nightly.cells):
        raise UsageError(
            f"{index}: the plan has cells 0 to {len(nightly.cells) - 1}.", option="--index"
        )
    cells = nightly.cells
    chosen = cells[index] if index is not None else find_cell(cells, cell_id or "")
    _check_models([chosen])
    with _signals() as child:
        code = CellRunner(nightly, child, _print_progress).run_cell(chosen, out)
    raise typer.Exit(code)


@app.command("merge", cls=Command, epilog=EXIT_CODES)
def merge(
    dirs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories that hold cells.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the merged report.")],
    plan: Annotated[
        str | None,
        Panel.PLAN.option(
            metavar="PLAN",
            help="Plan to take waivers and policy from.  Default: as the cells carry them.",
        ),
    ] = None,
    budget: _Budget = None,
    defect: _Defect = None,
    baseline: Annotated[
        list[Path] | None,
        Panel.VERDICT.option(
            metavar="DIR",
            help="Nightly run, or a directory of them, to compare with: the newest green one.  "
            "Default: those beside --out.",
        ),
    ] = None,
    keep_baseline: Annotated[
        Path | None,
        Panel.VERDICT.option(
            metavar="DIR",
            help="Directory in which to store this run for --baseline, if it is green.",
        ),
    ] = None,
    allow_partial: _AllowPartial = False,
) -> None:
    """Merge cells into one report and one exit code; a lost cell is MISSING and fails the run.

    Example: hybridbench nightly merge cells --out merged --baseline results/nightly
    """
    from hybridbench.over_time.run import MergeOptions, merge_cells

    check_directory("--out", out)
    check_directory("--keep-baseline", keep_baseline)
    # The directory of --keep-baseline may not exist yet.
    _check_baselines([place for place in baseline or [] if place != keep_baseline])
    record = None if plan is None else _planned(plan, budget, defect).record
    if record is None and (budget or defect):
        raise UsageError(
            "and --defect belong to --plan, which is missing.",
            option="--budget",
            also=("--defect", "--plan"),
        )
    options = MergeOptions(record, baseline, keep_baseline, allow_partial)
    document, failures = merge_cells(dirs, out, options)
    raise typer.Exit(_printed(document, failures, out, quiet=False))


@app.command("run", cls=Command, epilog=EXIT_CODES)
def run(
    plan: _Plan,
    budget: _Budget = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of the run.  Default: a new one under results/nightly, or the last one "
            "there if it was cut off.",
        ),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Directory with earlier runs to compare with (repeatable).  Default: the runs "
            "beside --out.",
        ),
    ] = None,
    defect: _Defect = None,
    allow_partial: _AllowPartial = False,
    quiet: Quiet = False,
) -> None:
    """Run all cells of a plan one after another on this machine, and merge them.

    Example: hybridbench nightly run nightly --budget 30m --allow-partial

    If it is killed, rerun the same command to resume, unless the engine's files have changed since:
    then a new run begins.
    """
    from hybridbench.over_time.plan_formats import PARTIAL
    from hybridbench.over_time.run import CellRunner, MergeOptions, merge_cells, run_directory
    from hybridbench.records.nightly import counted
    from hybridbench.rundir.layout import CELLS

    check_directory("--out", out)
    _check_baselines(baseline or [])
    nightly = _planned(plan, budget, defect)
    _check_models(nightly.cells)
    directory = out or run_directory(STORE / "nightly", nightly)
    progress = _say_nothing if quiet else _print_progress
    progress(f"{directory}: {counted(len(nightly.cells))}")
    if nightly.record.left_out:
        progress(nightly.budgeted.note)
        if not allow_partial:
            progress(PARTIAL)
    with _signals() as child:
        stopped = CellRunner(nightly, child, progress).run_all(directory / CELLS)
    if stopped is not None:
        _print_progress("interrupted; rerun the same command to resume")
        raise typer.Exit(stopped)
    options = MergeOptions(nightly.record, baseline, None, allow_partial)
    document, failures = merge_cells([directory / CELLS], directory, options)
    raise typer.Exit(_printed(document, failures, directory, quiet=quiet))


@app.command("schema", cls=Command)
def schema() -> None:
    """Print the JSON Schema of a plan, for editors.

    Example: hybridbench nightly schema > plan.schema.json
    """
    from hybridbench.over_time.plan import plan_json_schema

    emit(json.dumps(plan_json_schema(), indent=2) + "\n")


def _planned(plan: str, budget: str | None, defects: list[str] | None) -> PlannedRun:
    from hybridbench.cli.chosen_defects import chosen_defects
    from hybridbench.over_time.planned import plan_run

    chosen_defects(defects or [])
    budget_s = None if budget is None else parse_seconds("--budget", budget)
    planned = plan_run(plan, budget_s, tuple(defects or ()))
    _check_defects(planned.loaded)
    return planned


def _check_defects(loaded: LoadedPlan) -> None:
    """Refuse versions with a defect that is not in the catalog, if the engine is installed here.

    A defect's file may exist only on the machines that run the cells.
    """
    from hybridbench.cli.chosen_defects import chosen_defects
    from hybridbench.over_time.cells import DEFECT, DEFECTS_AS_OF
    from hybridbench.over_time.plan import named_versions

    for where, version in named_versions(loaded.plan):
        if version.startswith((DEFECT, DEFECTS_AS_OF)) and not version.endswith(".py"):
            try:
                chosen_defects([version.removeprefix(DEFECT)])
            except UsageError as error:
                said = str(error).removeprefix("--defect ")
                raise ConfigError(f"{loaded.place(*where)}: {said}", code=error.code) from error
            except ConfigError:
                return


def _check_models(cells: Sequence[PlannedCell]) -> None:
    """Refuse cells whose model is not on this machine; planning does not check that."""
    from hybridbench.over_time.cells import loads_model
    from hybridbench.workload.catalog import model_fault

    for one in (one for one in cells if loads_model(one.cell)):
        fault = model_fault(one.cell.model)
        if fault is not None:
            raise ConfigError(full_stop(f"cell {one.id}: model: {fault}"), code=ErrorCode.NOT_FOUND)


def _check_baselines(places: list[Path]) -> None:
    missing = next((place for place in places if not place.is_dir()), None)
    if missing is not None:
        raise UsageError(
            f"{missing}: there is no such directory; name a nightly run or a directory "
            "of them, or leave the option out.",
            code=ErrorCode.NOT_FOUND,
            option="--baseline",
        )


_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def _signals() -> Iterator[Child]:
    """A child that receives Ctrl-C, SIGTERM, SIGHUP and SIGQUIT within the block."""
    from hybridbench.over_time.child import Child

    child = Child()

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            discard_dead_streams(sys.stdout, sys.stderr)
        child.stop(signal.Signals(number))

    before = {n: signal.signal(n, pass_on) for n in _PASSED_ON}
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_progress(text: str) -> None:
    say(sys.stderr, f"nightly: {one_line(text)}\n")


def _say_nothing(text: str) -> None:
    del text


def _printed(document: Document, failures: Sequence[Failure], out: Path, *, quiet: bool) -> int:
    """Print the report; return the exit code, which is not 0 if a page failed, as in `report`."""
    from hybridbench.rundir.layout import REPORT_HTML

    say_failures(failures)
    page = out / REPORT_HTML
    with output_after_verdict():
        detail = Detail.BRIEF if quiet else Detail.USUAL
        print_console(document, page if page.exists() else None, detail)
    failed = failures and document.exit_code == ExitCode.CLEAN
    return int(ExitCode.INCONCLUSIVE) if failed else document.exit_code
