"""A straight line through memory, in constant memory, with an interval that contains the truth."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.runs.memory_slope import MemorySlope
from tests.unit.analysis.traces import ar1

MIB = 2.0**20


def test_a_few_samples_have_no_slope() -> None:
    slope = MemorySlope()
    for second in range(7):
        slope.add(second, 1.0)

    assert slope.fit() is None


def test_the_slope_of_a_line_is_exact_however_many_samples_there_are() -> None:
    slope = MemorySlope()
    for second in range(10_000):
        slope.add(5.0 * second, 3e8 + 5.0 * second * MIB)

    found = slope.fit()
    assert found is not None
    assert found.per_hour == pytest.approx(3600 * MIB)
    assert found.half_width == pytest.approx(0.0, abs=1.0)


def test_the_interval_holds_the_truth_under_correlated_noise() -> None:
    t = np.arange(0.0, 3600.0, 5.0)
    hits = 0
    for seed in range(60):
        slope = MemorySlope()
        noise = ar1(np.random.default_rng(seed), t, MIB, 20.0)
        for t_s, value in zip(t.tolist(), (3e8 + noise).tolist(), strict=True):
            slope.add(t_s, value)
        found = slope.fit()
        assert found is not None
        hits += abs(found.per_hour) <= found.half_width
    assert hits >= 52
