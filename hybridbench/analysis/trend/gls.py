"""Least squares under AR(1) noise for hundreds of candidate shapes at once.

All candidates use one set of columns, so one Gram matrix of the whitened columns serves them all:
fitting a candidate, and finding its best step, is arithmetic on a few rows of the matrix
(detection.md, "Shapes").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import autocorrelation
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.shapes import Beside, Candidate, Group, Shapes, Warmup

MAX_PHI = 0.985
FIRST_PHI = 0.3  # before the noise is known

_STEP_PARAMETERS = 3
# Relative to a column of length 1: prevents division by zero for two identical columns.
_RIDGE = 1e-11
# A step column with less than this left after projection onto the model's other columns is
# indistinguishable from them.
_STEP_LEFT = 1e-4
# Rounding leaves about 1e-12 of a perfect fit; models whose remainder is below this share cannot be
# ranked.
_LEAST_LEFT = 1e-11
# A column this short is empty: progress lies between 0 and 1.
_EMPTY = 1e-100
_PHI_ROUNDS = 3
_PHI_CLOSE = 0.02


@dataclass(frozen=True)
class Problem:
    """The blocks to explain: their values, the gaps between them, and the shapes."""

    y: FloatArray
    gaps: FloatArray  # [blocks - 1], 1 where no block is missing
    shapes: Shapes


@dataclass(frozen=True)
class Model:
    """A candidate with its steps, as ranked by the BIC."""

    candidate: Candidate
    steps: tuple[int, ...]  # columns of ``Shapes.steps``
    bic: float

    @property
    def parameters(self) -> int:
        """Its parameter count in the BIC."""
        return self.candidate.parameters + _STEP_PARAMETERS * len(self.steps)

    @property
    def label(self) -> str:
        """The model in words."""
        if not self.steps:
            return self.candidate.label
        return f"{self.candidate.label} + {len(self.steps)} step{'s' * (len(self.steps) > 1)}"


@dataclass(frozen=True)
class ModelFit:
    """A model's coefficients: level first, then the candidate's columns, then its steps."""

    model: Model
    beta: FloatArray
    cov: FloatArray
    df: int
    fitted: FloatArray  # at the blocks
    fitted_se: FloatArray
    residuals: FloatArray

    def trend(self) -> tuple[float, float] | None:
        """Return the trend column's growth over the whole window, with its standard error."""
        column = self.model.candidate.trend_column
        if column is None:
            return None
        at = 1 + self.model.candidate.columns.index(column)
        return float(self.beta[at]), float(np.sqrt(self.cov[at, at]))


def rank_models(
    problem: Problem, phi: float, max_steps: int, most: int | None = None
) -> list[Model]:
    """Return the best ``most`` candidates, or all, with their best number of greedy steps.

    The best BIC comes first.
    """
    groups = _score_groups(problem, phi, max_steps)
    starts = np.cumsum([0, *(scored.bic.size for scored in groups)])
    order = np.argsort(np.concatenate([scored.bic for scored in groups]), kind="stable")[:most]
    owners = np.searchsorted(starts, order, side="right") - 1
    places = order - starts[owners]
    return [
        groups[group].model(i) for group, i in zip(owners.tolist(), places.tolist(), strict=True)
    ]


def best_model(problem: Problem, phi: float, max_steps: int) -> Model:
    """Return the first of ``rank_models``, without building the others."""
    scored = min(_score_groups(problem, phi, max_steps), key=lambda one: float(one.bic.min()))
    return scored.model(int(np.argmin(scored.bic)))


def choose_phi(problem: Problem, max_steps: int) -> float:
    """Estimate the autocorrelation between neighbouring blocks from the best model's residuals.

    A first pass without steps prevents correlated noise from being explained as steps; correlation
    and model are then refined alternately, at most three times.
    """
    best = best_model(problem, FIRST_PHI, 0)
    phi = _phi_of(fit_model(problem, best, FIRST_PHI))
    for _ in range(_PHI_ROUNDS):
        best = best_model(problem, phi, max_steps)
        previous, phi = phi, _phi_of(fit_model(problem, best, phi))
        if abs(phi - previous) < _PHI_CLOSE:
            break
    return phi


def _phi_of(fit: ModelFit) -> float:
    return autocorrelation(fit.residuals, fit.beta.size, MAX_PHI)


def cautious_phi(phi: float, blocks: int) -> float:
    """Return the upper end of ``phi``'s 80% interval, in case the estimate is too low by chance."""
    return min(phi + 1.28 * float(np.sqrt((1.0 - phi * phi) / blocks)), 0.99)


def fit_model(problem: Problem, model: Model, phi: float) -> ModelFit:
    """Fit one model's coefficients and covariance under AR(1) noise of ``phi``."""
    design = np.column_stack(
        [
            np.ones(problem.y.size),
            problem.shapes.columns[:, list(model.candidate.columns)],
            problem.shapes.steps[:, list(model.steps)],
        ]
    )
    white = whiten(np.column_stack([design, problem.y]), phi, problem.gaps)
    beta, cov, df = _solve(white[:, :-1], white[:, -1])
    fitted = design @ beta
    fitted_se = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", design, cov, design), 0.0))
    return ModelFit(model, beta, cov, df, fitted, fitted_se, problem.y - fitted)


def whiten(matrix: FloatArray, phi: float, gaps: FloatArray) -> FloatArray:
    """Whiten ``matrix`` [..., blocks, columns]: each row less its prediction from the last."""
    out = np.empty_like(matrix)
    out[..., 0, :] = matrix[..., 0, :] * np.sqrt(1.0 - phi * phi)
    reach = phi**gaps
    # After a gap, less is predicted and the innovation is larger.
    scale = np.sqrt((1.0 - phi * phi) / (1.0 - reach * reach))
    out[..., 1:, :] = scale[:, None] * (matrix[..., 1:, :] - reach[:, None] * matrix[..., :-1, :])
    return out


@dataclass(frozen=True)
class _Gram:
    """Inner products of whitened unit columns net of the level: candidates' columns, steps, y."""

    products: FloatArray
    columns: int
    blocks: int

    @property
    def y(self) -> int:
        return int(self.products.shape[0]) - 1


def _gram(problem: Problem, phi: float) -> _Gram:
    parts = [problem.shapes.columns, problem.shapes.steps, problem.y[:, None] - problem.y.mean()]
    white = whiten(np.column_stack(parts), phi, problem.gaps)
    level = whiten(np.ones((problem.y.size, 1)), phi, problem.gaps)[:, 0]
    level /= np.linalg.norm(level)
    white -= level[:, None] * (level @ white)
    norms = np.linalg.norm(white, axis=0)
    white /= np.maximum(norms, 1e-300)
    return _Gram(white.T @ white, problem.shapes.columns.shape[1], problem.y.size)


@dataclass(frozen=True)
class _Scored:
    """The candidates of one size, each with its best number of steps."""

    candidates: Sequence[Candidate]
    bic: FloatArray
    steps: NDArray[np.int64]  # [candidates, most steps]: in the order in which they were chosen
    count: NDArray[np.int64]  # how many of those steps are kept

    def model(self, i: int) -> Model:
        """Return candidate ``i``, as ranked."""
        kept = tuple(self.steps[i, : self.count[i]].tolist())
        return Model(self.candidates[i], kept, float(self.bic[i]))


def _score_groups(problem: Problem, phi: float, max_steps: int) -> list[_Scored]:
    gram = _gram(problem, phi)
    return [_score_group(gram, group, max_steps) for group in problem.shapes.groups]


def _score_group(gram: _Gram, group: Group, max_steps: int) -> _Scored:
    """Score the candidates of one size together; each keeps its best number of steps."""
    cost = group.cost
    log_n = float(np.log(gram.blocks))
    # With more steps than this, the fit has no residual left to judge it by.
    room = int((gram.blocks - 3 - cost.max()) // _STEP_PARAMETERS)
    most = min(max_steps, room)
    best_bic = np.full(cost.size, np.inf)
    best_count = np.zeros(cost.size, dtype=np.int64)
    search = _StepSearch(gram, group.places, most)
    chosen = np.zeros((cost.size, max(most, 0)), dtype=np.int64)
    for count in range(most + 1):
        left = np.maximum(search.left, _LEAST_LEFT)
        bic = gram.blocks * np.log(left) + (cost + _STEP_PARAMETERS * count) * log_n
        better = bic < best_bic
        best_bic = np.where(better, bic, best_bic)
        best_count = np.where(better, count, best_count)
        if count < most:
            chosen[:, count] = search.add_best()
    return _Scored(group.candidates, best_bic, chosen, best_count)


class _StepSearch:
    """The residuals of y for several models, and the best step to add to each, repeatedly.

    Steps and y are stored net of each model's columns: adding a step only removes its direction
    from them (Gram-Schmidt), so nothing is solved twice.
    """

    def __init__(self, gram: _Gram, places: NDArray[np.int64], steps: int) -> None:
        """``places`` [models, columns]; at most ``steps`` will be added, 0 is faster."""
        self._products = gram.products[gram.columns :, gram.columns :] if steps > 0 else None
        models, size = places.shape
        first = gram.columns if steps > 0 else gram.y
        # The directions of the columns, and of the steps before the last.
        self._directions = np.empty((models, size + max(steps - 1, 0), gram.y + 1 - first))
        self._used = size
        onto = self._directions[:, :size]
        if size:
            p = gram.products
            inner = p[places[:, :, None], places[:, None, :]] + _RIDGE * np.eye(size)
            root = np.linalg.inv(np.linalg.cholesky(inner))
            onto[:] = root @ p[places, first:]
        self.left: FloatArray = 1.0 - np.einsum("mk,mk->m", onto[:, :, -1], onto[:, :, -1])
        if self._products is not None:
            own = np.diagonal(self._products)[:-1]
            to_y = self._products[:-1, -1]
            self._norm = own - np.einsum("mks,mks->ms", onto[:, :, :-1], onto[:, :, :-1])
            self._cross = to_y - np.einsum("mks,mk->ms", onto[:, :, :-1], onto[:, :, -1])

    def add_best(self) -> NDArray[np.int64]:
        """Add to each model the step that explains most."""
        assert self._products is not None
        # In place: these arrays are larger than a cache.
        gain = self._cross**2
        gain /= np.maximum(self._norm, _STEP_LEFT)
        gain[self._norm <= _STEP_LEFT] = 0.0
        best: NDArray[np.int64] = np.argmax(gain, axis=1)
        rows = np.arange(best.size)
        self.left = self.left - gain[rows, best]
        if self._used < self._directions.shape[1]:
            length = np.sqrt(np.maximum(self._norm[rows, best], _STEP_LEFT))
            onto = self._directions[:, : self._used]
            new = self._directions[:, self._used]
            taken = np.einsum("mk,mks->ms", onto[rows, :, best], onto)
            np.subtract(self._products[best], taken, out=new)
            new /= length[:, None]
            self._used += 1
            self._norm -= new[:, :-1] ** 2
            self._cross -= new[:, :-1] * new[:, -1:]
        return best


def _solve(design: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, int]:
    lengths = np.linalg.norm(design, axis=0)
    # An empty column gets no coefficient, whatever its unit.
    scale = np.where(lengths > _EMPTY, lengths, 1.0)
    u, s, vt = np.linalg.svd(design / scale, full_matrices=False)
    keep = s > 1e-9 * s[0]
    inverse = vt[keep].T / s[keep]
    beta = inverse @ (u[:, keep].T @ y) / scale
    residual = y - design @ beta
    df = max(y.size - int(keep.sum()), 1)
    variance = float(residual @ residual) / df
    cov = variance * (inverse @ inverse.T) / np.outer(scale, scale)
    return beta, cov, df


def is_plain(model: Model) -> bool:
    """Whether the model has no warm-up shape."""
    return model.candidate.warmup is Warmup.NONE


def without_beside(fit: ModelFit, problem: Problem) -> FloatArray:
    """Return the blocks without the fitted load, oscillation and dips, which are not growth."""
    count = fit.model.candidate.beside
    columns = problem.shapes.columns[:, list(fit.model.candidate.columns[:count])]
    less: FloatArray = problem.y - columns @ fit.beta[1 : 1 + count]
    return less


def without_steps(fit: ModelFit, problem: Problem, dips: Beside | None) -> FloatArray:
    """Return the blocks without fitted steps and dips, which do not belong to the pace."""
    less: FloatArray = problem.y
    passing = () if dips is None else dips.columns
    for place in range(fit.model.candidate.beside):
        column = problem.shapes.columns[:, fit.model.candidate.columns[place]]
        if any(np.array_equal(column, dip) for dip in passing):
            less = less - fit.beta[1 + place] * column
    if fit.model.steps:
        heights = fit.beta[-len(fit.model.steps) :]
        less = less - problem.shapes.steps[:, list(fit.model.steps)] @ heights
    return less


def straight_line(x: FloatArray, y: FloatArray) -> tuple[float, float, FloatArray]:
    """Slope, its standard error under independent noise, and the line at ``x``."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    line = y.mean() + slope * centred
    variance = float(((y - line) ** 2).sum()) / max(x.size - 2, 1)
    return slope, float(np.sqrt(variance / spread)), line
