"""Holm's adjustment over the metrics of a run."""

from __future__ import annotations

import pytest

from hybridbench.analysis.distributions import holm
from hybridbench.analysis.trend.metric_trend import with_q_values
from hybridbench.records.finding import Rate
from hybridbench.records.verdict import MetricResult


def result(metric: str, p_value: float | None) -> MetricResult:
    rate = Rate(0.0, -1.0, 1.0, "B", "h")
    return MetricResult(metric, "CLEAN", (0.0, 1.0), rate, None, 1.0, None, "flat", p_value=p_value)


def test_the_smallest_counts_for_all_and_the_largest_for_itself() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_adjusted_values_keep_the_order_and_stay_probabilities() -> None:
    assert holm([0.9, 0.5, 0.6]) == pytest.approx([1.0, 1.0, 1.0])
    assert holm([]) == []
    assert holm([0.2]) == [0.2]


def test_a_metric_that_was_not_tested_does_not_count() -> None:
    results = with_q_values([result("a", 0.01), result("b", None), result("c", 0.5)])

    assert [r.q_value for r in results] == [pytest.approx(0.02), None, pytest.approx(0.5)]
