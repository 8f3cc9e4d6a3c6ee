"""``hybridbench explain SLUG``: one defect; ``hybridbench list``: all, runs, models, kernels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.command_group import Command, CommandGroup
from hybridbench.cli.completion import complete_defect
from hybridbench.cli.kernels import list_kernels
from hybridbench.cli.models import list_models
from hybridbench.cli.stored import list_stored

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hybridbench.defects.defect import Defect

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
    """List historic defects, controls and planted costs, each with its source and symptom."""
    from rich.console import Group
    from rich.text import Text

    from hybridbench.defects.catalog import CONTROLS, DEFECTS, PLANTED
    from hybridbench.terminal import Terminal

    parts: list[RenderableType] = []
    for title, entries in (
        ("Defects, to be found", DEFECTS),
        ("Controls, to be left alone", CONTROLS),
        ("Planted, for comparisons", PLANTED),
    ):
        parts += [Text(title, style="bold"), _overview(entries), Text()]
    parts.append(Text("`hybridbench explain SLUG` describes one.", style="dim"))
    Terminal().print(Group(*parts))


def explain(
    slug: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_defect, help="A slug from `list defects`, or a file."
        ),
    ],
) -> None:
    """Describe a defect: cause, impact, symptoms, upstream fix, and how to reproduce it."""
    from rich.text import Text

    from hybridbench.defects.catalog import find_defect
    from hybridbench.defects.defect import Role
    from hybridbench.terminal import Terminal

    defect = find_defect(slug, "explain")
    what = {
        Role.DEFECT: "",
        Role.CONTROL: "a control: it looks like a leak and is none",
        Role.PLANTED: "planted: a cost of known size, which a soak alone cannot see",
    }[defect.role]
    head = Text.assemble((defect.slug, "bold"), f"  {defect.source}", (f"  {what}", "dim"))
    console = Terminal()
    console.print(head, Text(), _facts(defect), Text(), sep="\n")
    # Not wrapped: it is there to be copied.
    console.print(Text(f"  {_command(defect)}", style="cyan"), soft_wrap=True)


def _overview(entries: tuple[Defect, ...]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for defect in entries:
        grid.add_row(Text(defect.slug), Text(defect.source), Text(defect.symptom))
    return grid


def _facts(defect: Defect) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in _rows(defect):
        grid.add_row(Text(label), Text(text))
    return grid


def _rows(defect: Defect) -> Iterator[tuple[str, str]]:
    signature = defect.signature
    yield "what it does", defect.symptom
    if defect.harmed:
        yield "impact", defect.harmed
    if defect.cure:
        yield "fix", defect.cure
    if defect.versions:
        yield "releases", ", ".join(f"{first} to {last}" for first, last in defect.versions)
    for index, patch in enumerate(defect.patches):
        yield ("replaces" if not index else ""), f"{patch.holder.__name__}.{patch.method}"
    yield "how it shows", f"{signature.rate} (each {signature.event})"
    yield "expected", _expected(defect)
    if signature.drivers:
        yield "driven by", " or ".join(signature.drivers)
    if defect.rates:
        *others, default = defect.rates
        yield "how fast", f"{default}; {defect.slug}@RATE sets it: {', '.join(others)}, ..."
    if defect.healthy_twin:
        yield "healthy twin", f"{defect.healthy_twin}: the same work, and all of it given back"
    yield "how long", _how_long(defect)
    if defect.corrupts:
        yield "beware", "the generated tokens may change too"


def _expected(defect: Defect) -> str:
    from hybridbench.defects.defect import FoundBy

    verdicts = " or ".join(defect.signature.verdicts)
    if not defect.signature.kinds:
        return verdicts
    kinds = " or ".join(defect.signature.kinds)
    subject = defect.signature.subject
    if defect.signature.found_by is FoundBy.COMPARE:
        return f"{verdicts} of a comparison, {kinds} {subject}; a soak alone cannot see it"
    return f"{verdicts}, by a finding {kinds} that names {subject}"


def _how_long(defect: Defect) -> str:
    from hybridbench.units import format_duration

    length = format_duration(defect.signature.duration_s)
    if not defect.signature.kinds:
        return f"about {length}"
    how = "arithmetic" if defect.signature.exact else "statistics"
    return f"about {length}: found by {how}"


def _command(defect: Defect) -> str:
    """What to type to see it."""
    from hybridbench.defects.defect import FoundBy, Role
    from hybridbench.units import format_duration

    if defect.role is Role.PLANTED or defect.signature.found_by is FoundBy.COMPARE:
        return f"hybridbench compare . defect:{defect.slug} --profile {defect.profile}"
    words = ["hybridbench", "soak", "--profile", defect.profile, "--defect", defect.slug]
    words += ["--duration", format_duration(defect.signature.duration_s)]
    if defect.model:
        words += ["--model", defect.model]
    for key, value in defect.overrides:
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)
