"""Rates per hour."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.drivers.rates import rate_per_hour

T = np.arange(0.0, 600.0)


def test_a_steady_count_has_a_rate_and_a_narrow_interval() -> None:
    held = 0
    for seed in range(40):
        count = np.cumsum(np.random.default_rng(seed).poisson(0.5, T.size)).astype(np.float64)
        rate = rate_per_hour(T, count, "slots")
        assert rate is not None
        assert rate.upper - rate.lower < 1000.0
        held += rate.lower <= 1800.0 <= rate.upper

    assert held >= 34


def test_what_never_falls_has_no_negative_rate() -> None:
    rate = rate_per_hour(T, np.where(T > 590, 1.0, 0.0), "slots")

    assert rate is not None
    assert rate.lower == 0.0
    assert rate.value == pytest.approx(1 / 599 * 3600)


def test_a_handful_of_samples_has_no_rate() -> None:
    assert rate_per_hour(T[:5], T[:5], "slots") is None
