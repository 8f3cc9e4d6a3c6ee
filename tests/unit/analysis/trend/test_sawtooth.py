"""Falls and troughs of sawteeth, and shapes that only resemble them."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.trend.sawtooth import find_sawtooth, usable_troughs
from tests.unit.analysis.traces import tooth

T = np.arange(1200.0)


@pytest.mark.parametrize("cycles", [4.3, 9.5, 25.3])
def test_every_fall_of_a_sawtooth_is_found_once(cycles: float) -> None:
    rng = np.random.default_rng(1)
    y = 1000 + 50 * tooth(T / T[-1] * cycles) + rng.normal(size=T.size)

    teeth = find_sawtooth(T, y)

    assert teeth is not None
    assert teeth.fall.size == int(cycles)
    assert teeth.trough == pytest.approx(np.full(teeth.fall.size, 1000.0), abs=6.0)
    assert teeth.gives_back


@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_teeth(seed: int) -> None:
    rng = np.random.default_rng(seed)

    assert find_sawtooth(T, rng.normal(size=T.size)) is None
    assert find_sawtooth(T, np.cumsum(rng.normal(size=T.size))) is None


def test_a_burst_of_load_is_no_tooth() -> None:
    y = 1000 + 80.0 * ((T > 300) & (T < 500)) + np.random.default_rng(2).normal(size=T.size)

    assert find_sawtooth(T, y) is None


def test_single_spikes_are_no_teeth() -> None:
    y = 1000 + 500.0 * (T % 97 == 3) + np.random.default_rng(3).normal(size=T.size)

    assert find_sawtooth(T, y) is None


def test_troughs_of_the_warm_up_are_not_used() -> None:
    y = 50 * tooth(T / 60) + np.random.default_rng(4).normal(size=T.size)
    teeth = find_sawtooth(T, y)
    assert teeth is not None

    t, _ = usable_troughs(teeth, 0.0, 1200.0)

    assert t.min() >= 144.0
    assert t.size < teeth.trough_s.size


def test_the_foot_of_a_tooth_is_known_better_than_one_sample() -> None:
    rng = np.random.default_rng(6)
    phase = (T / 200.0) % 1.0
    teeth = find_sawtooth(T, 1000.0 + 100.0 * phase + 2.0 * rng.normal(size=T.size))

    assert teeth is not None
    assert teeth.trough.std() < 1.5
    assert abs(float(np.median(teeth.trough)) - 1000.0) < 1.0


def test_values_that_jump_between_two_pages_have_no_teeth() -> None:
    rng = np.random.default_rng(6)
    quantum = 2.0

    assert (
        find_sawtooth(T, quantum * np.round(500.0 + 0.01 * T + 0.12 * rng.normal(size=T.size)))
        is None
    )


def uneven(sizes: list[float], climb: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Teeth of these lengths in seconds from the same floor, and where each ends."""
    starts = np.concatenate([[0.0], np.cumsum(sizes)])
    at = np.searchsorted(starts, T, side="right") - 1
    return 1000.0 + climb * (T - starts[at]), starts[1:]


def test_a_collection_that_comes_early_ends_a_tooth_too() -> None:
    rng = np.random.default_rng(7)
    y, ends = uneven([150.0, 140.0, 40.0, 160.0, 150.0, 30.0, 145.0, 155.0])

    teeth = find_sawtooth(T, y + 0.5 * rng.normal(size=T.size))

    assert teeth is not None
    assert teeth.fall.size == ends.size
    # A line fitted across two teeth would start tens too high.
    assert teeth.trough == pytest.approx(np.full(ends.size, 1000.0), abs=2.0)


def test_small_teeth_on_large_ones_are_no_teeth_of_their_own() -> None:
    rng = np.random.default_rng(8)
    large = 100.0 * tooth(T / 200.0)
    small = 8.0 * tooth(T / 23.0)

    teeth = find_sawtooth(T, 1000.0 + large + small + 0.2 * rng.normal(size=T.size))

    assert teeth is not None
    assert teeth.fall.size == 5


def test_growth_that_passes_what_fell_is_not_what_was_stored_up() -> None:
    noise = np.random.default_rng(10).normal(size=T.size)
    passed = find_sawtooth(T, 1000.0 + 0.2 * T - 60.0 * (T > 400) + noise)
    regained = find_sawtooth(T, 1000.0 + 0.2 * T - 150.0 * (T > 800) + noise)

    assert passed is not None
    assert passed.outgrown
    assert regained is not None
    assert regained.gives_back
    assert not regained.outgrown


def test_a_fall_far_deeper_than_all_growth_was_not_stored_up_by_it() -> None:
    noise = np.random.default_rng(10).normal(size=T.size)
    unloaded = find_sawtooth(T, 1000.0 + 0.2 * T - 350.0 * (T > 400) + noise)

    assert unloaded is not None
    assert not unloaded.gives_back


def test_a_rise_beyond_every_fall_counts_over_more_than_the_last_tooth() -> None:
    noise = np.random.default_rng(10).normal(size=T.size)
    fill = 400.0 * np.minimum(T / 200.0, 1.0)
    risen = find_sawtooth(T, 1000.0 + 0.4 * T - 90.0 * (T > 400) - 120.0 * (T > 900) + noise)
    filled = find_sawtooth(T, 1000.0 + fill + 0.1 * T - 90.0 * (T > 900) + noise)

    assert risen is not None
    assert risen.outgrown
    assert filled is not None
    assert not filled.outgrown


def test_one_tooth_without_any_scatter_does_not_stand_for_all() -> None:
    phase = (T / 60.0) % 1.0
    y = 1000.0 + 100.0 * phase + np.random.default_rng(11).normal(size=T.size)
    sixth = (T >= 300.0) & (T < 360.0)
    y[sixth] = 1000.0 + 200.0 * np.maximum(phase[sixth] - 0.5, 0.0)

    teeth = find_sawtooth(T, y)

    assert teeth is not None
    assert teeth.fall.size == 19
    assert teeth.trough == pytest.approx(np.full(19, 1000.0), abs=4.0)
