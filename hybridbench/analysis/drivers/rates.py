"""Rates per event or per hour, where no line needs to be fitted.

A count that is a whole multiple of a counter needs no statistics.  If both totals are known, the
rate is total gain over total events: a line through the same points is biased by bursts, and its
slope may be negative although nothing ever fell.
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
from hybridbench.records.finding import Rate

_BLOCKS = 48
_FEWEST_IN_BLOCK = 3
_FEWEST_BLOCKS = 4
# If a value also fluctuates, so do the ends of each block; with few, long blocks the fluctuation
# is small compared with their gains.
LONG_BLOCKS = 2 * _FEWEST_BLOCKS

_PIECES = 12
_FEWEST_PIECES = 4

_FEWEST_EVENTS = 3.0
_AGREES = 0.95  # share of samples that must agree; the rest fell between an event and its effect
_EDGE = 3  # samples at either end of a stretch, one of which must be at its usual level
_CHANCE = 1e-3  # probability that some counter matches the idle readings by accident
_CHANCE_CONFIRMING = 0.05  # the same for a counter that the samples already suggest


@dataclass(frozen=True)
class MeanRate:
    """Gain per event; ``ends`` (95%) is None if there are too few stretches to estimate a spread.

    ``least`` is a lower limit of the rate: 0 if no stretch ever fell.
    """

    value: float
    ends: tuple[float, float] | None
    least: float


def mean_rate(rises: FloatArray, events: FloatArray, most_blocks: int = _BLOCKS) -> MeanRate | None:
    """Divide total gain by total events over adjacent stretches of a run.

    The interval is a ratio estimator's: it measures how far the gains of blocks of stretches
    deviate from the mean rate times their events.  Blocks are needed because an event counted in
    one stretch may have its effect in the next.

    Args:
        rises: [n], the gain of each stretch.
        events: [n], the events in it.
        most_blocks: the maximum number of blocks.

    Returns:
        The mean rate; None if there are no events.
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
    """Return how many blocks to form: few long stretches stay separate, many short ones merge."""
    few = stretches < LONG_BLOCKS
    return stretches if few else max(LONG_BLOCKS, stretches // _FEWEST_IN_BLOCK)


def rate_per_hour(t_s: FloatArray, value: FloatArray, unit: str) -> Rate | None:
    """Return the mean rate, with a 95% interval from the rates of equal pieces of the time.

    None if there are too few samples to split.
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
    """Return the whole number of units per event; None if anything else moves the value.

    ``first`` marks the start of each stretch with a level of its own.
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
        # Even a single event without effect would shift the level permanently.
        if usual not in stretch[:_EDGE] or usual not in stretch[-_EDGE:]:
            return None
        agreeing += int(counts.max())
    # If events are rare, the levels between them agree with any counter, so check the events too.
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
    """Return the counters for which every change between idle readings is the same whole multiple.

    Many counters match a few readings by accident, so matches that may be accidental are dropped.
    The limit is loosest if the samples already suggest the counter (``confirming``), and strictest
    if they do not and it is one of many that might have matched (``against_samples``).
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
    """Log probability that an unrelated counter fits.

    One interval sets the multiple; the others match it by chance.
    """
    moved = np.sort(events[events > 0])
    chances = np.log(np.maximum(times * moved, 1.0))
    return -float(chances[:-1].sum() + math.log(max(float(moved[-1]), 1.0)))
