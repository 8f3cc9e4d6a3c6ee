"""Quantiles, exact tests and autocorrelation, with numpy alone.

The tests compare these with scipy; importing scipy would cost every command half a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hybridbench.analysis.record import FloatArray


@lru_cache(maxsize=4096)
def t_quantile(probability: float, df: float) -> float:
    """The ``probability`` quantile of Student's t with ``df`` degrees of freedom.

    Raises:
        ValueError: for a probability outside (0, 1) or no degrees of freedom.
    """
    if not 0.0 < probability < 1.0 or df <= 0:
        raise ValueError(f"t_quantile needs 0 < p < 1 and df > 0, not p={probability}, df={df}")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, df)
    low, high = 0.0, 1.0
    while t_tail(high, df) > 1.0 - probability:
        high *= 2.0
    middle = 0.5 * (low + high)
    while low < middle < high:
        if t_tail(middle, df) > 1.0 - probability:
            low = middle
        else:
            high = middle
        middle = 0.5 * (low + high)
    return middle


def t_tail(value: float, df: float) -> float:
    """P(T > ``value``) for Student's t with ``df`` degrees of freedom."""
    half = 0.5 * _incomplete_beta(df / (df + value * value), 0.5 * df, 0.5)
    return half if value >= 0 else 1.0 - half


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """The Wilson score interval (95%) of a share; (0, 1) without trials."""
    if trials <= 0:
        return 0.0, 1.0
    z = 1.96
    share = min(1.0, max(0.0, successes / trials))
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def autocorrelation(residuals: FloatArray, fitted: int, most: float) -> float:
    """AR(1) autocorrelation of residuals, clipped to [0, ``most``]; 0 if all residuals are zero.

    It is corrected for the bias from fitting ``fitted`` coefficients: Kendall's correction for a
    mean is (1 + 3 phi) / n, and each further coefficient adds about (1 + phi) / n.
    """
    energy = float(residuals @ residuals)
    if energy <= 0:
        return 0.0
    phi = float(residuals[1:] @ residuals[:-1]) / energy
    corrected = phi + (fitted + (fitted + 2) * max(phi, 0.0)) / residuals.size
    return float(np.clip(corrected, 0.0, most))


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function by its continued fraction (Lentz's method)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    # The fraction converges fast only on this side; the other follows by symmetry.
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    return math.exp(log_front) / a * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 400):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values for multiple testing (Holm's method), keeping their order."""
    count = len(p_values)
    adjusted = [1.0] * count
    highest = 0.0
    for rank, i in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (count - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def fisher(*tables: tuple[int, int, int, int]) -> float:
    """Fisher's exact test, one-sided.

    Return the probability that at least this many of the wrong items have a trait by chance, given
    how many of all items have it.

    Args:
        tables: each (wrong with the trait, wrong, right with the trait, right).  Several tables
            are strata: chance assigns the trait within each, and the counts are summed.
    """
    sums, seen = np.ones(1), 0
    for wrong_with, wrong, right_with, right in tables:
        having, total = wrong_with + right_with, wrong + right
        ways = _log_choose(total, wrong)
        terms = np.zeros(min(having, wrong) + 1)
        for k in range(max(0, wrong - (total - having)), len(terms)):
            terms[k] = math.exp(
                _log_choose(having, k) + _log_choose(total - having, wrong - k) - ways
            )
        sums = np.convolve(sums, terms)
        seen += wrong_with
    return min(1.0, math.fsum(sums[seen:]))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
