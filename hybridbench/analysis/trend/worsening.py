"""Judge whether a quantity gets worse: a trend or one step against no change, with AR(1) noise.

The quantity is a logarithm, so a change is a share; legitimate influences are columns of the same
fit.  Settling shapes are not tried: a quantity that settled at a worse level has become worse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hybridbench.analysis.distributions import autocorrelation, t_quantile
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.gls import whiten

LEAST_BLOCKS = 16

_ALPHA = 0.001
_CONFIDENCE = 0.95
_EDGE = 0.15  # share of the blocks that must lie on either side of a step
_ROUNDS = 3
_FIRST_PHI = 0.3
_MAX_PHI = 0.95
# Share of the least change that the lower end of the interval must exceed.
_SURE = 0.25
_THIRDS_SHOW = 0.5  # share of the least change that the medians of the outer thirds must show


@dataclass(frozen=True)
class Worsening:
    """Growth of a logarithm over the window, by the shape that explains it best."""

    worse: bool  # the change is significant, large enough to count, and still there at the end
    shape: str  # "trend", "step" or "none"
    change: float
    lower: float  # two-sided 95%
    upper: float
    sure: float  # one-sided 99.9%; for a step, corrected for the search of its position
    step_at: int | None  # first block after the step
    phi: float


@dataclass(frozen=True)
class _Fit:
    """One shape: its change with standard error, and its residuals."""

    shape: str
    change: float
    se: float
    df: int
    bic: float
    residuals: FloatArray
    thirds: float  # median of the last third less that of the first, net of the loads
    step_at: int | None = None


@dataclass(frozen=True)
class _Problem:
    z: FloatArray
    x: FloatArray
    gaps: FloatArray
    loads: FloatArray
    phi: float = _FIRST_PHI


def worsening(z: FloatArray, index: FloatArray, loads: FloatArray, least: float) -> Worsening:
    """Judge ``z`` [blocks] at block numbers ``index``; only a change of at least ``least`` counts.

    The part that ``loads`` [blocks, causes] explain is removed.  A slow trend looks much like one
    step of half its height, so either shape may show the change, if it explains more than no change
    does.

    Raises:
        ValueError: with fewer than ``LEAST_BLOCKS`` blocks.
    """
    if z.size < LEAST_BLOCKS:
        raise ValueError(f"{z.size} blocks are too few; {LEAST_BLOCKS} are needed")
    x = (index - index[0]) / max(float(index[-1] - index[0]), 1.0)
    problem = _Problem(z, x, np.diff(index), loads)
    for _ in range(_ROUNDS):
        best = min(_fits(problem), key=lambda fit: fit.bic)
        phi = autocorrelation(best.residuals, loads.shape[1] + 2, _MAX_PHI)
        problem = replace(problem, phi=phi)
    flat, *shapes = _fits(problem)
    shapes = sorted((fit for fit in shapes if fit.bic < flat.bic), key=lambda fit: fit.bic)
    worse = [fit for fit in shapes if _is_worse(fit, least)]
    chosen = (worse or shapes or [flat])[0]
    half = t_quantile(0.5 + _CONFIDENCE / 2, chosen.df) * chosen.se
    return Worsening(
        worse=bool(worse),
        shape=chosen.shape,
        change=chosen.change,
        lower=chosen.change - half,
        upper=chosen.change + half,
        sure=_sure(chosen),
        step_at=chosen.step_at,
        phi=problem.phi,
    )


def _is_worse(fit: _Fit, least: float) -> bool:
    return fit.change >= least and _sure(fit) > _SURE * least and fit.thirds >= _THIRDS_SHOW * least


def _sure(fit: _Fit) -> float:
    places = fit.residuals.size * (1.0 - 2 * _EDGE) if fit.shape == "step" else 1.0
    return fit.change - t_quantile(1.0 - _ALPHA / places, fit.df) * fit.se


def _fits(problem: _Problem) -> tuple[_Fit, _Fit, _Fit]:
    """Return the fits of no change (with the trend's interval), a trend, and the best step."""
    trend = _fit(problem, "trend", problem.x)
    at = _best_step(problem)
    step = _fit(problem, "step", (np.arange(problem.z.size) >= at).astype(np.float64))
    # The position of the step is also a parameter.
    step = replace(step, step_at=at, bic=step.bic + float(np.log(problem.z.size)))
    flat = replace(trend, shape="none", bic=_fit(problem, "none", None).bic)
    return flat, trend, step


def _best_step(problem: _Problem) -> int:
    """Return the position of the step that explains most beside the level and the loads."""
    size = problem.z.size
    edge = max(2, round(_EDGE * size))
    places = np.arange(edge, size - edge + 1)
    steps = (np.arange(size)[:, None] >= places).astype(np.float64)
    others = np.column_stack([np.ones(size), problem.loads])
    white = whiten(np.column_stack([others, steps, problem.z]), problem.phi, problem.gaps)
    basis = np.linalg.qr(white[:, : others.shape[1]])[0]
    left = white[:, others.shape[1] :]
    left = left - basis @ (basis.T @ left)
    lengths = np.maximum((left[:, :-1] ** 2).sum(axis=0), 1e-9)
    gains = (left[:, :-1].T @ left[:, -1]) ** 2 / lengths
    return int(places[int(np.argmax(gains))])


def _fit(problem: _Problem, shape: str, column: FloatArray | None) -> _Fit:
    z, loads = problem.z, problem.loads
    parts = [np.ones((z.size, 1)), loads]
    if column is not None:
        parts.append(column[:, None])
    design = np.column_stack(parts)
    white = whiten(np.column_stack([design, z]), problem.phi, problem.gaps)
    u, s, vt = np.linalg.svd(white[:, :-1], full_matrices=False)
    keep = s > 1e-9 * s[0]
    inverse = vt[keep].T / s[keep]
    beta = inverse @ (u[:, keep].T @ white[:, -1])
    residual = white[:, -1] - white[:, :-1] @ beta
    df = max(z.size - int(keep.sum()), 1)
    energy = max(float(residual @ residual), 1e-12 * z.size)
    natural = loads @ beta[1 : 1 + loads.shape[1]]
    third = z.size // 3
    caused = z - natural
    return _Fit(
        shape=shape,
        change=float(beta[-1]) if column is not None else 0.0,
        se=float(np.sqrt(energy / df * float(inverse[-1] @ inverse[-1]))),
        df=df,
        bic=z.size * float(np.log(energy / z.size)) + design.shape[1] * float(np.log(z.size)),
        residuals=z - design @ beta,
        thirds=float(np.median(caused[-third:]) - np.median(caused[:third])),
    )
