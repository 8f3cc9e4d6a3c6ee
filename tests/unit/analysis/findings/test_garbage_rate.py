"""Garbage per event, between collections."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.findings.instances import (
    make_probes,
    production_rate,
    with_counting_error,
)
from hybridbench.analysis.record import Series
from hybridbench.records.finding import Rate

T = np.arange(0.0, 200.0, 4.0)


def test_collections_part_the_stretches_and_do_not_bias_the_rate() -> None:
    count = np.floor(T / 50.0)
    held = 2.0 * (T - 50.0 * count)

    probes = make_probes(T, held, Series("gc", T, count))
    rate = production_rate(probes, T, "nodes", "s")

    assert len(probes.stretches()) == 4
    assert rate is not None
    assert rate.value == pytest.approx(2.0)


def test_a_fall_that_no_counter_saw_parts_them_too() -> None:
    held = np.where(T < 100, T, T - 90)

    rate = production_rate(make_probes(T, held, None), T, "nodes", "s")

    assert rate is not None
    assert rate.value == pytest.approx(1.0)


def test_probes_with_a_collection_between_any_two_say_nothing() -> None:
    count = np.arange(T.size, dtype=np.float64)

    assert production_rate(make_probes(T, T, Series("gc", T, count)), T, "nodes", "s") is None


def test_the_interval_covers_a_share_of_events() -> None:
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        events = np.cumsum(rng.poisson(36.0, T.size)).astype(np.float64)
        made = np.cumsum(rng.binomial(np.diff(events, prepend=0).astype(int), 0.9)).astype(
            np.float64
        )
        rate = production_rate(make_probes(T, made, None), events, "nodes", "evicted node")
        assert rate is not None
        wide = with_counting_error(rate, float(events[-1] - events[0]))
        covered += wide.lower <= 0.9 <= wide.upper
    assert covered >= 53


def test_a_rate_above_one_is_no_share() -> None:
    rate = Rate(3.0, 2.9, 3.1, "slots", "close")

    assert with_counting_error(rate, 10) == rate
