"""A full survey of a process, in a child: cycles, holders, what would be freed, what stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def surveyed(case: str) -> None:
    """Run ``case`` of surveyed.py in a process of its own, where a survey is quick."""
    command = [sys.executable, "-m", "tests.unit.sampling.surveyed", case]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_survey_names_cycles_and_growth_also_in_a_frozen_process_and_frees_nothing() -> None:
    surveyed("a_survey_names_cycles_and_growth_also_in_a_frozen_process_and_frees_nothing")


def test_the_baseline_rehearses_the_stages_in_a_child_of_its_child() -> None:
    surveyed("the_baseline_rehearses_the_stages_in_a_child_of_its_child")


def test_a_rehearsal_that_fails_costs_only_itself() -> None:
    surveyed("a_rehearsal_that_fails_costs_only_itself")


def test_a_survey_that_fails_says_so() -> None:
    surveyed("a_survey_that_fails_says_so")
