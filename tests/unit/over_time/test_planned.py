"""A budget shortens all cells alike, none below its minimum, and says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.foundation.errors import UsageError
from hybridbench.over_time.planned import OVERHEAD_S
from hybridbench.workload.catalog import load_profile
from tests.unit.over_time.planned_runs import planned_run

SEEDS = "matrix: {profiles: [smoke], seeds: [1, 2]}\n"
PLAN = """\
name: test
duration: 100m
least_duration: 20m
matrix: {profiles: [smoke], seeds: [1, 2, 3]}
cells:
  - {id: last, profile: smoke, duration: 40m, least_duration: 10m}
"""


def test_without_a_budget_every_cell_has_its_length(tmp_path: Path) -> None:
    planned = planned_run(tmp_path, PLAN)

    assert [cell.cell.duration_s for cell in planned.cells] == [6000.0, 6000.0, 6000.0, 2400.0]
    assert planned.budgeted.needed_s == 20400.0 + 4 * OVERHEAD_S
    assert not planned.record.note


def test_a_budget_shortens_all_alike_and_keeps_a_fifth(tmp_path: Path) -> None:
    planned = planned_run(tmp_path, PLAN, budget_s=15000.0)

    shares = [cell.cell.duration_s / 6000 for cell in planned.cells[:3]]
    assert len(set(shares)) == 1
    assert abs(planned.cells[3].cell.duration_s / 2400 - shares[0]) < 0.01
    assert 0.78 * 15000 < planned.budgeted.needed_s <= 0.8 * 15000
    assert "20% reserved" in planned.record.note


def test_no_cell_gets_less_than_its_least_and_the_last_are_left_out(tmp_path: Path) -> None:
    planned = planned_run(tmp_path, PLAN, budget_s=4000.0)

    assert [cell.cell.duration_s for cell in planned.cells] == [1580.0, 1580.0]
    assert planned.record.left_out == ("qwen3-next+smoke+seed3", "last")
    assert "left out: qwen3-next+smoke+seed3, last" in planned.record.note


def test_the_plans_own_budget_holds_unless_another_is_given(tmp_path: Path) -> None:
    text = PLAN + "budget: 4000s\n"

    assert len(planned_run(tmp_path, text).cells) == 2
    assert len(planned_run(tmp_path, text, budget_s=15000.0).cells) == 4


def test_a_cell_at_its_least_leaves_the_shortening_to_the_others(tmp_path: Path) -> None:
    text = (
        "name: test\nduration: 100m\ncells:\n"
        "  - {id: firm, profile: smoke, least_duration: 50m}\n"
        "  - {id: soft, profile: smoke, least_duration: 10m}\n"
    )

    firm, soft = planned_run(tmp_path, text, budget_s=7000.0).cells

    assert firm.cell.duration_s == 3000.0
    assert 2558.0 <= soft.cell.duration_s <= 2560.0


def test_a_budget_in_which_nothing_fits_is_refused_with_one_that_is_enough(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"budget 20m: not even the first cell fits, .* of 20m; give 25m25s"
    ):
        planned_run(tmp_path, PLAN, budget_s=1200.0)

    assert [
        cell.cell.duration_s for cell in planned_run(tmp_path, PLAN, budget_s=1525.0).cells
    ] == [1200.0]


def test_a_budget_leaves_cells_out_and_makes_none_too_short_to_decide(tmp_path: Path) -> None:
    text = "name: test\nduration: 100m\nleast_duration: 1m\n" + SEEDS
    needed_s = load_profile("smoke").decides_from_s

    (only,) = planned_run(tmp_path, text, budget_s=1.5 * needed_s).cells

    # A least_duration too short to decide is raised, so "not shorter than" stays true.
    assert only.least_s == needed_s
    assert only.cell.duration_s >= needed_s
