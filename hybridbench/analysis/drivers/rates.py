"""How much of a count comes with one event or one hour, where no line has to be fitted.

A count that is a whole multiple of a counter needs no statistics.  Where both totals are known, all
that was gained over all events is the rate: a line through the same points leans towards bursts,
and its slope may be negative where nothing ever fell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.facts.pools import IdleReading
from hybridbench.analysis.record import FloatArray
from hybridbench.records.verdict import Rate

_BLOCKS = 48
_FEWEST_IN_BLOCK = 3
_FEWEST_BLOCKS = 4
# Of a value that also wavers, each block's ends carry its wavering: few blocks, so that it is small
# beside what they gained.
LONG_BLOCKS = 2 * _FEWEST_BLOCKS

_PIECES = 12
_FEWEST_PIECES = 4

_FEWEST_EVENTS = 3.0
_AGREES = 0.95  # of the samples; the others were taken between the event and its effect
_EDGE = 3  # samples at either end of a stretch, one of which must show its usual level
_CHANCE = 1e-3  # that some counter fits the rests by accident
_CHANCE_CONFIRMING = 0.05  # the same for a counter that the samples already point to


@dataclass(frozen=True)
class MeanRate:
    """Gain for each event; ``ends`` (95%) are None where too few stretches tell its spread.

    ``least`` is what the rate cannot be below: 0 where no stretch ever fell.
    """

    value: float
    ends: tuple[float, float] | None
    least: float


def mean_rate(rises: FloatArray, events: FloatArray, most_blocks: int = _BLOCKS) -> MeanRate | None:
    """The quotient of two totals over neighbouring stretches of a run.

    The interval is that of a ratio estimator: what the rises of blocks of stretches differ by from
    the mean times their events.  Blocks, because an event may be counted in one stretch and have
    its effect in the next.

    Args:
        rises: [n], what each stretch gained.
        events: [n], what happened in it.
        most_blocks: the stretches are taken together to so many at most.

    Returns:
        None without events.
    """
    total = float(events.sum())
    if total <= 0:
        return None
    mean = float(rises.sum()) / total
    least = 0.0 if np.all(rises >= 0) else -np.inf
    blocks = min(most_blocks, _blocks_of(rises.size))
    if blocks < _FEWEST_BLOCKS:
        return MeanRate(mean, None, least)
    starts = (np.arange(blocks) * rises.size) // blocks
    off = np.add.reduceat(rises - mean * events, starts)
    error = float(np.sqrt(blocks / (blocks - 1) * float(off @ off))) / total
    half = t_quantile(0.975, blocks - 1) * error
    return MeanRate(mean, (max(least, mean - half), mean + half), least)


def _blocks_of(stretches: int) -> int:
    """A few long stretches stand for themselves; many short ones are taken together."""
    few = stretches < LONG_BLOCKS
    return stretches if few else max(LONG_BLOCKS, stretches // _FEWEST_IN_BLOCK)


def rate_per_hour(t_s: FloatArray, value: FloatArray, unit: str) -> Rate | None:
    """The mean rate, and how well the rates of equal pieces of the time agree on it (95%).

    None for samples too few to be cut into pieces.
    """
    pieces = min(_PIECES, t_s.size // 2)
    if pieces < _FEWEST_PIECES or t_s[-1] <= t_s[0]:
        return None
    edges = np.linspace(float(t_s[0]), float(t_s[-1]), pieces + 1)
    rates = np.diff(np.interp(edges, t_s, value)) / np.diff(edges) * 3600.0
    mean = float(rates.mean())
    error = float(np.std(rates, ddof=1)) / np.sqrt(pieces)
    half = float(t_quantile(0.975, pieces - 1) * error)
    lowest = 0.0 if np.all(np.diff(value) >= 0) else -np.inf
    return Rate(mean, max(mean - half, lowest), mean + half, unit, "h")


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
