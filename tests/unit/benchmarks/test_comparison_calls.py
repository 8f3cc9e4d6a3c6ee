"""Comparisons on simulated machines: few wrong calls, and planted slowdowns are found."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.comparison_calls import (
    DRIFT,
    TABLE_HEAD,
    Machine,
    Row,
    measure,
    simulate,
    table_row,
)


def test_equal_versions_are_hardly_ever_called_different() -> None:
    row = measure(Machine(0.02), 0.0, repeats=60, seed=1)

    assert row.words["SAME"] >= 54
    assert row.words["FASTER"] + row.words["SLOWER"] <= 3


def test_a_slowdown_of_five_percent_is_found_within_24_rounds_at_two_percent_noise() -> None:
    row = measure(Machine(0.02), -0.05, repeats=60, seed=2)

    assert row.words["SLOWER"] >= 50
    assert row.words["FASTER"] + row.words["SAME"] == 0
    assert row.rounds < 24


def test_disturbed_blocks_cost_rounds_and_make_no_wrong_calls() -> None:
    calm = measure(Machine(0.01), -0.05, repeats=30, seed=3)
    shaken = measure(Machine(0.01, disturbed=0.1), -0.05, repeats=30, seed=3)

    assert shaken.rounds > calm.rounds
    assert shaken.words["FASTER"] + shaken.words["SAME"] == 0


def test_a_simulated_machine_drifts_and_pairs_take_the_drift_out() -> None:
    blocks = simulate(np.random.default_rng(4), Machine(0.0), -0.05, 500)

    logs = {(b.round, b.version): np.log(b.values["throughput_tokens_per_s"]) for b in blocks}
    ratio = np.array([logs[r, 1] - logs[r, 0] for r in range(500)])
    level = np.array([logs[r, 0] for r in range(500)])
    assert ratio.mean() == pytest.approx(np.log(0.95), abs=0.003)
    assert level.std() == pytest.approx(DRIFT, rel=0.3)
    assert ratio.std() < 0.6 * DRIFT


def test_a_row_of_the_table_has_the_shares_of_its_words() -> None:
    row = Row(Machine(0.02, 0.1), -0.05, Counter(SLOWER=9, INCONCLUSIVE=1), 18.0, 0.925)

    assert table_row(row) == ("| 2% | 10% | -5% | 0.000 | 0.000 | 0.900 | 0.100 | 18.0 | 0.925 |")
    assert table_row(row).count("|") == TABLE_HEAD[0].count("|") == TABLE_HEAD[1].count("|")
