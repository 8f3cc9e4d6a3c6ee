"""What a run can see, before and after; and how long a leak may go on."""

from __future__ import annotations

import pytest

from hybridbench.analysis.judge import judge
from hybridbench.analysis.trend.resolution import resolution_line, smallest_resolvable_rate
from tests.unit.analysis.records import GIB, MB, Run, healthy_record


def test_longer_runs_and_smaller_and_quieter_processes_resolve_more() -> None:
    rate = smallest_resolvable_rate(600, 700 * MB)

    assert smallest_resolvable_rate(1200, 700 * MB) < rate
    assert smallest_resolvable_rate(600, 8e9) > rate
    assert smallest_resolvable_rate(600, 700 * MB, noise_share=0.02) > rate


def test_noise_and_time_scale_as_the_slope_of_correlated_noise() -> None:
    loud = {"noise_share": 0.1, "noise_tau_s": 30.0}
    once = smallest_resolvable_rate(3600, 1e9, **loud)

    assert smallest_resolvable_rate(4 * 3600, 1e9, **loud) == pytest.approx(once / 8)
    assert smallest_resolvable_rate(3600, 2e9, **loud) == pytest.approx(2 * once)


def test_ten_minutes_of_a_small_process_resolve_the_leaks_that_ship() -> None:
    assert smallest_resolvable_rate(480, 700 * MB) < GIB
    assert smallest_resolvable_rate(600, 8e9) < 3.7e9


def test_the_line_says_what_is_ruled_out_and_what_would_be_missed() -> None:
    verdict = judge(healthy_record(Run(seed=1)))

    assert "is ruled out (95 %)" in verdict.can_rule_out
    assert "would not be called" in verdict.can_rule_out
    assert "rules nothing out" in resolution_line(None, steady=True)


def test_a_run_cut_off_after_seconds_rules_nothing_out() -> None:
    """Six samples once "ruled out growth above 7.66 MiB/h (95 %)": it was their range."""
    verdict = judge(healthy_record(Run(duration_s=36.0, steady_s=12.0)))

    memory = next(m for m in verdict.metrics if m.metric == "rss_anon_swap_bytes")
    assert memory.outcome == "INCONCLUSIVE"
    assert memory.rate_per_hour is None
    assert "no growth is ruled out" in verdict.can_rule_out
    assert "%" not in verdict.headline + verdict.can_rule_out
    assert all(f.rates == () for f in verdict.findings if f.subject == memory.metric)
