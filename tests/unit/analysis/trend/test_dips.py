"""Distinguishing memory that is freed and refilled from sawteeth and from released growth."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.blocks import make_blocks
from hybridbench.analysis.trend.estimate import Estimate, Options, Samples, estimate
from hybridbench.analysis.trend.nuisance import find_dips
from hybridbench.analysis.trend.sawtooth import find_sawtooth
from tests.unit.analysis.traces import tooth

T = np.arange(0.0, 4 * 3600.0, 4.0)
X = T / T[-1]


def noise(seed: int) -> FloatArray:
    drawn: FloatArray = 3.0 * np.random.default_rng(seed).normal(size=T.size)
    return drawn


def refilled(*places: float, tau: float = 0.03) -> FloatArray:
    """A helper of 80 MB that dies at each of ``places`` and refills its buffers."""
    out = np.full(T.size, 1000.0)
    for at in places:
        out -= 80.0 * np.exp(-np.maximum(X - at, 0.0) / tau) * (at < X)
    return out


def judged(value: FloatArray) -> Estimate:
    return estimate(Samples(T, value), Options(floor=4.0))


@pytest.mark.parametrize("tau", [0.01, 0.03, 0.05])
def test_each_fall_has_its_return(tau: float) -> None:
    value = refilled(0.3, 0.62, tau=tau) + noise(1)
    blocks = make_blocks(T, value)

    dips = find_dips(blocks, find_sawtooth(T, value))

    assert dips is not None
    assert len(dips.columns) == 2
    first = dips.columns[0]
    assert np.all(first[blocks.x < 0.28] == 0.0)
    assert first[(blocks.x > 0.3) & (blocks.x < 0.33)].max() > 0.25


def test_a_saw_does_not_return() -> None:
    value = 1000.0 + 80.0 * tooth(3.3 * X) + noise(2)

    assert find_dips(make_blocks(T, value), find_sawtooth(T, value)) is None


def test_what_falls_and_stays_down_does_not_return() -> None:
    value = 1000.0 - 80.0 * (X > 0.4) + noise(3)

    assert find_dips(make_blocks(T, value), find_sawtooth(T, value)) is None


def test_a_restarted_helper_hides_neither_the_bound_nor_a_leak() -> None:
    still = judged(refilled(0.3, 0.62) + noise(4))
    leak = judged(refilled(0.3, 0.62) + 10.0 * T / 3600 + noise(4))

    assert not still.leak
    assert still.upper < 4.0
    assert leak.leak
    assert leak.lower < 40.0 < leak.upper
    assert leak.upper - leak.lower < 10.0


@pytest.mark.parametrize("cycles", [1.4, 2.3, 3.6])
def test_few_teeth_are_no_leak_with_returns(cycles: float) -> None:
    found = judged(1000.0 + 80.0 * tooth(cycles * X + 0.2) + noise(5))

    assert not found.leak
