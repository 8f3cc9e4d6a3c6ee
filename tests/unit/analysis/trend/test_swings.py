"""A swing of unknown period is found, noise is not a swing, and growth beside one is seen."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.blocks import BYTES_QUANTILE, MAX_BLOCKS, Blocks, make_blocks
from hybridbench.analysis.trend.estimate import Options, Samples, estimate
from hybridbench.analysis.trend.gls import Problem
from hybridbench.analysis.trend.nuisance import find_swing
from hybridbench.analysis.trend.one_cycle import growth_of_lows, rises_again
from hybridbench.analysis.trend.shapes import build_shapes

X = np.linspace(0.0, 1.0, 80)
T = np.arange(0.0, 4 * 3600.0, 10.0)


def problem(y: FloatArray) -> Problem:
    return Problem(y, np.ones(X.size - 1), build_shapes(X))


def swinging(cycles: float, height: float, rate: float) -> FloatArray:
    noise = np.random.default_rng(4).normal(size=T.size)
    wave = height * np.sin(2 * np.pi * (cycles * T / T[-1] + 0.3))
    total: FloatArray = 1000.0 + wave + noise + rate * T / 3600.0
    return total


@pytest.mark.parametrize("cycles", [4.37, 5.0, 11.8])
def test_a_swing_of_any_period_is_found(cycles: float) -> None:
    noise = np.random.default_rng(2).normal(size=X.size)
    y = 10.0 * np.sin(2 * np.pi * cycles * X) + noise
    found = find_swing(problem(y))

    assert found is not None
    columns = np.column_stack([np.ones(X.size), *found.columns])
    left = y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    assert left.std() < 1.3 * noise.std()


def test_noise_and_lines_do_not_swing() -> None:
    noise = np.random.default_rng(3).normal(size=X.size)

    assert find_swing(problem(noise)) is None
    assert find_swing(problem(noise + 100.0 * X)) is None
    assert find_swing(problem(np.zeros(X.size))) is None


def test_a_swing_hides_neither_the_bound_nor_a_leak() -> None:
    still = estimate(Samples(T, swinging(4.4, 50.0, 0.0)), Options(floor=4.0))
    leak = estimate(Samples(T, swinging(4.4, 50.0, 20.0)), Options(floor=4.0))

    assert not still.leak
    assert still.upper < 4.0
    assert leak.leak
    assert leak.lower < 80.0 < leak.upper


SHARE = np.linspace(0.0, 1.0, 400)  # elapsed share of the recording


def day(hours: float, phase_h: float) -> FloatArray:
    """Memory that follows a daily load, idle at night; phase 0 is the morning."""
    wave = np.sin(2 * np.pi * (hours * SHARE + phase_h) / 24.0)
    load: FloatArray = 460.0 * np.clip(wave, -0.3, 1.0)
    return load


@pytest.mark.parametrize(
    ("shape", "again"),
    [
        (day(31.0, 0.0), True),  # from one morning to the next noon
        (day(43.0, 12.0), True),  # from one evening to the second noon
        (day(31.0, 12.0), False),  # from one evening to the next night
        (day(80.0, 0.0), False),  # three days and more
        (600.0 * SHARE, False),
        (400.0 * (SHARE < 0.1) + 500.0 * np.clip(SHARE - 0.1, 0.0, 1.0), False),  # a start-up
    ],
    ids=["morning to noon", "evening to noon", "one peak", "several cycles", "a ramp", "a start"],
)
def test_a_rise_like_one_that_was_freed_may_be_a_second_cycle(
    shape: FloatArray, again: bool
) -> None:
    value = 7000.0 + shape + 5.0 * np.random.default_rng(1).normal(size=SHARE.size)

    assert rises_again(make_blocks(1e5 * SHARE, value, BYTES_QUANTILE, MAX_BLOCKS)) == again


def test_the_second_day_of_a_load_is_no_leak() -> None:
    value = 7000.0 + day(31.0, 0.0) + 15.0 * np.random.default_rng(1).normal(size=SHARE.size)

    found = estimate(Samples(31.0 * 3600.0 * SHARE, value), Options(floor=50.0))

    assert (found.leak, found.reason) == (False, "one-cycle")


def test_a_swing_counts_even_if_only_the_later_half_is_judged() -> None:
    """Without the earlier half, nothing shows that memory was as high before."""
    wave = np.exp(2.0 * np.sin(2 * np.pi * (31.0 * SHARE - 2.0) / 24.0) - 2.0)
    value = 18000.0 + 9000.0 * wave + 400.0 * np.random.default_rng(3).normal(size=SHARE.size)

    found = estimate(Samples(31.0 * 3600.0 * SHARE, value), Options(floor=50.0))

    assert found.blocks.start_s > 0.0
    assert (found.leak, found.reason) == (False, "one-cycle")


@pytest.mark.parametrize(
    ("shape", "grows"),
    [
        (day(36.0, 18.0) + 300.0 * SHARE, 300.0),
        (day(36.0, 18.0), 0.0),
        (day(80.0, 0.0) + 300.0 * SHARE, 0.0),  # a period can be measured
        (600.0 * SHARE, 0.0),  # nothing was freed
        (day(36.0, 18.0) * (SHARE < 0.5) + 300.0 * (SHARE > 0.1), 0.0),  # a start-up, then nothing
    ],
    ids=["a leak", "no leak", "several cycles", "a ramp", "a start"],
)
def test_growth_between_the_lows_of_one_cycle(shape: FloatArray, grows: float) -> None:
    value = 7000.0 + shape + 5.0 * np.random.default_rng(1).normal(size=SHARE.size)

    blocks = make_blocks(1e5 * SHARE, value, BYTES_QUANTILE, MAX_BLOCKS)

    assert growth_of_lows(blocks) == pytest.approx(grows, abs=30.0)


@pytest.mark.parametrize("level", [1e15, 1e16])
def test_a_swing_of_the_last_bit_is_judged(level: float) -> None:
    value = np.full(80, level)
    value[20:60] = np.nextafter(level, np.inf)
    t_s = np.arange(80.0)

    assert growth_of_lows(Blocks(t_s, value, t_s, 0.0, 79.0)) == 0.0
