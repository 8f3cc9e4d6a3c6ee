"""``hybridbench defects``: the historic bugs that ``soak --defect`` can put back."""

from __future__ import annotations

import typer

from hybridbench.safe_output import echo

app = typer.Typer(help="Historic defects that `soak --defect SLUG` puts back into the engine.")


@app.command("list")
def list_defects() -> None:
    """List the defects with their source and the profile that reaches them."""
    from hybridbench.defects.catalog import CONTROLS, DEFECTS, PLANTED

    for defect in (*DEFECTS, *CONTROLS, *PLANTED):
        echo(f"{defect.slug:24} {defect.source:14} profile {defect.profile}")
        echo(f"    {defect.symptom}")


@app.command("show")
def show(slug: str) -> None:
    """Show what a defect replaces and what a correct detector must report."""
    from hybridbench.defects.catalog import find_defect

    defect = find_defect(slug)
    echo(f"{defect.slug} ({defect.source})\n\n{defect.symptom}\n")
    echo(f"profile    {defect.profile}")
    for patch in defect.patches:
        echo(f"replaces   {patch.holder.__name__}.{patch.method}")
    signature = defect.signature
    echo(f"expected   {' or '.join(signature.verdicts)}: {signature.subject}, {signature.rate}")
    echo(f"driver     {signature.event}")
