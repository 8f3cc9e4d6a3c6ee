"""A plan made ready to run: its cells within the budget, their hash, what every cell carries."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from hybridbench.nightly.budget import Budgeted, within
from hybridbench.nightly.cells import Cell, expand, plan_hash
from hybridbench.nightly.false_red import FalseRed, expected_false_red
from hybridbench.nightly.plan import LoadedPlan, Waiver, load_plan
from hybridbench.nightly.policy import Rules
from hybridbench.nightly.records import PlanRecord
from hybridbench.targets.engine_files import installed_engine_files


@dataclass(frozen=True)
class Night:
    """What one night is to run."""

    loaded: LoadedPlan
    budgeted: Budgeted
    budget_s: float | None
    defects: tuple[str, ...]
    false_red: FalseRed
    record: PlanRecord
    engine: str  # hash of its files: what one engine came to says nothing of another

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.budgeted.cells

    def rules(self, cell: Cell) -> Rules:
        """The plan's rules for ``cell``."""
        return Rules(cell, self.loaded.plan.policy, self.loaded.plan.waivers)


def planned_night(
    name_or_path: str | Path, budget_s: float | None = None, defects: tuple[str, ...] = ()
) -> Night:
    """The night of a plan; ``budget_s`` takes the place of the plan's own.

    Raises:
        ConfigError: the plan is wrong: one sentence with file and line.
        UsageError: not one cell fits into the budget.
    """
    loaded = load_plan(name_or_path)
    plan = loaded.plan
    budget_s = plan.budget_s if budget_s is None else budget_s
    budgeted = within(expand(loaded, defects), budget_s)
    false_red = expected_false_red(budgeted.cells, plan.policy)
    record = PlanRecord(
        name=plan.name,
        hash=plan_hash(plan, budgeted.cells),
        cells=tuple(cell.id for cell in budgeted.cells),
        left_out=tuple(cell.id for cell in budgeted.left_out),
        note=budgeted.note,
        false_red=false_red.text,
        policy=asdict(plan.policy),
        waivers=tuple(_waiver(waiver) for waiver in plan.waivers),
    )
    return Night(loaded, budgeted, budget_s, defects, false_red, record, installed_engine_files())


def stored_waivers(record: PlanRecord) -> tuple[Waiver, ...]:
    """The waivers that a cell carries."""
    return tuple(Waiver(**waiver) for waiver in record.waivers)


def _waiver(waiver: Waiver) -> dict[str, object]:
    return {**asdict(waiver), "expires": waiver.expires.isoformat()}
