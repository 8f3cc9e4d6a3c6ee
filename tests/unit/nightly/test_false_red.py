"""The expected share of false red nights is what a simulation of the same night gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from hybridbench.nightly.false_red import ALARM_RATE, GATED_METRICS, expected_false_red
from tests.unit.nightly.nights import night

PLAN = "name: t\nmatrix: {profiles: [smoke], seeds: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}\n"


def test_the_share_is_that_of_simulated_nights_without_reruns(tmp_path: Path) -> None:
    planned = night(tmp_path, PLAN)
    policy = replace(planned.loaded.plan.policy, rerun_statistical_leak=False, extend=0.0)
    alarms = np.random.default_rng(8).random((20_000, 10 * GATED_METRICS)) < ALARM_RATE

    share = expected_false_red(planned.cells, policy).share

    assert abs(share - float(alarms.any(axis=1).mean())) < 0.01
    assert 0.1 < share < 0.3


def test_reruns_square_the_chance_of_a_cell(tmp_path: Path) -> None:
    planned = night(tmp_path, PLAN)
    policy = planned.loaded.plan.policy

    once = expected_false_red(planned.cells[:1], replace(policy, rerun_statistical_leak=False))
    twice = expected_false_red(planned.cells[:1], policy)

    assert abs(twice.share - once.share**2) < 1e-12
