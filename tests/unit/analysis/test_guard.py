"""The deceleration guard."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.guard import measure_pace
from hybridbench.analysis.record import FloatArray

X = (np.arange(80) + 0.5) / 80
GAPS = np.ones(79)


def noisy(y: FloatArray) -> FloatArray:
    return y + 0.2 * np.random.default_rng(1).normal(size=y.size)


def test_a_line_keeps_its_pace() -> None:
    pace = measure_pace(X, noisy(100 * X), GAPS, 0.0)

    assert pace is not None
    assert pace.last_quarter == pytest.approx(100, abs=5)
    assert pace.holds(100.0, warming=False)
    assert pace.holds(100.0, warming=True)


@pytest.mark.parametrize("tau", [0.2, 0.5, 0.9])
def test_saturation_fades(tau: float) -> None:
    pace = measure_pace(X, noisy(100 * (1 - np.exp(-X / tau))), GAPS, 0.0)

    assert pace is not None
    assert not pace.holds(1.0, warming=False)


def test_growth_far_below_the_claim_does_not_hold() -> None:
    pace = measure_pace(X, noisy(20 * X), GAPS, 0.0)

    assert pace is not None
    assert not pace.holds(100.0, warming=False)


def test_too_few_late_blocks_say_nothing() -> None:
    assert measure_pace(X[:10], X[:10], GAPS[:9], 0.0) is None
