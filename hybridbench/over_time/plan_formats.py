"""Output of ``nightly plan``: a table, a document for programs, a matrix for GitHub."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from hybridbench.foundation.errors import UsageError
from hybridbench.foundation.units import format_duration
from hybridbench.over_time.cells import PlannedCell
from hybridbench.over_time.planned import OVERHEAD_S, PlannedRun
from hybridbench.over_time.policy import extension_s
from hybridbench.records.nightly import Cell, counted

# GitHub limits a matrix to this many jobs.
_GITHUB_MAX: Final = 256
# A fresh runner installs torch before it runs anything.
_GITHUB_SETUP_MIN: Final = 15
PARTIAL: Final = (
    "with cells left out the run ends 13 (INCONCLUSIVE) where it would pass, unless "
    "`nightly merge` or `nightly run` has --allow-partial"
)


def console(nightly: PlannedRun) -> str:
    """Return a line per cell, the total time, and the probability of a false alarm."""
    width = max(len(cell.id) for cell in nightly.cells)
    record, budgeted = nightly.record, nightly.budgeted
    lines = [f"plan {record.name} {record.hash}: {counted(len(nightly.cells))}"]
    lines += [_line(index, one.cell, width) for index, one in enumerate(nightly.cells)]
    lines.append(f"one after another: {format_duration(budgeted.needed_s)}")
    lines += [budgeted.note] if budgeted.note else []
    lines += [PARTIAL] if record.left_out else []
    lines.append(f"false alarms: {nightly.false_alarms.text}")
    lines.append(f"  = {nightly.false_alarms.formula}")
    return "\n".join(lines) + "\n"


def _line(index: int, cell: Cell, width: int) -> str:
    versions = " ".join(cell.versions)
    what = f"{cell.profile}  seed {cell.seed}  {versions}" if cell.profile else "external program"
    return (
        f"{index:4} {cell.id:{width}}  {cell.kind.value:7} {format_duration(cell.duration_s):>6}  "
        f"{cell.model}  {what}"
    )


def as_json(nightly: PlannedRun) -> str:
    """Return the cells with everything they run, and a timeout in minutes for each."""
    record, false_alarms = nightly.record, nightly.false_alarms
    document = {
        "schema": "hybridbench.nightly-plan/1",
        "name": record.name,
        "hash": record.hash,
        "cells": [
            {**msgspec.to_builtins(one.cell), "minutes": _minutes(one, nightly)}
            for one in nightly.cells
        ],
        "left_out": record.left_out,
        "needed_s": nightly.budgeted.needed_s,
        "false_alarms": {
            "share": false_alarms.share,
            "text": false_alarms.text,
            "formula": false_alarms.formula,
        },
    }
    return json.dumps(document, indent=2) + "\n"


def github_matrix(nightly: PlannedRun) -> str:
    """Return one line, for ``echo "matrix=$(...)" >> "$GITHUB_OUTPUT"``."""
    if len(nightly.cells) > _GITHUB_MAX:
        raise UsageError(
            f"github: {len(nightly.cells)} cells, and one matrix has at most "
            f"{_GITHUB_MAX}; split the plan.",
            option="--format",
        )
    include = [
        {
            "id": one.id,
            "minutes": _minutes(one, nightly) + _GITHUB_SETUP_MIN,
            "runs_on": list(one.cell.needs.labels) or _runner(one.cell),
        }
        for one in nightly.cells
    ]
    return json.dumps({"include": include}) + "\n"


def _runner(cell: Cell) -> str | list[str]:
    return ["self-hosted", "gpu"] if cell.needs.gpu else "ubuntu-latest"


def _minutes(planned: PlannedCell, nightly: PlannedRun) -> int:
    """Return a cell's time limit: all runs that the policy allows, extended, with a margin."""
    policy = nightly.record.policy
    runs = 1 + policy.rerun_statistical_leak + policy.rerun_invalid
    run_s = planned.cell.duration_s + OVERHEAD_S
    extend_s = extension_s(planned.cell, policy)
    if nightly.budget_s is not None:
        extend_s = min(extend_s, max(nightly.budget_s - run_s, 0.0))
    return math.ceil(1.5 * (run_s + extend_s) * runs / 60) + 5


FORMATS: Final[Mapping[str, Callable[[PlannedRun], str]]] = {
    "console": console,
    "json": as_json,
    "github": github_matrix,
}
