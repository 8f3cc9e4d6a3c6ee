"""All that was gained over all events, with an interval: the rate where both totals are known.

A line through the same points leans towards bursts, and its slope may be negative where nothing
ever fell; the quotient of two totals is neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray
from hybridbench.records.verdict import Rate

_BLOCKS = 48
_FEWEST_IN_BLOCK = 3
_FEWEST_BLOCKS = 4

_PIECES = 12
_FEWEST_PIECES = 4


@dataclass(frozen=True)
class MeanRate:
    """Gain for each event; ``ends`` (95 %) are None where too few stretches tell its spread.

    ``least`` is what the rate cannot be below: 0 where no stretch ever fell.
    """

    value: float
    ends: tuple[float, float] | None
    least: float


def mean_rate(rises: FloatArray, events: FloatArray) -> MeanRate | None:
    """The quotient of two totals over neighbouring stretches of a run.

    The interval is that of a ratio estimator: what the rises of blocks of stretches differ by from
    the mean times their events.  Blocks, because an event may be counted in one stretch and have
    its effect in the next.

    Args:
        rises: [n], what each stretch gained.
        events: [n], what happened in it.

    Returns:
        None without events.
    """
    total = float(events.sum())
    if total <= 0:
        return None
    mean = float(rises.sum()) / total
    least = 0.0 if np.all(rises >= 0) else -np.inf
    blocks = min(_BLOCKS, _blocks_of(rises.size))
    if blocks < _FEWEST_BLOCKS:
        return MeanRate(mean, None, least)
    starts = (np.arange(blocks) * rises.size) // blocks
    off = np.add.reduceat(rises - mean * events, starts)
    error = float(np.sqrt(blocks / (blocks - 1) * float(off @ off))) / total
    half = t_quantile(0.975, blocks - 1) * error
    return MeanRate(mean, (max(least, mean - half), mean + half), least)


def _blocks_of(stretches: int) -> int:
    """A few long stretches stand for themselves; many short ones are taken together."""
    long = 2 * _FEWEST_BLOCKS
    return stretches if stretches < long else max(long, stretches // _FEWEST_IN_BLOCK)


def rate_per_hour(t_s: FloatArray, value: FloatArray, unit: str) -> Rate | None:
    """The mean rate, and how well the rates of equal pieces of the time agree on it (95 %).

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
