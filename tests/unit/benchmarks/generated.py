"""Checks that hold for every part and every leak of a simulated corpus."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.corpus import LabelledTrace
from benchmarks.simulated_parts import Part, arrivals
from hybridbench.analysis.record import FloatArray


def held_by(part: Part, seed: int) -> FloatArray:
    """Return the memory of ``part`` over two hours of traffic."""
    rng = np.random.default_rng(seed)
    return part(rng, arrivals(rng, 7200.0, 1500))


def check_share(held: FloatArray) -> None:
    """Check that the memory is finite and less than the process's."""
    assert held.shape == (1500,)
    assert np.all(np.isfinite(held))
    assert np.abs(held).max() < 1.0


def check_rises(lost: FloatArray) -> None:
    """Check that the loss never falls and continues to the end."""
    assert np.all(np.diff(lost) >= 0)
    assert lost[-1] > lost[1000] > lost[0]


def check_seeded(make: Callable[[str, int], LabelledTrace], kind: str) -> None:
    """Check that equal seeds give equal traces and other seeds other traces."""
    once, again = make(kind, 5), make(kind, 5)

    assert np.array_equal(once.value, again.value)
    assert not np.array_equal(once.value[:50], make(kind, 6).value[:50])
