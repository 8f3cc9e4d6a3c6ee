"""Simulated processes: healthy ones settle, leaks have their stated size, and some are held out."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulated import (
    CLEAN_KINDS,
    HELD_OUT_CLEAN_KINDS,
    HELD_OUT_LEAK_KINDS,
    LEAK_KINDS,
    LEAKS,
    clean_trace,
    leaking_trace,
)
from benchmarks.simulated_parts import PARTS, arrivals, poisson_times
from tests.unit.benchmarks.generated import check_rises, check_seeded, check_share, held_by

FILLS = ("key cache", "connections", "code cache")


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_a_finite_share_of_the_process(name: str) -> None:
    for seed in range(5):
        held = held_by(PARTS[name], seed)

        check_share(held)


@pytest.mark.parametrize("name", FILLS)
def test_a_fill_is_over_long_before_the_end(name: str) -> None:
    for seed in range(20):
        held = held_by(PARTS[name], seed)
        late = np.median(held[-100:]) - np.median(held[1000:1100])

        assert late < 0.08 * np.ptp(held)


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_only_ever_rises(leak: str) -> None:
    check_rises(held_by(LEAKS[leak], 1))


@pytest.mark.parametrize("kind", [LEAK_KINDS[0], HELD_OUT_LEAK_KINDS[-1]])
def test_a_leaking_trace_ends_higher_by_what_it_lost(kind: str) -> None:
    traces = [leaking_trace(kind, seed) for seed in range(12)]
    large = [t for t in traces if t.rate * t.t_s[-1] / 3600.0 > 2.0 * t.base]

    assert large
    for trace in large:
        lost = trace.rate * trace.t_s[-1] / 3600.0
        assert np.median(trace.value[-20:]) - trace.base == pytest.approx(lost, rel=0.35)
        assert trace.growing == pytest.approx(trace.rate, rel=0.6)
        assert trace.resolvable


def test_a_healthy_trace_stays_within_its_parts() -> None:
    for kind in (CLEAN_KINDS[5], HELD_OUT_CLEAN_KINDS[5]):
        trace = clean_trace(kind, 4)

        assert trace.rate == 0.0
        assert not trace.resolvable
        assert np.all(np.diff(trace.t_s) > 0)
        assert float(np.median(trace.value)) < 2.2 * trace.base


def test_no_kind_is_both_looked_at_and_held_out() -> None:
    assert not set(LEAK_KINDS) & set(HELD_OUT_LEAK_KINDS)
    assert not set(CLEAN_KINDS) & set(HELD_OUT_CLEAN_KINDS)
    assert len(LEAK_KINDS) + len(HELD_OUT_LEAK_KINDS) == len(LEAKS) * len(PARTS)


def test_the_same_seed_makes_the_same_trace() -> None:
    check_seeded(leaking_trace, LEAK_KINDS[3])


def test_events_come_with_the_requests() -> None:
    rng = np.random.default_rng(2)
    clock = arrivals(rng, 7200.0, 1500)
    at = poisson_times(rng, clock, 4000)

    expected = clock.done[np.array([300, 700, 1100])]
    found = np.searchsorted(at, [300, 700, 1100]) / 4000.0
    assert found == pytest.approx(expected, abs=0.04)
