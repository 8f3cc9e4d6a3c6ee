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
from hybridbench.units import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hybridbench.defects.defect import Defect, Signature

_EXACT = "an exact check, as soon as it fails; no trend is needed"
_STATISTICAL = "statistics over the judged window"

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

    from hybridbench.defects.catalog import CONTROLS, DEFECTS, PLANTED
    from hybridbench.terminal import Terminal

    parts: list[RenderableType] = []
    for title, entries in (
        ("Historic defects", DEFECTS),
        ("Controls (healthy behaviour that looks like a leak)", CONTROLS),
        ("Slowdowns of known size, for comparisons", PLANTED),
    ):
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

    from hybridbench.defects.catalog import find_defect
    from hybridbench.defects.defect import Role
    from hybridbench.terminal import Terminal

    defect = find_defect(slug, "explain")
    what = {
        Role.DEFECT: "",
        Role.CONTROL: "a control: looks like a leak and is none",
        Role.PLANTED: "injected: a slowdown of known size, which a soak alone cannot see",
    }[defect.role]
    head = Text.assemble((defect.slug, "bold"), f"  {defect.source}", (what and f"  {what}", "dim"))
    console = Terminal()
    console.print(head, Text(), _facts(defect), Text(), sep="\n")
    # Not wrapped: it is there to be copied.
    console.print(Text(f"  {_command(defect)}", style="cyan"), soft_wrap=True)


def _overview(entries: tuple[Defect, ...]) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    # The symptom on lines of its own: beside slug and source it would have a quarter of 80 columns.
    parts: list[RenderableType] = []
    for defect in entries:
        parts.append(Text.assemble(f"  {defect.slug}", (f"  {defect.source}", "dim")))
        parts.append(Padding(Text(defect.symptom), (0, 0, 0, 6)))
    return Group(*parts)


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
    from hybridbench.defects.defect import Role

    signature = defect.signature
    yield "what it does", defect.symptom
    if defect.harmed:
        yield "impact", defect.harmed
    if defect.cure:
        yield "fix", defect.cure
    if defect.versions:
        yield "releases", ", ".join(map(_span, defect.versions))
    for index, patch in enumerate(defect.patches):
        yield ("replaces" if not index else ""), f"{patch.holder.__name__}.{patch.method}"
    if defect.role is Role.CONTROL:
        yield "growth", signature.rate
    else:
        yield "effect", signature.rate
        yield "on each", signature.event
    yield "expected", _expected(defect)
    if signature.drivers:
        yield "driver", " or ".join(signature.drivers)
    if defect.rates:
        *others, default = defect.rates
        yield "rate", f"{default}; set another with {defect.slug}@{others[0]}"
    if defect.healthy_twin:
        yield "healthy twin", f"{defect.healthy_twin}: the same work, with all memory freed"
    yield from _finding(signature)
    if defect.corrupts:
        yield "warning", "the generated tokens may change, too"


def _finding(signature: Signature) -> Iterator[tuple[str, str]]:
    if signature.kinds:
        yield "found by", _EXACT if rests_on_counts(signature) else _STATISTICAL
    yield "duration", f"about {format_duration(signature.duration_s)}"


def rests_on_counts(signature: Signature) -> bool:
    """Whether a count shows the defect: no run is too short for it.  Else a fit or a test does."""
    from hybridbench.analysis.findings.kinds import evidence_of
    from hybridbench.defects.defect import FoundBy
    from hybridbench.records.codes import Evidence

    counted = all(evidence_of(kind) is Evidence.EXACT for kind in signature.kinds)
    return signature.found_by is FoundBy.SOAK and counted


def _span(releases: tuple[str, str]) -> str:
    first, last = releases
    return first if first == last else f"{first} to {last}"


def _expected(defect: Defect) -> str:
    from hybridbench.defects.defect import FoundBy

    verdicts = " or ".join(defect.signature.verdicts)
    if not defect.signature.kinds:
        return verdicts
    kinds = " or ".join(defect.signature.kinds)
    subject = defect.signature.subject
    if defect.signature.found_by is FoundBy.COMPARE:
        return f"{verdicts} in a comparison, with {subject} {kinds}; a soak alone cannot see it"
    return f"{verdicts}, with finding {kinds} of {subject}"


def _command(defect: Defect) -> str:
    """What to type to see it."""
    from hybridbench.defects.defect import FoundBy, Role

    if defect.role is Role.PLANTED or defect.signature.found_by is FoundBy.COMPARE:
        return f"hybridbench compare . defect:{defect.slug} --profile {defect.profile}"
    words = ["hybridbench", "soak", "--profile", defect.profile, "--defect", defect.slug]
    words += ["--duration", format_duration(defect.signature.duration_s)]
    if defect.model:
        words += ["--model", defect.model]
    for key, value in defect.overrides:
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)
