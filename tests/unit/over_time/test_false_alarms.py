"""The expected share of false alarms agrees with a simulation of the same plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hybridbench.over_time.false_alarms import ALARM_RATE, GATED_METRICS, expected_false_alarms
from hybridbench.records.nightly import Policy
from tests.unit.over_time.planned_runs import planned_run

PLAN = "name: t\nmatrix: {profiles: [smoke], seeds: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}\n"


def test_the_share_is_that_of_simulated_nights_without_reruns(tmp_path: Path) -> None:
    planned = planned_run(tmp_path, PLAN)
    cells = [one.cell for one in planned.cells]
    policy = Policy(rerun_statistical_leak=False, extend=0.0)
    alarms = np.random.default_rng(8).random((20_000, 10 * GATED_METRICS)) < ALARM_RATE

    share = expected_false_alarms(cells, policy).share

    assert abs(share - float(alarms.any(axis=1).mean())) < 0.01
    assert 0.1 < share < 0.3


def test_reruns_square_the_chance_of_a_cell(tmp_path: Path) -> None:
    planned = planned_run(tmp_path, PLAN)
    cells = [one.cell for one in planned.cells]

    once = expected_false_alarms(cells[:1], Policy(rerun_statistical_leak=False))
    twice = expected_false_alarms(cells[:1], Policy())

    assert abs(twice.share - once.share**2) < 1e-12


def test_a_soak_on_a_gpu_has_more_metrics_to_be_wrong_about(tmp_path: Path) -> None:
    share = {}
    for needs in ("", "needs: {gpu: 1}\n"):
        cells = [one.cell for one in planned_run(tmp_path, PLAN + needs).cells]
        share[needs] = expected_false_alarms(cells[:1], Policy(rerun_statistical_leak=False))

    cpu, gpu = share.values()
    # Device memory, pinned memory and memory of graphs.
    assert gpu.gated_metrics == cpu.gated_metrics + 3
    assert gpu.share > cpu.share
