"""Whole multiples: a count that is k times a counter, at every sample or at every rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.facts.pools import IdleReading
from hybridbench.analysis.record import FloatArray

_FEWEST_EVENTS = 3.0
_AGREES = 0.95  # of the samples; the others were taken between the event and its effect
_EDGE = 3  # samples at either end of a stretch, one of which must show its usual level
_CHANCE = 1e-3  # that some counter fits the rests by accident
_CHANCE_CONFIRMING = 0.05  # the same for a counter that the samples already point to


def exact_multiple(
    value: FloatArray, counter: FloatArray, first: NDArray[np.bool_]
) -> float | None:
    """The whole number of units for each event, if the value moves by it and by nothing else.

    ``first`` marks where a stretch with a level of its own begins.
    """
    inside = ~first[1:]
    events = np.diff(counter)[inside]
    rises = np.diff(value)[inside]
    total = float(events.sum())
    if total < _FEWEST_EVENTS or np.any(events < 0) or np.any(events != np.round(events)):
        return None
    times = round(float(rises.sum()) / total)
    if times < 1:
        return None
    off = value - times * counter
    agreeing = 0
    for stretch in np.split(off, np.flatnonzero(first)[1:]):
        levels, counts = np.unique(stretch, return_counts=True)
        usual = levels[np.argmax(counts)]
        # An event that did nothing shifts the level for good, be it the only one.
        if usual not in stretch[:_EDGE] or usual not in stretch[-_EDGE:]:
            return None
        agreeing += int(counts.max())
    # Where events are rare, a level between them agrees with anything: they must agree themselves.
    moved = events > 0
    hit = float(np.mean(rises[moved] == times * events[moved]))
    return float(times) if agreeing >= _AGREES * off.size and hit >= _AGREES else None


def exact_at_idle(
    rests: Sequence[IdleReading],
    names: Iterable[str],
    *,
    confirming: bool = False,
    against_samples: bool = False,
) -> dict[str, float]:
    """Counters of which every change between rests is the same whole multiple.

    A few rests are matched by many counters; those that might be accidents are left out: least
    readily where the samples already point to the counter, most readily where they do not and it
    was only one of many that might have matched.
    """
    found: dict[str, float] = {}
    every = list(names)
    limit = math.log(_CHANCE_CONFIRMING if confirming else _CHANCE)
    if against_samples:
        limit -= math.log(max(len(every), 1))
    for name in every:
        points = [(rest.value, rest.counts[name]) for rest in rests if name in rest.counts]
        if len(points) < 2:
            continue
        rises, events = np.diff(np.array(points), axis=0).T
        total = float(events.sum())
        if total < _FEWEST_EVENTS or np.any(events < 0):
            continue
        times = round(float(rises.sum()) / total)
        if times < 1 or np.any(rises != times * events):
            continue
        if _log_chance(events, times) < limit:
            found[name] = float(times)
    return found


def _log_chance(events: FloatArray, times: int) -> float:
    """Of an unrelated counter fitting: one interval gives the multiple, each other a match."""
    moved = np.sort(events[events > 0])
    chances = np.log(np.maximum(times * moved, 1.0))
    return -float(chances[:-1].sum() + math.log(max(float(moved[-1]), 1.0)))
