"""``hybridbench bench compare``: comparisons whose answer is known, again and again."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.compare import BlockTime, Margin, MaxTime, Renew, Rounds, SliceTime
from hybridbench.cli.compare_options import CompareOptions, compared
from hybridbench.cli.options import (
    CompareUi,
    MarkdownFile,
    Model,
    Panel,
    ProfileName,
)
from hybridbench.cli.output import check_place
from hybridbench.errors import ExitCode
from hybridbench.foreign import SEED_MAX
from hybridbench.safe_output import echo

if TYPE_CHECKING:
    from hybridbench.compare.repeat import Repetition


class Expected(StrEnum):
    """What the throughput must be called."""

    SAME = "SAME"
    SLOWER = "SLOWER"


_ROWS = ((".", ".", Expected.SAME), (".", "defect:slow-step", Expected.SLOWER))


def compare(
    repeat: Annotated[
        int,
        typer.Option(
            rich_help_panel=Panel.ROUNDS, metavar="N", min=1, help="Comparisons of each kind."
        ),
    ] = 20,
    only: Annotated[
        Expected | None,
        typer.Option(help="Only the row with this expected result."),
    ] = None,
    model: Model = None,
    profile: ProfileName = None,
    max_time: MaxTime = "20m",
    block: BlockTime = "5s",
    slice_: SliceTime = "50ms",
    rounds: Rounds = None,
    renew: Renew = 3,
    margin: Margin = "3%",
    ballast: Annotated[
        int,
        typer.Option(
            rich_help_panel=Panel.ENGINE,
            metavar="N",
            min=0,
            help="Long-lived Python objects to allocate in each worker.",
        ),
    ] = 0,
    seed: Annotated[
        int,
        typer.Option(
            rich_help_panel=Panel.WORKLOAD,
            metavar="N",
            min=0,
            max=SEED_MAX,
            help="Seed of the first comparison; each next one adds 1.",
        ),
    ] = 1,
    store: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=Panel.OUTPUT,
            metavar="DIR",
            help="Directory for the comparisons.  Default: temporary.",
        ),
    ] = None,
    markdown: MarkdownFile = None,
) -> None:
    """Count how often a comparison is right: the engine with itself, and with itself 5% slower.

    Example: hybridbench bench compare --repeat 5 --profile smoke

    Each comparison starts new processes.  Ctrl-C stops after the current one and prints the table.
    """
    from hybridbench.compare import repeat as repeated

    check_place("--markdown", markdown)
    rows = []
    with ExitStack() as held:
        place = store
        if place is None:
            made = tempfile.TemporaryDirectory(prefix="hybridbench-bench-compare-")
            place = Path(held.enter_context(made))

        def once(versions: Sequence[str], index: int) -> tuple[Path, ExitCode | None]:
            options = CompareOptions(
                model=model, profile=profile, max_time=max_time, block=block, slice_=slice_,
                rounds=rounds, renew_every=renew, margin=margin, seed=seed + index, ballast=ballast,
                store=place, ui=CompareUi.NONE,
            )  # fmt: skip
            return compared(versions, options)

        for base, other, expected in _ROWS:
            if only in (None, expected):
                rows.append(repeated.repeat((base, other), expected, repeat, once, _print))
                if len(rows[-1].repetitions) < repeat:
                    break
    table = repeated.markdown(rows)
    if markdown is not None:
        markdown.write_text(table, encoding="utf-8")
    echo(table, nl=False)


def _print(done: Repetition) -> None:
    interval = f"{done.ratio:.3f} [{done.lower:.3f}, {done.upper:.3f}]"
    echo(f"{done.call:13} {interval} after {done.rounds} rounds: {done.answer}", err=True)
