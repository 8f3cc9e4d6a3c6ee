"""Lasting changes in a series of nightly runs, found by rank statistics and a permutation test.

There is one value per night, so the values are few, and they are not normal.  A split is scored by
the distance between the mean ranks of its two sides.  The best split is accepted if random
permutations of the same values almost never contain one as good, which accounts for the search over
all positions.  The test assumes that nights without a change are exchangeable; a machine that
drifts for weeks violates that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray

ALPHA = 0.01
FEWEST_ON_A_SIDE = 3
FEWEST_BEFORE = 5  # earlier nights needed to judge a single new one

_ORDERS = 1999
_SEED = 20250101


@dataclass(frozen=True)
class Change:
    """A change between two neighbouring runs.

    Args:
        at: position of the first run after the change.
        before, after: medians of the stretches on either side.
        p_value: probability that permuted values have as good a split; None for a single new value,
            which is compared with the spread of the values before it.
    """

    at: int
    before: float
    after: float
    p_value: float | None


def change_points(value: Sequence[float], least: float = 0.0) -> list[Change]:
    """Return all changes in ``value``, in order, ignoring steps smaller than ``least``.

    The last value alone counts as a change if it lies outside the prediction interval of the values
    since the last change: no rank test can be significant on one bad night.
    """
    series = np.asarray(value, dtype=np.float64)
    borders = sorted(_split(series, 0, least))
    changes = []
    edges = [0, *(at for at, _ in borders), series.size]
    for index, (at, p_value) in enumerate(borders):
        before = float(np.median(series[edges[index] : at]))
        after = float(np.median(series[at : edges[index + 2]]))
        changes.append(Change(at, before, after, p_value))
    newest = _newest(series[edges[-2] :], least)
    if newest is not None:
        changes.append(Change(series.size - 1, newest, float(series[-1]), None))
    return changes


def _split(value: FloatArray, offset: int, least: float) -> list[tuple[int, float]]:
    found = _best_split(value)
    if found is None:
        return []
    at, p_value = found
    step = abs(float(np.median(value[at:]) - np.median(value[:at])))
    if p_value > ALPHA or step < least:
        return []
    left = _split(value[:at], offset, least)
    return [*left, (offset + at, p_value), *_split(value[at:], offset + at, least)]


def _best_split(value: FloatArray) -> tuple[int, float] | None:
    """Return the split whose sides differ most in rank, and its permutation p-value."""
    count = value.size
    if count < 2 * FEWEST_ON_A_SIDE or not np.ptp(value):
        return None
    ranks = _ranks(value)
    orders = np.random.default_rng(_SEED).permuted(np.tile(ranks, (_ORDERS, 1)), axis=1)
    scores = _scores(ranks[None, :])[0]
    at = int(np.argmax(scores))
    # Scores that differ only by rounding are tied.
    as_good = int(np.sum(_scores(orders).max(axis=1) >= scores[at] - 1e-9))
    return at + FEWEST_ON_A_SIDE, (1 + as_good) / (1 + _ORDERS)


def _scores(ranks: FloatArray) -> FloatArray:
    """Return [rows, splits]: the standardised distance between the mean ranks of the two sides."""
    count = ranks.shape[1]
    first = np.arange(FEWEST_ON_A_SIDE, count - FEWEST_ON_A_SIDE + 1)
    sums = np.cumsum(ranks, axis=1)[:, first - 1]
    expected = first * (count + 1) / 2.0
    spread = np.sqrt(first * (count - first) * (count + 1) / 12.0)
    scores: FloatArray = np.abs(sums - expected) / spread
    return scores


def _ranks(value: FloatArray) -> FloatArray:
    """Ranks from 1; equal values share the mean of theirs."""
    order = np.argsort(value, kind="stable")
    ranks = np.empty(value.size)
    ranks[order] = np.arange(1.0, value.size + 1.0)
    _, group, sizes = np.unique(value, return_inverse=True, return_counts=True)
    means: FloatArray = np.bincount(group, ranks) / sizes
    return means[group]


def _newest(value: FloatArray, least: float) -> float | None:
    """Return the median of the earlier values if the last is outside their prediction interval."""
    before = value[:-1]
    if before.size < FEWEST_BEFORE:
        return None
    middle = float(np.median(before))
    off = abs(float(value[-1]) - float(before.mean()))
    reach = t_quantile(1.0 - ALPHA / 2.0, before.size - 1)
    spread = float(np.std(before, ddof=1)) * np.sqrt(1.0 + 1.0 / before.size)
    return middle if off > reach * spread and off >= least else None
