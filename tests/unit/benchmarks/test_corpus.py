"""The corpus for comparing detectors: its labels are true, and a seed reproduces it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.corpus import CLEAN_KINDS, LEAK_KINDS, clean_trace, leaking_trace


@pytest.mark.parametrize("kind", CLEAN_KINDS)
def test_a_healthy_trace_loses_nothing(kind: str) -> None:
    trace = clean_trace(kind, 3)

    assert trace.rate == 0.0
    assert not trace.resolvable
    assert np.all(np.isfinite(trace.value))
    assert np.all(np.diff(trace.t_s) > 0)
    assert trace.t_s.size > 200


@pytest.mark.parametrize("kind", LEAK_KINDS)
def test_a_leak_adds_its_rate_to_what_it_comes_with(kind: str) -> None:
    trace = leaking_trace(kind, 3)
    late = trace.value[trace.t_s > 0.98 * trace.t_s[-1]]

    assert trace.rate > 0
    assert np.all(np.isfinite(trace.value))
    if trace.rate * trace.t_s[-1] / 3600 > trace.base:
        assert np.median(late) > 1.3 * trace.base


def test_the_same_seed_makes_the_same_trace() -> None:
    once, again = leaking_trace("linear", 5), leaking_trace("linear", 5)

    assert np.array_equal(once.value, again.value)
    assert not np.array_equal(once.value[:200], leaking_trace("linear", 6).value[:200])


def test_big_leaks_can_be_resolved_and_small_ones_cannot() -> None:
    traces = [leaking_trace("linear", seed) for seed in range(40)]
    big = [t for t in traces if t.rate > 0.05 * t.base]
    small = [t for t in traces if t.rate < 0.0003 * t.base]

    assert big
    assert small
    assert all(trace.resolvable for trace in big)
    assert not any(trace.resolvable for trace in small)
