"""Least squares under AR(1) noise for hundreds of candidate shapes at once.

All candidates draw on one set of columns, so one Gram matrix of the whitened columns serves them
all: fitting a candidate, and finding its best step, is arithmetic on a few of the matrix's rows
(detection.md 4.2, step 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.shapes import Candidate, Shapes, Trend, Warmup

MAX_PHI = 0.985
FIRST_PHI = 0.3  # before anything is known of the noise

_STEP_PARAMETERS = 3
# Relative to a column of length 1: keeps two columns that coincide from dividing by zero.
_RIDGE = 1e-11
# A step column of which less than this is left beside the model's other columns cannot be told
# from them.
_STEP_LEFT = 1e-4
# Rounding leaves about 1e-12 of a perfect fit; below this share models cannot be ranked.
_LEAST_LEFT = 1e-11
_PHI_ROUNDS = 3
_PHI_CLOSE = 0.02


@dataclass(frozen=True)
class Problem:
    """The blocks to explain: values, how many blocks each lies after the one before, and the
    shapes.
    """

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
        """Growth over the whole window that the trend column claims, and its standard error."""
        column = self.model.candidate.trend_column
        if column is None:
            return None
        at = 1 + self.model.candidate.columns.index(column)
        return float(self.beta[at]), float(np.sqrt(self.cov[at, at]))


def rank_models(problem: Problem, phi: float, max_steps: int) -> list[Model]:
    """Every candidate with its best number of greedy steps, best BIC first."""
    gram = _gram(problem, phi)
    by_size: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in problem.shapes.candidates:
        by_size[len(candidate.columns)].append(candidate)
    models: list[Model] = []
    for group in by_size.values():
        models.extend(_fit_group(gram, group, max_steps))
    return sorted(models, key=lambda model: model.bic)


def choose_phi(problem: Problem, max_steps: int) -> float:
    """The autocorrelation between neighbouring blocks, from the best model's residuals.

    A first pass without steps keeps correlated noise from being explained as steps; correlation
    and model are then improved in turn, at most three times.
    """
    best = rank_models(problem, FIRST_PHI, 0)[0]
    phi = estimate_phi(fit_model(problem, best, FIRST_PHI))
    for _ in range(_PHI_ROUNDS):
        best = rank_models(problem, phi, max_steps)[0]
        previous, phi = phi, estimate_phi(fit_model(problem, best, phi))
        if abs(phi - previous) < _PHI_CLOSE:
            break
    return phi


def estimate_phi(fit: ModelFit) -> float:
    """Lag-1 autocorrelation of the residuals, corrected for what the fit took away.

    Kendall's correction for a fitted mean is (1 + 3 phi) / n; each further coefficient takes about
    (1 + phi) / n.
    """
    e = fit.residuals
    energy = float(e @ e)
    if energy <= 0:
        return 0.0
    phi = float(e[1:] @ e[:-1]) / energy
    terms = fit.beta.size
    return float(np.clip(phi + (terms + (terms + 2) * max(phi, 0.0)) / e.size, 0.0, MAX_PHI))


def cautious_phi(phi: float, blocks: int) -> float:
    """The upper end of ``phi``'s 80 % interval, for standard errors that do not trust a lucky
    estimate.
    """
    return min(phi + 1.28 * float(np.sqrt((1.0 - phi * phi) / blocks)), 0.99)


def fit_model(problem: Problem, model: Model, phi: float) -> ModelFit:
    """Coefficients of one model with their covariance under AR(1) noise of ``phi``."""
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
    """``matrix`` [blocks, columns] in units of fresh noise: each row less what the row before
    predicts.
    """
    out = np.empty_like(matrix)
    out[0] = matrix[0] * np.sqrt(1.0 - phi * phi)
    reach = phi**gaps
    # After a gap less is predicted and more of the noise is fresh.
    scale = np.sqrt((1.0 - phi * phi) / (1.0 - reach * reach))
    out[1:] = scale[:, None] * (matrix[1:] - reach[:, None] * matrix[:-1])
    return out


@dataclass(frozen=True)
class _Gram:
    """Inner products of whitened, unit-length columns beside the level: candidates' columns,
    steps, y.
    """

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


def _fit_group(gram: _Gram, group: Sequence[Candidate], max_steps: int) -> list[Model]:
    """The candidates of one size, solved together; each keeps its best number of steps."""
    chosen = np.array([c.columns for c in group], dtype=np.int64).reshape(len(group), -1)
    cost = np.array([c.parameters for c in group], dtype=np.float64)
    log_n = float(np.log(gram.blocks))
    best_bic = np.full(len(group), np.inf)
    best_steps = np.zeros(len(group), dtype=np.int64)
    for count in range(max_steps + 1):
        left, gain = _residual_and_gains(gram, chosen, gains=count < max_steps)
        # Another step per block than this many and the fit has no residual left to judge by.
        if cost.max() + _STEP_PARAMETERS * count >= gram.blocks - 2:
            break
        bic = gram.blocks * np.log(left) + (cost + _STEP_PARAMETERS * count) * log_n
        better = bic < best_bic
        best_bic = np.where(better, bic, best_bic)
        best_steps = np.where(better, count, best_steps)
        if gain is not None:
            step = gram.columns + np.argmax(gain, axis=1)
            chosen = np.column_stack([chosen, step])
    size = len(group[0].columns)
    return [
        Model(c, tuple(int(s) - gram.columns for s in chosen[i, size : size + best_steps[i]]), b)
        for i, (c, b) in enumerate(zip(group, best_bic.tolist(), strict=True))
    ]


def _residual_and_gains(
    gram: _Gram, chosen: NDArray[np.int64], *, gains: bool
) -> tuple[FloatArray, FloatArray | None]:
    """Share of y that each model leaves [models], and what each further step would take of it;
    None without ``gains``, which cost most of the time.
    """
    p, y = gram.products, gram.y
    steps = slice(gram.columns, y)
    size = chosen.shape[1]
    if size == 0:
        left = np.ones(chosen.shape[0])
        if not gains:
            return left, None
        return left, np.broadcast_to(p[steps, y] ** 2, (chosen.shape[0], y - gram.columns))
    inner = p[chosen[:, :, None], chosen[:, None, :]] + _RIDGE * np.eye(size)
    if not gains:
        onto = p[chosen, y]
        solved_y = np.linalg.solve(inner, onto[:, :, None])[:, :, 0]
        return np.maximum(1.0 - np.einsum("mk,mk->m", onto, solved_y), _LEAST_LEFT), None
    targets = p[chosen][:, :, gram.columns :]  # [models, size, steps + y]
    solved = np.linalg.solve(inner, targets)
    left = 1.0 - np.einsum("mk,mk->m", targets[:, :, -1], solved[:, :, -1])
    cross = p[steps, y] - np.einsum("mks,mk->ms", targets[:, :, :-1], solved[:, :, -1])
    norm = 1.0 - np.einsum("mks,mks->ms", targets[:, :, :-1], solved[:, :, :-1])
    gain = np.where(norm > _STEP_LEFT, cross**2 / np.maximum(norm, _STEP_LEFT), 0.0)
    return np.maximum(left, _LEAST_LEFT), gain


def _solve(design: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, int]:
    scale = np.maximum(np.linalg.norm(design, axis=0), 1e-300)
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


def has_trend(model: Model) -> bool:
    """Whether the model says that growth goes on."""
    return model.candidate.trend is not Trend.NONE
