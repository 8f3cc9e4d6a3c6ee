"""``hybridbench explain`` one defect; ``hybridbench list`` defects, runs, models, kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.command_group import Command, CommandGroup
from hybridbench.cli.completion import complete_defect
from hybridbench.cli.kernels import list_kernels
from hybridbench.cli.models import list_models
from hybridbench.cli.stored import list_stored

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hybridbench.defects.described import Description

app = typer.Typer(
    cls=CommandGroup,
    help="List stored runs, known defects, models and kernels.",
    no_args_is_help=True,
)
app.command("runs", cls=Command)(list_stored)
app.command("models", cls=Command)(list_models)
app.command("kernels", cls=Command)(list_kernels)


@app.command("defects", cls=Command)
def list_defects() -> None:
    """List historic defects, controls and injected slowdowns, with their sources and symptoms.

    Example: hybridbench list defects
    """
    from rich.console import Group
    from rich.text import Text

    from hybridbench.defects.described import described_catalog
    from hybridbench.foundation.terminal import Terminal

    parts: list[RenderableType] = []
    for title, entries in described_catalog().items():
        parts += [Text(title, style="bold"), _overview(entries), Text()]
    parts.append(Text("`hybridbench explain SLUG` describes one of them.", style="dim"))
    Terminal().print(Group(*parts))


def explain(
    slug: Annotated[
        str,
        typer.Argument(
            metavar="SLUG|FILE",
            autocompletion=complete_defect,
            help="A slug of `list defects`, or a .py file with DEFECT.",
        ),
    ],
) -> None:
    """Describe a defect: symptoms, impact, upstream fix, and how to reproduce it.

    Example: hybridbench explain lru-reference-cycle
    """
    from rich.text import Text

    from hybridbench.defects.described import described
    from hybridbench.foundation.terminal import Terminal

    defect = described(slug)
    role = f"  {defect.role}" if defect.role else ""
    head = Text.assemble((defect.slug, "bold"), f"  {defect.source}", (role, "dim"))
    console = Terminal()
    console.print(head, Text(), _facts(defect), Text(), sep="\n")
    # Not wrapped, so that it can be copied.
    console.print(Text(f"  {defect.command}", style="cyan"), soft_wrap=True)


def _overview(entries: tuple[Description, ...]) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    # The symptom gets its own lines: next to slug and source it would have a quarter of 80 columns.
    parts: list[RenderableType] = []
    for defect in entries:
        parts.append(Text.assemble(f"  {defect.slug}", (f"  {defect.source}", "dim")))
        parts.append(Padding(Text(defect.symptom), (0, 0, 0, 6)))
    return Group(*parts)


def _facts(defect: Description) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in defect.rows:
        grid.add_row(Text(label), Text(text))
    return grid
