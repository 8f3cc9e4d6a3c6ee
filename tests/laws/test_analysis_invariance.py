"""Laws of the estimator: units, origin and order say nothing about whether memory leaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.analysis.estimate import Estimate, Options, Samples, estimate
from hybridbench.analysis.record import FloatArray
from tests.unit.analysis.traces import HEALTHY, LEAKY, Setting, healthy, leaky

SETTING = Setting(3600.0, 5.0, 1000.0, 1.0, 20.0)
FLOOR = 12.0

kinds = st.sampled_from([*HEALTHY, *LEAKY])
seeds = st.integers(0, 10_000)


def series(kind: str, seed: int) -> tuple[FloatArray, FloatArray]:
    if kind in HEALTHY:
        trace = healthy(kind, seed, SETTING)
    else:
        trace = leaky(kind, seed, 200.0, SETTING)
    return trace.t_s, trace.value


def judged(t: FloatArray, y: FloatArray, floor: float = FLOOR) -> Estimate:
    return estimate(Samples(t, y), Options(floor=floor))


@given(kinds, seeds, st.sampled_from([2.0**-20, 0.125, 1024.0, 2.0**30]))
def test_the_unit_of_the_values_changes_no_verdict(kind: str, seed: int, unit: float) -> None:
    t, y = series(kind, seed)

    once, again = judged(t, y), judged(t, unit * y, unit * FLOOR)

    assert (again.leak, again.reason, again.model) == (once.leak, once.reason, once.model)
    assert again.growth == pytest.approx(unit * once.growth, rel=1e-6, abs=1e-6 * unit)
    assert again.upper == pytest.approx(unit * once.upper, rel=1e-6, abs=1e-6 * unit)


@given(kinds, seeds, st.sampled_from([-512.0, 4096.0, 65536.0]))
def test_memory_that_was_always_there_changes_no_verdict(kind: str, seed: int, more: float) -> None:
    t, y = series(kind, seed)

    once, again = judged(t, y), judged(t, y + more)

    assert again.leak == once.leak
    assert again.growth == pytest.approx(once.growth, rel=1e-3, abs=1e-2)


@given(kinds, seeds, st.floats(0.0, 1e6))
def test_when_the_run_began_changes_no_verdict(kind: str, seed: int, later_s: float) -> None:
    t, y = series(kind, seed)

    once, again = judged(t, y), judged(t + np.round(later_s), y)

    assert again.leak == once.leak
    assert again.growth == pytest.approx(once.growth, rel=1e-3, abs=1e-2)


@given(kinds, seeds)
def test_the_estimate_lies_in_its_own_interval(kind: str, seed: int) -> None:
    found = judged(*series(kind, seed))

    assert found.lower <= found.growth <= found.upper
    assert not (found.leak and found.lower <= FLOOR)
    assert bool(found.reason) or found.leak or found.growth == 0.0


@given(seeds, st.floats(50.0, 5000.0))
def test_planting_a_leak_moves_the_estimate_by_the_leak(seed: int, rate: float) -> None:
    t, y = series("flat", seed)

    found = judged(t, y + rate * (t - t[0]) / 3600)

    assert found.leak
    assert found.growth == pytest.approx(rate * (t[-1] - t[0]) / 3600, abs=0.05 * rate + 12)
