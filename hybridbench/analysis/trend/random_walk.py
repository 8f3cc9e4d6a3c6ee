"""Growth whose noise accumulates: a leak that loses pieces at random times.

The total lost by such a leak drifts from its line like a random walk.  AR(1) noise can represent
that only as a bend or as steps, and mistakes a period with few losses for the end of a fill.  Here
the same blocks are fitted by a line under a random walk plus white noise; the share of the walk is
chosen by likelihood, and the BIC decides whether this is plausible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.criteria import FEWEST_AFTER_STOP, HALF, THREE_QUARTERS, surely_ends
from hybridbench.analysis.trend.gls import ModelFit, Problem, whiten
from hybridbench.analysis.trend.shapes import Trend

# A difference in BIC below this is not strong evidence against the worse of two explanations
# (Kass and Raftery 1995).
PLAUSIBLE_WITHIN = 6.0
# Chosen on seeds 7700000 to 7800023 (detection.md, "How fresh these figures are").  The second
# half's pace relative to the first's must be significantly above ``_KEEPS_SURELY`` and not
# significantly below ``_KEEPS_PACE``.  A fill that ends bends more; if noise could hide such a
# bend, no leak is called.
_KEEPS_SURELY, _SURELY_SE = 0.5, 1.64
_KEEPS_PACE, _TOLERANCE_SE = 0.82, 1.0
_FEWEST_BLOCKS = 16
# Share of a column's length not explained by the columns before it; anything less is rounding.
_OWN_SHARE = 1e-9
# Variance added by the walk per block, relative to the white noise.
_WALKS = np.concatenate([[0.0], 10.0 ** np.arange(-2.5, 3.1, 0.5)])


@dataclass(frozen=True)
class RandomWalkFit:
    """The line through the blocks; ``growth`` is over the whole window."""

    growth: float
    se: float
    df: int
    worse_by: float  # in BIC, than the best model under AR(1) noise
    goes_on: bool  # growth continues in the second half as in the first, and until the end
    work: int | None  # index of the work that the line follows; None for time
    fitted: FloatArray  # at the blocks
    fitted_se: FloatArray

    @property
    def plausible(self) -> bool:
        """Whether the blocks do not strongly contradict this fit."""
        return self.worse_by <= PLAUSIBLE_WITHIN

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the growth."""
        half = t_quantile(0.975, self.df) * self.se
        return self.growth - half, self.growth + half

    def surely_grows(self, floor: float, alpha: float) -> bool:
        """Whether growth is significantly above ``floor`` and continues."""
        lower = self.growth - t_quantile(1.0 - alpha, self.df) * self.se
        return self.goes_on and lower > floor


def fit_random_walk(problem: Problem, best: ModelFit, phi: float) -> RandomWalkFit | None:
    """Return the most likely plain line, in time or in work; None with too few blocks.

    No other column is fitted beside the line: an oscillation of the load could hide a bend.
    """
    size = problem.y.size
    if size < _FEWEST_BLOCKS:
        return None
    at = np.concatenate([[1.0], 1.0 + np.cumsum(problem.gaps)])
    # One eigenbasis serves all shares of the walk: it diagonalises each covariance.
    spread, basis = np.linalg.eigh(np.minimum.outer(at, at))
    columns = problem.shapes.columns
    reference = _returning_bic(problem, best, phi)
    found: list[RandomWalkFit] = []
    for candidate in problem.shapes.candidates:
        plain = candidate.beside == 0 and len(candidate.columns) == 1
        if not plain or candidate.trend not in (Trend.TIME, Trend.WORK):
            continue
        trend = columns[:, candidate.columns[0]]
        design = np.column_stack([np.ones(size), trend])
        turned = basis.T @ np.column_stack([design, problem.y])
        variances = (1.0 + walk * spread for walk in _WALKS.tolist())
        lines = ((_line(turned, variance), variance) for variance in variances)
        fitted = [(line, variance) for line, variance in lines if line is not None]
        if not fitted:
            continue
        line, variance = min(fitted, key=lambda one: one[0].bic)
        found.append(
            RandomWalkFit(
                growth=float(line.beta[1]),
                se=float(np.sqrt(line.cov[1, 1])),
                df=size - 3,
                worse_by=line.bic - reference,
                goes_on=_goes_on(design, problem.y, basis, variance),
                work=candidate.work,
                fitted=design @ line.beta,
                fitted_se=np.sqrt(np.einsum("ij,jk,ik->i", design, line.cov, design)),
            )
        )
    return min(found, key=lambda one: one.worse_by, default=None)


@dataclass(frozen=True)
class _Line:
    bic: float
    beta: FloatArray
    cov: FloatArray


def _line(turned: FloatArray, variance: FloatArray) -> _Line | None:
    """Regress the last column on the others by least squares, weighted by each row's ``variance``.

    None if a column is a combination of earlier ones, so that its coefficient is undetermined.
    """
    white = turned / np.sqrt(variance)[:, None]
    q, r = np.linalg.qr(white[:, :-1])
    lengths = np.linalg.norm(white[:, :-1], axis=0)
    if np.any(np.abs(np.diagonal(r)) <= _OWN_SHARE * lengths):
        return None
    beta = np.linalg.solve(r, q.T @ white[:, -1])
    left = white[:, -1] - white[:, :-1] @ beta
    n, k = white.shape[0], white.shape[1] - 1
    rss = max(float(left @ left), 1e-300)
    bic = float(n * np.log(rss / n) + np.log(variance).sum() + (k + 1) * np.log(n))
    inverse = np.linalg.inv(r)
    return _Line(bic, beta, rss / (n - k) * (inverse @ inverse.T))


def _goes_on(design: FloatArray, y: FloatArray, basis: FloatArray, variance: FloatArray) -> bool:
    """Whether the second half keeps the pace of the first, and growth does not end early.

    These are the checks of ``criteria``, with the uncertainty of a random walk.
    """
    p = design[:, 1]

    def bend(at: float) -> tuple[float, float, FloatArray] | None:
        """The pace before and after ``at``, with covariance; None if either has no progress."""
        legs = np.column_stack([np.minimum(p, at), np.maximum(p - at, 0.0)])
        both = np.column_stack([design[:, :1], legs, y])
        line = _line(basis.T @ both, variance)
        if line is None:
            return None
        return float(line.beta[1]), float(line.beta[2]), line.cov[1:3, 1:3]

    halves = bend(HALF)
    if halves is None:
        return False
    before, after, cov = halves
    if after - _KEEPS_SURELY * before < _SURELY_SE * _se(cov, -_KEEPS_SURELY):
        return False
    if after - _KEEPS_PACE * before + _TOLERANCE_SE * _se(cov, -_KEEPS_PACE) < 0:
        return False
    # Work that pauses at the end puts many blocks at one place: require some beyond that place.
    ends = p[(p >= THREE_QUARTERS) & (p < p[-FEWEST_AFTER_STOP])].tolist()
    bends = (bend(end) for end in ends)
    return not any(one is not None and surely_ends(*one) for one in bends)


def _se(cov: FloatArray, before: float) -> float:
    """Standard error of the pace after plus ``before`` times the pace before."""
    contrast = np.array([before, 1.0])
    return float(np.sqrt(max(float(contrast @ cov @ contrast), 0.0)))


def _returning_bic(problem: Problem, fit: ModelFit, phi: float) -> float:
    """The BIC of a model under AR(1) noise, including the determinant that ``gls`` omits."""
    white = whiten(fit.residuals[:, None], phi, problem.gaps)[:, 0]
    n = white.size
    fresh = 1.0 - phi * phi
    scales = float(np.log(fresh / (1.0 - phi ** (2.0 * problem.gaps))).sum())
    rss = max(float(white @ white), 1e-300)
    parameters = fit.model.parameters + 1
    return float(n * np.log(rss / n) - np.log(fresh) - scales + parameters * np.log(n))
