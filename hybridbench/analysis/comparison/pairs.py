"""The mean log ratio of paired rounds, corrected for order, outliers and autocorrelation.

On a shared machine the log ratios are normal except for a few rounds with a disturbed block.  Each
of these widens the interval of an ordinary mean, so distant rounds get less weight (Huber's
M-estimate, 1964, with his standard error of 1973), and the interval is still Student's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.distributions import autocorrelation, t_tail
from hybridbench.analysis.record import FloatArray

# With fewer rounds, the order effect cannot be separated from noise.
_LEAST_FOR_POSITION = 6
# With fewer rounds, the spread without outliers is too uncertain.
_LEAST_FOR_HUBER = 10
_HUBER = 1.5  # in units of the spread; larger residuals get less weight
_ITERATIONS = 50
_CLOSE = 1e-10
_MAD = 0.6745  # MAD of a normal distribution, in standard deviations
_MOST_FOR_WALSH = 400


@dataclass(frozen=True)
class Pairs:
    """Log ratios of the rounds that both versions finished, oldest first.

    ``order`` is the second version's turn minus the first's: +1 and -1 alternately under ABBA.
    """

    log_ratio: FloatArray
    order: FloatArray

    def __len__(self) -> int:
        return int(self.log_ratio.size)


@dataclass(frozen=True)
class PairedMean:
    """The mean log ratio, with its standard error on ``df`` degrees of freedom."""

    mean: float
    se: float
    df: int
    sd: float  # of one pair
    hodges_lehmann: float
    position: float | None = None  # effect on the log value of running one turn later
    position_p: float | None = None


def paired_mean(pairs: Pairs, *, creeping: bool = False) -> PairedMean | None:
    """Return the estimate, or None for fewer than two pairs.

    The order effect is fitted together with the mean if both orders were run.  For ``creeping``
    levels (memory) the standard error is widened for correlation between rounds.
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
    """Return the median of all pairwise means, including self-pairs (Hodges & Lehmann 1963).

    Beyond 400 values only every k-th is used, because the number of pairs grows quadratically.
    """
    taken = values[:: -(-values.size // _MOST_FOR_WALSH)]
    first, second = np.triu_indices(taken.size)
    return float(np.median(0.5 * (taken[first] + taken[second])))


def widening(left: FloatArray) -> float:
    """Return the factor by which AR(1)-correlated residuals widen their mean's standard error."""
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
    """Fit coefficients and standard errors: Huber's with enough rounds, else by least squares."""
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
    # Huber's small-sample correction.
    correction = 1.0 + design.shape[1] / d.size * (1.0 - inside) / inside
    sd = correction * spread / inside * math.sqrt(float(clipped @ clipped) / df)
    return _made(beta, sd * np.sqrt(np.diag(inverse)), df, sd, left)


def _made(beta: FloatArray, errors: FloatArray, df: int, sd: float, left: FloatArray) -> _Fit:
    return _Fit(tuple(beta.tolist()), tuple(errors.tolist()), df, sd, left)


def _mad(left: FloatArray, df: int) -> float:
    """Estimate the spread by the median absolute residual, with ``df`` degrees of freedom."""
    return float(np.median(np.abs(left))) / _MAD * math.sqrt(left.size / df)
