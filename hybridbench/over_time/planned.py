"""A plan made ready to run: its cells within the budget, and the record that every cell stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.foundation.units import format_duration, format_percent
from hybridbench.over_time.cells import PlannedCell, expand, plan_hash
from hybridbench.over_time.false_alarms import FalseAlarms, expected_false_alarms
from hybridbench.over_time.plan import LoadedPlan, load_plan
from hybridbench.over_time.policy import Rules
from hybridbench.records.nightly import PlanRecord
from hybridbench.targets.engine_files import installed_engine_files

# Boot, warm starts, checkpoints, judging and the report, besides traffic; measured at 8 to 25 s.
OVERHEAD_S: Final = 20.0
# Reserved for cells that are run again or extended.
_RESERVE: Final = 0.2


@dataclass(frozen=True)
class Budgeted:
    """The cells that fit, shortened, and those ``left_out``; ``needed_s`` is the total time."""

    cells: tuple[PlannedCell, ...]
    left_out: tuple[PlannedCell, ...]
    needed_s: float
    note: str = ""


@dataclass(frozen=True)
class PlannedRun:
    """What one nightly run will do."""

    loaded: LoadedPlan
    budgeted: Budgeted
    budget_s: float | None
    false_alarms: FalseAlarms
    record: PlanRecord
    engine: str  # hash of its files: results of one engine do not apply to another

    @property
    def cells(self) -> tuple[PlannedCell, ...]:
        return self.budgeted.cells

    def rules(self, cell: PlannedCell) -> Rules:
        """Return the plan's rules for ``cell``."""
        return Rules(cell.cell, self.record.policy, self.record.waivers)


def plan_run(
    name_or_path: str | Path, budget_s: float | None = None, defects: tuple[str, ...] = ()
) -> PlannedRun:
    """Return the nightly run of a plan; ``budget_s`` overrides the plan's own.

    Raises:
        ConfigError: the plan is invalid: one sentence with file and line.
        UsageError: not even one cell fits into the budget.
    """
    loaded = load_plan(name_or_path)
    plan = loaded.plan
    budget_s = plan.budget_s if budget_s is None else budget_s
    budgeted = within(expand(loaded, defects), budget_s)
    cells = [planned.cell for planned in budgeted.cells]
    false_alarms = expected_false_alarms(cells, plan.policy)
    record = PlanRecord(
        name=plan.name,
        hash=plan_hash(plan, budgeted.cells),
        cells=tuple(cell.id for cell in budgeted.cells),
        left_out=tuple(cell.id for cell in budgeted.left_out),
        note=budgeted.note,
        false_alarms=false_alarms.text,
        policy=plan.policy,
        waivers=plan.waivers,
    )
    return PlannedRun(loaded, budgeted, budget_s, false_alarms, record, installed_engine_files())


def within(cells: Sequence[PlannedCell], budget_s: float | None) -> Budgeted:
    """Fit ``cells`` one after another into ``budget_s``; without a budget, at full length.

    A fifth of the budget is reserved for reruns and extensions.  All cells are shortened by the
    same factor, but never below the length that decides.  If they still do not fit, the last cells
    of the plan are dropped, so a plan should list the most important ones first.

    Raises:
        UsageError: not even the first cell fits.
    """
    full_s = _needed_s(cells)
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
            f"{format_duration(cells[0].least_s)}; give {format_duration(enough_s)} or more.",
            code=ErrorCode.BAD_VALUE,
        )
    share = _scale(kept, usable_s - OVERHEAD_S * len(kept))
    shortened = tuple(cell.lasting(_shortened_s(cell, share)) for cell in kept)
    left_out = tuple(cells[len(kept) :])
    note = _note(kept, shortened, left_out, budget_s)
    return Budgeted(shortened, left_out, _needed_s(shortened), note)


def _needed_s(cells: Sequence[PlannedCell]) -> float:
    return sum(cell.cell.duration_s + OVERHEAD_S for cell in cells)


def _scale(cells: Sequence[PlannedCell], traffic_s: float) -> float:
    """Return the factor on the lengths of the cells that are not at their minimum."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        taken_s = sum(_shortened_s(cell, middle) for cell in cells)
        low, high = (middle, high) if taken_s <= traffic_s else (low, middle)
    return low


def _shortened_s(cell: PlannedCell, share: float) -> float:
    # Whole seconds, so that rounding cannot make the same budget give different plans.
    return max(cell.least_s, float(int(cell.cell.duration_s * share)))


def _note(
    kept: Sequence[PlannedCell],
    shortened: Sequence[PlannedCell],
    left_out: Sequence[PlannedCell],
    budget_s: float,
) -> str:
    full_s = sum(cell.cell.duration_s for cell in kept)
    share = sum(cell.cell.duration_s for cell in shortened) / full_s if full_s else 0.0
    note = (
        f"budget {format_duration(budget_s)}: {len(kept)} of {len(kept) + len(left_out)} cells at "
        f"{format_percent(share)} of their length, 20% reserved for reruns and extensions"
    )
    if left_out:
        note += f"; left out: {', '.join(cell.id for cell in left_out)}"
    return note
