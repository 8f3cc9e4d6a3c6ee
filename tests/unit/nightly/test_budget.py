"""A budget shortens cells alike, none below its least, and says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.errors import UsageError
from hybridbench.nightly.budget import OVERHEAD_S
from tests.unit.nightly.nights import night

PLAN = """\
name: test
duration: 10m
least_duration: 2m
matrix: {profiles: [smoke], seeds: [1, 2, 3]}
cells:
  - {id: last, profile: smoke, duration: 4m, least_duration: 1m}
"""


def test_without_a_budget_every_cell_has_its_length(tmp_path: Path) -> None:
    planned = night(tmp_path, PLAN)

    assert [cell.duration_s for cell in planned.cells] == [600.0, 600.0, 600.0, 240.0]
    assert planned.budgeted.needed_s == 2040.0 + 4 * OVERHEAD_S
    assert not planned.record.note


def test_a_budget_shortens_all_alike_and_keeps_a_fifth(tmp_path: Path) -> None:
    planned = night(tmp_path, PLAN, budget_s=1500.0)

    shares = [cell.duration_s / 600 for cell in planned.cells[:3]]
    assert len(set(shares)) == 1
    assert abs(planned.cells[3].duration_s / 240 - shares[0]) < 0.01
    assert 0.78 * 1500 < planned.budgeted.needed_s <= 0.8 * 1500
    assert "a fifth kept" in planned.record.note


def test_no_cell_gets_less_than_its_least_and_the_last_are_left_out(tmp_path: Path) -> None:
    planned = night(tmp_path, PLAN, budget_s=400.0)

    assert [cell.duration_s for cell in planned.cells] == [140.0, 140.0]
    assert planned.record.left_out == ("qwen3-next+smoke+seed3", "last")
    assert "left out: qwen3-next+smoke+seed3, last" in planned.record.note


def test_the_plans_own_budget_holds_unless_another_is_given(tmp_path: Path) -> None:
    text = PLAN + "budget: 400s\n"

    assert len(night(tmp_path, text).cells) == 2
    assert len(night(tmp_path, text, budget_s=1500.0).cells) == 4


def test_a_cell_at_its_least_leaves_the_shortening_to_the_others(tmp_path: Path) -> None:
    text = (
        "name: test\nduration: 10m\ncells:\n"
        "  - {id: firm, profile: smoke, least_duration: 5m}\n"
        "  - {id: soft, profile: smoke, least_duration: 1m}\n"
    )

    firm, soft = night(tmp_path, text, budget_s=700.0).cells

    assert firm.duration_s == 300.0
    assert 218.0 <= soft.duration_s <= 220.0


def test_a_budget_in_which_nothing_fits_is_refused_with_one_that_is_enough(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"budget 2m: not even the first cell fits, .*; give 2m55s"
    ):
        night(tmp_path, PLAN, budget_s=120.0)

    assert [cell.duration_s for cell in night(tmp_path, PLAN, budget_s=175.0).cells] == [120.0]
