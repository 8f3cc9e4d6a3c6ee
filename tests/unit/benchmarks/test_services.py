"""Simulated services: parts within bounds, leaks that rise, sampler faults."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import simulated_parts
from benchmarks.services import (
    CLEAN_KINDS,
    LEAK_KINDS,
    LEAKS,
    clean_trace,
    leaking_trace,
)
from benchmarks.services_parts import PARTS
from tests.unit.benchmarks.generated import check_rises, check_seeded, check_share, held_by

FILLS = ("hash table", "mapped file", "sessions")


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_a_finite_share_of_the_process(name: str) -> None:
    for seed in range(5):
        held = held_by(PARTS[name], seed)

        check_share(held)
        assert np.ptp(held) > 0


@pytest.mark.parametrize("name", FILLS)
def test_a_fill_is_over_long_before_the_end(name: str) -> None:
    late = []
    for seed in range(20):
        held = held_by(PARTS[name], seed)
        late.append((np.median(held[-100:]) - np.median(held[1000:1100])) / np.ptp(held))

    # Sessions in equilibrium still fluctuate; a fill that continued would rise in every run.
    assert abs(float(np.median(late))) < 0.08


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_only_ever_rises(leak: str) -> None:
    check_rises(held_by(LEAKS[leak], 1))


def test_a_leaking_service_ends_higher_by_what_it_lost() -> None:
    traces = [leaking_trace(kind, seed) for kind in LEAK_KINDS[::7] for seed in range(8)]
    large = [t for t in traces if t.rate * t.t_s[-1] / 3600.0 > 2.0 * t.base]

    assert large
    for trace in large:
        lost = trace.rate * trace.t_s[-1] / 3600.0
        assert np.median(trace.value[-20:]) - trace.base == pytest.approx(lost, rel=0.35)
        assert trace.resolvable


def test_a_healthy_service_stays_within_its_parts_and_is_sampled_in_order() -> None:
    for kind in CLEAN_KINDS[::5]:
        trace = clean_trace(kind, 4)

        assert trace.rate == trace.growing == 0.0
        assert np.all(np.diff(trace.t_s) > 0)
        assert float(np.median(trace.value)) < 2.2 * trace.base


def test_no_part_is_one_of_the_other_generator() -> None:
    assert not set(PARTS) & set(simulated_parts.PARTS)


def test_the_same_seed_makes_the_same_trace() -> None:
    check_seeded(leaking_trace, LEAK_KINDS[3])
