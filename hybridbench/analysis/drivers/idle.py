"""What drives a count that should be 0 at idle points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hybridbench.analysis.drivers.search import Driver, Hints, find_driver
from hybridbench.analysis.drivers.steps import LosingSteps
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import IdleReading
from hybridbench.analysis.record import Series
from hybridbench.records.manifest import OBSERVED


def idle_driver(
    facts: Facts,
    series: str,
    idle: Sequence[IdleReading],
    expected: Sequence[str] = (),
    losing: LosingSteps | None = None,
) -> Driver | None:
    """Find what drives a count that should be 0 when idle, from samples, idle points and steps."""
    sampled = facts.record.series.get(series, Series(series, np.empty(0), np.empty(0)))
    hints = idle_hints(facts, idle, expected)
    if losing is not None:
        hints = replace(hints, natural=losing.always, among=losing.mostly)
    driver = find_driver(sampled.t_s, sampled.value, facts.counters, hints)
    if losing is not None and driver is not None and driver.counter in losing.always:
        # A counter that did not move in the losing steps is not a rival, however well it fits.
        driver = replace(driver, rivals=tuple(r for r in driver.rivals if r in losing.always))
    return driver


def idle_hints(facts: Facts, idle: Sequence[IdleReading], expected: Sequence[str] = ()) -> Hints:
    """Return the hints for a count that starts at 0 in a new worker.

    A watched server may have served requests before the run, and it keeps slots for itself.
    """
    from_zero = facts.record.manifest.target.kind != OBSERVED
    return Hints(expected, load=facts.load, idle=idle, from_zero=from_zero)
