"""Leak diagnosis of a real engine: it names the attributes that hold leaked objects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wrong() -> dict[str, str]:
    """What went wrong in each case; all cases run in one separate process."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.unit.worker.diagnosed"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    cases: dict[str, str] = json.loads(ended.stdout)
    return cases


@pytest.mark.parametrize(
    "case",
    [
        "the_historic_cycle_is_named_with_its_attributes",
        "what_hangs_from_a_unified_tree_is_no_garbage_and_is_named_with_its_attribute",
        "a_list_that_nobody_reads_is_named_with_its_owner",
        "the_stages_are_answered_in_their_order_and_the_last_flushes_the_cache",
    ],
)
def test_a_diagnosis_names_what_a_defect_leaves(case: str, wrong: dict[str, str]) -> None:
    assert wrong[case] == ""
