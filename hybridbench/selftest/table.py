"""The detection matrix as text: a line per row while it runs, a table at the end."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.foundation.units import format_duration
from hybridbench.selftest.compare import Outcome
from hybridbench.selftest.matrix import Expect

HEADINGS = (
    "row",
    "profile",
    "time",
    "expected",
    "verdict",
    "subject",
    "driver",
    "rate for each event or hour",
    "truth",
    "detected",
    "right",
)


def line(outcome: Outcome) -> str:
    """Return one finished row as text."""
    row = outcome.row
    mark = "ok   " if not outcome.wrong else "WRONG"
    said = f"{mark} {row.expect.value:8} {row.name}: {outcome.verdict}"
    details = [outcome.subject, outcome.rate or outcome.driver]
    details += [f"truth {outcome.truth}"] if outcome.truth else []
    if outcome.detect_s is not None:
        details.append(f"from {format_duration(outcome.detect_s)} on")
    said_too = ", ".join(detail for detail in details if detail)
    lines = [f"{said}; {said_too}" if said_too else said]
    return "\n".join([*lines, *(f"      {wrong}" for wrong in outcome.wrong)])


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Return one row of the table, in the order of ``HEADINGS``."""
    row = outcome.row
    detected = "" if outcome.detect_s is None else format_duration(outcome.detect_s)
    return (
        row.name,
        row.profile,
        format_duration(row.duration_s),
        " or ".join(row.signature.verdicts),
        outcome.verdict,
        outcome.subject,
        outcome.driver,
        outcome.rate,
        outcome.truth,
        detected,
        "no" if outcome.wrong else "yes",
    )


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return the whole matrix as a Markdown table, followed by what was wrong."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *map(cells, outcomes)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines += ["", summary(outcomes)]
    for outcome in outcomes:
        lines += [f"- {outcome.row.name}: {wrong}" for wrong in outcome.wrong]
    return "\n".join(lines) + "\n"


def summary(outcomes: Sequence[Outcome]) -> str:
    """Report how many rows are right, and how many healthy ones stayed undecided."""
    right = sum(not outcome.wrong for outcome in outcomes)
    said = f"{right} of {len(outcomes)} rows are right."
    healthy = [o for o in outcomes if o.row.expect is not Expect.CAUGHT]
    undecided = sum(o.verdict == "INCONCLUSIVE" for o in healthy)
    if undecided:
        said += (
            f" {undecided} of {len(healthy)} healthy rows stayed undecided: where the table allows "
            "it, the row is too short to bound memory."
        )
    return said
