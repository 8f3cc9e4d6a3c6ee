"""A night in less time: fewer cells, none shorter than what decides; the rest is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hybridbench.errors import UsageError
from hybridbench.nightly.cells import Cell
from hybridbench.units import format_duration

# Boot, warm starts, checkpoints, judging and the report, beside the traffic; measured at 8 to 25 s.
OVERHEAD_S: Final = 20.0
# Kept free for cells that are run again or extended.
_RESERVE: Final = 0.2


@dataclass(frozen=True)
class Budgeted:
    """The cells that fit, shortened; ``left_out`` those that do not, ``needed_s`` what all take."""

    cells: tuple[Cell, ...]
    left_out: tuple[Cell, ...]
    needed_s: float
    note: str = ""


def within(cells: Sequence[Cell], budget_s: float | None) -> Budgeted:
    """``cells`` one after another in ``budget_s``; all of them at full length without a budget.

    A fifth of the budget is kept for what is run again or extended.  Cells are shortened alike,
    but never below the length that decides; where those do not fit, the last cells of the plan are
    left out: order a plan by importance.

    Raises:
        UsageError: not even the first cell fits.
    """
    full_s = sum(cell.duration_s + OVERHEAD_S for cell in cells)
    if budget_s is None or full_s <= budget_s * (1 - _RESERVE):
        return Budgeted(tuple(cells), (), full_s)
    usable_s = budget_s * (1 - _RESERVE)
    kept = list(cells)
    while kept and sum(cell.least_s + OVERHEAD_S for cell in kept) > usable_s:
        kept.pop()
    if not kept:
        enough_s = math.ceil((cells[0].least_s + OVERHEAD_S) / (1 - _RESERVE))
        raise UsageError(
            f"budget {format_duration(budget_s)}: not even the first cell fits, {cells[0].id} of "
            f"{format_duration(cells[0].least_s)}; give {format_duration(enough_s)} or more."
        )
    left_out = tuple(cells[len(kept) :])
    traffic_s = usable_s - OVERHEAD_S * len(kept)
    shortened = tuple(_shortened(cell, _scale(kept, traffic_s)) for cell in kept)
    needed_s = sum(cell.duration_s + OVERHEAD_S for cell in shortened)
    return Budgeted(shortened, left_out, needed_s, _note(cells, shortened, left_out, budget_s))


def _scale(cells: Sequence[Cell], traffic_s: float) -> float:
    """The share of their lengths that the cells keep, those at their least aside."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        taken_s = sum(_shortened(cell, middle).duration_s for cell in cells)
        low, high = (middle, high) if taken_s <= traffic_s else (low, middle)
    return low


def _shortened(cell: Cell, share: float) -> Cell:
    # Whole seconds: the same budget gives the same plan, whatever the last digits of a share.
    return replace(cell, duration_s=max(cell.least_s, float(int(cell.duration_s * share))))


def _note(
    cells: Sequence[Cell], kept: Sequence[Cell], left_out: Sequence[Cell], budget_s: float
) -> str:
    full_s = sum(cell.duration_s for cell in cells[: len(kept)])
    share = sum(cell.duration_s for cell in kept) / full_s if full_s else 0.0
    note = (
        f"budget {format_duration(budget_s)}: {len(kept)} of {len(cells)} cells at {share:.0%} of "
        "their length, a fifth kept for what is run again or extended"
    )
    if left_out:
        note += f"; left out: {', '.join(cell.id for cell in left_out)}"
    return note
