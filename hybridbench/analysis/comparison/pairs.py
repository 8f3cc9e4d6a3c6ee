"""Paired rounds: the mean log ratio with what order, outliers and memory of the last round do to
it.

The log ratios of a shared machine are normal but for a few rounds in which one block was disturbed.
An ordinary mean pays for each of these with its width, so rounds far from the others count less
(Huber's M-estimate, 1964, with his standard error of 1973), and the interval is still Student's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.distributions import autocorrelation, t_tail
from hybridbench.analysis.record import FloatArray

# With fewer rounds the effect of the order cannot be told from the noise.
_LEAST_FOR_POSITION = 6
# With fewer rounds the spread without the outliers is not known well enough.
_LEAST_FOR_HUBER = 10
_HUBER = 1.5  # in units of the spread: farther residuals count less
_ITERATIONS = 50
_CLOSE = 1e-10
_MAD = 0.6745  # of a standard deviation
_MOST_FOR_WALSH = 400


@dataclass(frozen=True)
class Pairs:
    """Log ratios of the rounds that both versions finished, oldest first.

    ``order`` is how many turns later the second version had its block than the first: +1 and -1 in
    turn when ABBA is kept.
    """

    log_ratio: FloatArray
    order: FloatArray

    def __len__(self) -> int:
        return int(self.log_ratio.size)


@dataclass(frozen=True)
class PairedMean:
    """``mean`` of the log ratio with its standard error on ``df`` degrees of freedom."""

    mean: float
    se: float
    df: int
    sd: float  # of one pair
    hodges_lehmann: float
    position: float | None = None  # what being one turn later adds to the log of the value
    position_p: float | None = None


def paired_mean(pairs: Pairs, *, creeping: bool = False) -> PairedMean | None:
    """The estimate; None for fewer than two pairs.

    The order's effect is fitted beside the mean whenever both orders were run.  ``creeping`` levels
    (memory) have their standard error widened by the correlation from round to round.
    """
    d = pairs.log_ratio
    if d.size < 2:
        return None
    columns = [np.ones(d.size)]
    ordered = d.size >= _LEAST_FOR_POSITION and bool(np.ptp(pairs.order) > 0)
    if ordered:
        columns.append(pairs.order)
    fit = _fit(np.column_stack(columns), d)
    se = fit.errors[0] * (widening(fit.left) if creeping else 1.0)
    position = position_p = None
    if ordered:
        position = fit.beta[1]
        if fit.errors[1] > 0:
            position_p = 2.0 * t_tail(abs(position) / fit.errors[1], fit.df)
    shift = hodges_lehmann(d - pairs.order * (position or 0.0))
    return PairedMean(fit.beta[0], se, fit.df, fit.sd, shift, position, position_p)


def hodges_lehmann(values: FloatArray) -> float:
    """The median of the means of all pairs of values, each with itself too (Hodges & Lehmann 1963).

    Beyond 400 values every k-th is taken: the pairs grow with the square.
    """
    taken = values[:: -(-values.size // _MOST_FOR_WALSH)]
    first, second = np.triu_indices(taken.size)
    return float(np.median(0.5 * (taken[first] + taken[second])))


def widening(left: FloatArray) -> float:
    """What an AR(1) correlation of the residuals does to the standard error of their mean."""
    phi = autocorrelation(left, 1, 0.95) if left.size >= 4 else 0.0
    return math.sqrt((1.0 + phi) / (1.0 - phi))


@dataclass(frozen=True)
class _Fit:
    beta: tuple[float, ...]
    errors: tuple[float, ...]
    df: int
    sd: float
    left: FloatArray


def _fit(design: FloatArray, d: FloatArray) -> _Fit:
    """Coefficients with standard errors: Huber's where there are rounds enough, else the mean's."""
    df = d.size - design.shape[1]
    inverse = np.linalg.inv(design.T @ design)
    beta = inverse @ (design.T @ d)
    spread = _mad(d - design @ beta, df)
    if d.size < _LEAST_FOR_HUBER or spread <= 0.0:
        left = d - design @ beta
        variance = float(left @ left) / df
        return _made(beta, np.sqrt(variance * np.diag(inverse)), df, math.sqrt(variance), left)
    for _ in range(_ITERATIONS):
        left = d - design @ beta
        spread = _mad(left, df) or spread
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(np.abs(left), 1e-300))
        weighted = design * weights[:, None]
        step = np.linalg.solve(weighted.T @ design, weighted.T @ left)
        beta = beta + step
        if float(np.max(np.abs(step))) < _CLOSE:
            break
    left = d - design @ beta
    scaled = left / spread
    clipped = np.clip(scaled, -_HUBER, _HUBER)
    inside = float(np.mean(np.abs(scaled) <= _HUBER))
    # Huber's correction for a fit of few values.
    correction = 1.0 + design.shape[1] / d.size * (1.0 - inside) / inside
    sd = correction * spread / inside * math.sqrt(float(clipped @ clipped) / df)
    return _made(beta, sd * np.sqrt(np.diag(inverse)), df, sd, left)


def _made(beta: FloatArray, errors: FloatArray, df: int, sd: float, left: FloatArray) -> _Fit:
    return _Fit(tuple(beta.tolist()), tuple(errors.tolist()), df, sd, left)


def _mad(left: FloatArray, df: int) -> float:
    """The spread by the median of the residuals' sizes, for ``df`` of them being free."""
    return float(np.median(np.abs(left))) / _MAD * math.sqrt(left.size / df)
