"""Growth in lumps."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.blocks import Blocks
from hybridbench.analysis.trend.criteria import grows_in_lumps

T = np.arange(80.0) + 0.5


def blocks(value: FloatArray) -> Blocks:
    return Blocks(T, value, np.arange(80.0), 0.0, 80.0)


def lumps(places: list[float]) -> FloatArray:
    return 10.0 * np.searchsorted(np.array(places), T).astype(np.float64)


def test_many_lumps_all_along_are_growth() -> None:
    places = np.sort(np.random.default_rng(1).uniform(0, 80, 25)).tolist()

    assert grows_in_lumps(blocks(lumps(places)), 0.001)


def test_five_steps_are_not() -> None:
    assert not grows_in_lumps(blocks(lumps([4, 11, 30, 55, 71])), 0.001)


def test_lumps_of_the_first_half_alone_are_not() -> None:
    places = np.linspace(1, 35, 20).tolist()

    assert not grows_in_lumps(blocks(lumps(places)), 0.001)


def test_a_walk_without_drift_is_not() -> None:
    walks = np.random.default_rng(2).normal(size=(60, 80)).cumsum(axis=1)

    assert sum(grows_in_lumps(blocks(walk), 0.001) for walk in walks) <= 1
