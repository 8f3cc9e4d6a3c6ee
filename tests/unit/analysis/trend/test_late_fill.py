"""How often a fill that ends just before the run is called a leak, as detection.md states."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend import estimate as estimating
from hybridbench.analysis.trend.estimate import Options, Samples, estimate

RUNS = 20
MB = 1e6


def run_of(size: float, end: float, rng: np.random.Generator, run: int) -> Samples:
    """Four hours of an 8 GB process that fills by ``size``, with autocorrelated noise."""
    t_s = np.linspace(0.0, 4 * 3600.0, (720, 1440, 4320)[run % 3])
    fill = size * np.minimum(t_s / t_s[-1] / end, 1.0)
    return Samples(t_s, 8e9 + fill + _noise(t_s.size, (0.5, 0.9)[run % 2], rng))


def leaks(size: float, end: float, runs: int = RUNS) -> int:
    rng = np.random.default_rng(5)
    called = (
        estimate(run_of(size, end, rng, run), Options(floor=40 * MB)).leak for run in range(runs)
    )
    return sum(called)


@pytest.mark.parametrize("end", [0.9, 0.95])
def test_a_large_fill_that_ends_before_its_run_is_no_leak(end: float) -> None:
    assert leaks(4000 * MB, end, runs=6) == 0
    assert leaks(4000 * MB, 1.0, runs=6) == 6


@pytest.mark.slow
@pytest.mark.parametrize(("size", "most"), [(400 * MB, 17), (1000 * MB, 6), (4000 * MB, 0)])
def test_the_look_for_an_end_saves_most_fills(
    size: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_it = leaks(size, 0.93)
    monkeypatch.setattr(estimating, "stops_at_the_end", lambda *_: False)
    without = leaks(size, 0.93)

    print(f"{size / MB:.0f} MB: {with_it} of {RUNS} called a leak, {without} without the rule")
    assert with_it <= most
    assert without > with_it


def _noise(count: int, phi: float, rng: np.random.Generator) -> FloatArray:
    fresh = rng.normal(size=count) * 20 * MB * np.sqrt(1 - phi * phi)
    out = np.zeros(count)
    for i in range(1, count):
        out[i] = phi * out[i - 1] + fresh[i]
    return out
