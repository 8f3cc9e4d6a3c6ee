"""The smallest leak that a run can resolve, predicted before it and measured after it."""

from __future__ import annotations

import pytest

from hybridbench.analysis.judge import judge
from hybridbench.analysis.trend.resolution import smallest_leak_called, smallest_resolvable_rate
from hybridbench.foundation.metrics import MEMORY
from tests.unit.analysis.records import GIB, MB, Run, healthy_record, hourly


def test_longer_runs_and_smaller_processes_resolve_more() -> None:
    rate = smallest_resolvable_rate(600, 700 * MB)

    assert smallest_resolvable_rate(1200, 700 * MB) < rate
    assert smallest_resolvable_rate(600, 8e9) > rate


def test_noise_and_time_scale_as_the_slope_of_correlated_noise() -> None:
    once = smallest_resolvable_rate(2 * 3600, 1e13)

    assert smallest_resolvable_rate(8 * 3600, 1e13) == pytest.approx(once / 8)
    assert smallest_resolvable_rate(2 * 3600, 2e13) == pytest.approx(2 * once)


def test_ten_minutes_of_a_small_process_resolve_the_leaks_that_ship() -> None:
    assert smallest_resolvable_rate(480, 700 * MB) < GIB
    assert smallest_resolvable_rate(600, 8e9) < 3.7e9


def test_the_smallest_leak_that_would_have_been_called_is_above_the_noise_and_the_floor() -> None:
    memory = judge(healthy_record(Run(seed=1))).metrics[-1]

    smallest = smallest_leak_called(memory)

    assert memory.metric == MEMORY
    assert smallest is not None
    assert smallest > hourly(memory).upper - hourly(memory).value
    assert smallest >= memory.floor_per_hour
    assert smallest_leak_called(None) is None


def test_a_run_cut_off_after_seconds_rules_nothing_out() -> None:
    """Six samples once "ruled out growth above 7.66 MiB/h (95%)", which was only their range."""
    verdict = judge(healthy_record(Run(duration_s=36.0, steady_s=12.0)))

    memory = next(m for m in verdict.metrics if m.metric == "rss_anon_swap_bytes")
    assert memory.outcome == "INCONCLUSIVE"
    assert memory.rate_per_hour is None
    assert verdict.bounds.smallest_leak is None
    said = verdict
    assert "%" not in said.headline + said.can_rule_out
    assert all(f.rates == () for f in verdict.findings if f.subject == memory.metric)
