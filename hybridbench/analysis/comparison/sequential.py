"""Critical values for repeated looks at growing data, without raising the error probability.

Each planned look spends a part of alpha (Lan & DeMets 1983, "Discrete sequential boundaries for
clinical trials"; the power family of Kim & DeMets 1987).  The intervals built with these values
are repeated confidence intervals (Jennison & Turnbull 1989): over all looks together they miss the
true value with probability at most alpha, whatever the stopping rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray

# The alpha spent by a share t of the data is alpha * t ** POWER: 1 spends evenly, 3 keeps nearly
# all for the end.  comparison-statistics.md has the runs behind this choice.
POWER = 2.0

_NORMAL = NormalDist()
_GRID = 301
_BISECTIONS = 32
_FURTHEST = 8.0


def error_shares(rounds: int, planned: Sequence[int], alpha: float) -> tuple[float, ...]:
    """Return the two-sided error probability of each look up to the one after ``rounds``.

    The probabilities are for use with Student's t.  An unplanned look (time ran out) spends what
    its share of the planned rounds allows.
    """
    looks = [look for look in planned if look < rounds] + [rounds]
    last = max([rounds, *planned])
    z = boundaries(tuple(look / last for look in looks), alpha)
    return tuple(2.0 * (1.0 - _NORMAL.cdf(value)) for value in z)


def critical_t(rounds: int, planned: Sequence[int], alpha: float, df: float) -> float:
    """Return the half-width of the interval after ``rounds``, in standard errors."""
    share = error_shares(rounds, planned, alpha)[-1]
    return t_quantile(1.0 - 0.5 * max(share, 1e-15), df)


@lru_cache(maxsize=512)
def boundaries(shares: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Return two-sided critical values of a standard normal statistic at ``shares`` of the data.

    At each look, the probability that the statistic has exceeded its critical value at this look or
    an earlier one equals the spending function.

    Args:
        shares: rising, in (0, 1]; the last may be below 1.
    """
    if not shares or any(not 0.0 < share <= 1.0 for share in shares):
        raise ValueError(f"looks are shares of the data in (0, 1], not {shares}")
    out: list[float] = []
    spent, before = 0.0, 0.0
    grid: FloatArray = np.zeros(1)
    density: FloatArray = np.ones(1)
    for share in shares:
        due = alpha * share**POWER
        sd = math.sqrt(share - before)
        value = _critical(grid, density, sd, math.sqrt(share), due - spent)
        out.append(value)
        grid, density = _carried(grid, density, sd, value * math.sqrt(share))
        spent, before = due, share
    return tuple(out)


def _critical(grid: FloatArray, density: FloatArray, sd: float, scale: float, due: float) -> float:
    """Return the critical value that the paths still inside exceed with probability ``due``."""
    low, high = 0.0, _FURTHEST
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if _outside(grid, density, sd, middle * scale) > due:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _outside(grid: FloatArray, density: FloatArray, sd: float, bound: float) -> float:
    """Return the mass that a further step of ``sd`` moves beyond ``bound`` on either side."""
    # Grid and density are symmetric, so compute one side and double it.
    beyond = 2.0 * _tail((bound - grid) / sd)
    if grid.size == 1:
        return float(beyond[0])
    return float(np.trapezoid(density * beyond, grid))


def _carried(
    grid: FloatArray, density: FloatArray, sd: float, bound: float
) -> tuple[FloatArray, FloatArray]:
    """Return the density of (statistic times root of its share) for the paths within ``bound``."""
    after = np.linspace(-bound, bound, _GRID)
    kernel = np.exp(-0.5 * ((after[:, None] - grid[None, :]) / sd) ** 2)
    kernel /= sd * math.sqrt(2.0 * math.pi)
    if grid.size == 1:
        return after, kernel[:, 0]
    weights = np.full(grid.size, float(grid[1] - grid[0]))
    weights[[0, -1]] *= 0.5
    return after, kernel @ (weights * density)


def _tail(values: FloatArray) -> FloatArray:
    erfc, root = math.erfc, math.sqrt(0.5)
    return np.array([0.5 * erfc(root * value) for value in values.tolist()])
