"""Fit one series to many cumulative counters, and find the single counter with the best line.

Every line is fitted on levels with AR(1) errors, from white noise to a random walk, so that one
likelihood serves both a pool's missing slots, which move only with their cause, and a process's
memory, which drifts.  The sums of products are computed once for all counters and AR(1)
coefficients ("memories"); adding a counter costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray

# 1 - phi: 1 is white noise about the line, 0 a random walk.
_FORGETS = (1.0, 0.6, 0.3, 0.15, 0.07, 0.03, 0.01, 0.003, 0.0)
_NOISE_FLOOR = 1e-5  # share of the range; smaller residuals are rounding
_BLOCKS = 64
_FEWEST_IN_BLOCK = 3
_DRIFT_BLOCKS, _FEWEST_DRIFT_BLOCKS = 16, 8
_EVIDENCE = 3.0  # in log-likelihood, a difference of 6 in BIC
_LIKELY_PHI = 2.0  # log-likelihood: memories this close to the best one widen the interval


@dataclass(frozen=True)
class Levels:
    """A series and its possible explanations, at the same times.

    Args:
        value: [n].
        candidates: [n, m], cumulative counters; constant ones must have been removed.
        nuisance: [n, q], other influences on the level (requests in flight); q may be 0.
        first: [n], True at the start of a stretch with a level of its own.
    """

    value: FloatArray
    candidates: FloatArray
    nuisance: FloatArray
    first: NDArray[np.bool_]

    @property
    def rows(self) -> int:
        """Number of pairs of neighbouring samples within a stretch."""
        return int((~self.first[1:]).sum())


@dataclass(frozen=True)
class Fit:
    """The best line of one candidate; ``residual`` holds its one-step errors, [rows]."""

    index: int
    slope: float
    log_likelihood: float
    residual: FloatArray
    sigma: float


@dataclass(frozen=True)
class Screening:
    """Slope and log-likelihood of every candidate, [m], at its best memory."""

    slope: FloatArray
    log_likelihood: FloatArray
    by_memory: FloatArray  # [memories, m]


def screen(levels: Levels) -> Screening:
    """Fit every candidate alone, each with its own AR(1) coefficient."""
    columns, q = _scaled(levels)
    steps, before = _pairs(columns.data, levels.first)
    moments = _moments(steps, before, levels.first)
    slopes, likelihoods = [], []
    for forgets in _FORGETS:
        gram = moments.at(forgets)
        slope, squares = _partial(gram, q)
        likelihoods.append(_likelihood(squares, levels.rows, forgets, moments.stretches))
        slopes.append(slope)
    by_memory = np.array(likelihoods)
    best = np.argmax(by_memory, axis=0)
    pick = np.arange(best.size)
    slope = np.array(slopes)[best, pick] * columns.value_scale / columns.candidate_scale
    return Screening(slope, by_memory[best, pick], by_memory)


def fit_line(levels: Levels, screening: Screening, index: int) -> Fit:
    """Return the line of candidate ``index`` with its residuals."""
    forgets = _FORGETS[int(np.argmax(screening.by_memory[:, index]))]
    x, y = _alone(levels, index, forgets)
    # The clock stays a candidate even if the load explains all of it.
    energy = float(x @ x)
    slope = float(x @ y) / energy if energy > 0 else 0.0
    residual = y - slope * x
    floor = _NOISE_FLOOR * max(float(np.ptp(levels.value)), 1e-300)
    sigma = max(float(np.sqrt(np.mean(residual**2))), floor)
    return Fit(index, slope, float(screening.log_likelihood[index]), residual, sigma)


def slope_interval(levels: Levels, screening: Screening, index: int) -> tuple[float, float]:
    """Return the 95% interval of a slope.

    It is the union of the intervals at all memories that fit about as well as the best, and of the
    interval derived from the value's drift about its line.

    Standard errors allow for heteroscedastic and autocorrelated errors (Newey and West), but not
    for events that add unequal amounts to a value that also fluctuates: these amounts accumulate
    like a random walk, while the fluctuation suggests a short memory.  The drift covers this case.
    """
    likely = screening.by_memory[:, index]
    ends: list[tuple[float, float]] = []
    for which in np.flatnonzero(likely >= likely.max() - _LIKELY_PHI):
        x, y = _alone(levels, index, _FORGETS[int(which)])
        energy = float(x @ x)
        if energy <= 0:
            continue
        slope = float(x @ y) / energy
        error = _standard_error(x, y - slope * x) / energy
        half = t_quantile(0.975, max(levels.rows - 2, 1)) * error
        ends.append((slope - half, slope + half))
    if not ends:
        return -np.inf, np.inf
    slope = float(screening.slope[index])
    half = _drift(levels, index, slope)
    return min([slope - half, *(low for low, _ in ends)]), max(
        [slope + half, *(high for _, high in ends)]
    )


def _drift(levels: Levels, index: int, slope: float) -> float:
    """Return the half-width of a slope's interval if each event adds a random amount.

    It is estimated from the changes between blocks that neither the line nor the load explains; 0
    if there are too few samples.
    """
    inside = ~levels.first[1:]
    moved = np.diff(levels.candidates[:, index])[inside]
    steps = np.diff(levels.value)[inside] - slope * moved
    if levels.nuisance.shape[1]:
        load = np.diff(levels.nuisance, axis=0)[inside]
        steps = steps - load @ np.linalg.lstsq(load, steps, rcond=None)[0]
    blocks = min(_DRIFT_BLOCKS, steps.size // _FEWEST_IN_BLOCK)
    if blocks < _FEWEST_DRIFT_BLOCKS or not moved.any():
        return 0.0
    starts = (np.arange(blocks) * steps.size) // blocks
    sizes = np.diff(np.append(starts, steps.size))
    off = np.diff(np.add.reduceat(np.cumsum(steps), starts) / sizes)
    # A fluctuation in one block raises one change and lowers the next; their product cancels it.
    variance = float(off @ off + 2.0 * off[1:] @ off[:-1]) * blocks / (blocks - 1)
    error = float(np.sqrt(max(variance, 0.0))) / abs(float(moved.sum()))
    return t_quantile(0.975, blocks - 2) * error


def told_apart(better: Fit, worse: Fit, z: float) -> bool:
    """Whether ``better`` beats ``worse`` clearly in log-likelihood, and does so throughout.

    The second condition is Vuong's test on the two errors, by blocks: a difference that comes from
    a few rows is not evidence, however large.
    """
    if better.log_likelihood - worse.log_likelihood < _EVIDENCE:
        return False
    gain = np.log(worse.sigma / better.sigma) + 0.5 * (
        (worse.residual / worse.sigma) ** 2 - (better.residual / better.sigma) ** 2
    )
    count = min(_BLOCKS, gain.size // _FEWEST_IN_BLOCK)
    if count < 4:
        return False
    sums = np.add.reduceat(gain, (np.arange(count) * gain.size) // count)
    spread = float(np.std(sums, ddof=1)) * np.sqrt(count)
    return bool(float(sums.sum()) > z * spread)


@dataclass(frozen=True)
class _Columns:
    data: FloatArray  # [n, q + m + 1]: nuisance, candidates, value; each of range 1
    candidate_scale: FloatArray
    value_scale: float


def _scaled(levels: Levels) -> tuple[_Columns, int]:
    parts = np.column_stack([levels.nuisance, levels.candidates, levels.value])
    scale = np.ptp(parts, axis=0)
    scale[scale == 0] = 1.0
    q = levels.nuisance.shape[1]
    data = (parts - parts[0]) / scale
    return _Columns(data, scale[q:-1], float(scale[-1])), q


def _pairs(data: FloatArray, first: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    keep = ~first[1:]
    return np.diff(data, axis=0)[keep], data[:-1][keep]


@dataclass(frozen=True)
class _Moments:
    """Sums of products from which those of any quasi-difference are computed."""

    walk: FloatArray  # steps by steps, no level subtracted
    steps: FloatArray  # here and below, each stretch's mean is subtracted
    mixed: FloatArray
    levels: FloatArray
    stretches: int

    def at(self, forgets: float) -> FloatArray:
        """Products of ``z[i] - phi z[i-1]``, which is the step plus ``forgets`` times the level."""
        if forgets == 0.0:
            return self.walk
        cross = self.mixed + self.mixed.T
        gram: FloatArray = self.steps + forgets * cross + forgets * forgets * self.levels
        return gram


def _moments(steps: FloatArray, before: FloatArray, first: NDArray[np.bool_]) -> _Moments:
    walk = steps.T @ steps
    labels = _labels(first)
    step_means, counts = _means(steps, labels)
    level_means, _ = _means(before, labels)
    weighted = step_means * counts[:, None]
    mixed = steps.T @ before - weighted.T @ level_means
    centred = before - level_means[labels]
    return _Moments(
        walk,
        walk - weighted.T @ step_means,
        mixed,
        centred.T @ centred,
        counts.size,
    )


def _labels(first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The stretch of each pair, numbered among the stretches that have pairs."""
    stretch = np.cumsum(first[1:])[~first[1:]]
    return np.unique(stretch, return_inverse=True)[1].astype(np.int64)


def _means(rows: FloatArray, labels: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    starts = np.flatnonzero(np.diff(labels, prepend=-1))
    counts = np.diff(np.append(starts, labels.size)).astype(np.float64)
    return np.add.reduceat(rows, starts, axis=0) / counts[:, None], counts


def _partial(gram: FloatArray, q: int) -> tuple[FloatArray, FloatArray]:
    """Slope and sum of squares of each candidate net of the nuisance, in scaled units."""
    inner = gram[q:, q:]
    if q:
        inner = inner - gram[q:, :q] @ np.linalg.pinv(gram[:q, :q], hermitian=True) @ gram[:q, q:]
    own = np.diag(inner)[:-1]
    cross = inner[:-1, -1]
    # If the nuisance explains a counter completely, the remainder is rounding.
    usable = own > 1e-10 * np.maximum(np.diag(gram)[q:-1], 1e-300)
    slope = np.where(usable, cross / np.where(usable, own, 1.0), 0.0)
    squares = np.maximum(inner[-1, -1] - slope * cross, 0.0)
    return slope, np.where(usable, squares, inner[-1, -1])


def _likelihood(squares: FloatArray, rows: int, forgets: float, stretches: int) -> FloatArray:
    variance = np.maximum(squares / rows, _NOISE_FLOOR**2)
    # A random walk has no level to fit; every other memory has one for each stretch.
    levels = 0.0 if forgets == 0.0 else 0.5 * stretches * np.log(rows)
    likelihood: FloatArray = -0.5 * rows * np.log(variance) - levels
    return likelihood


def _alone(levels: Levels, index: int, forgets: float) -> tuple[FloatArray, FloatArray]:
    """Counter and value, quasi-differenced, with level and nuisance removed from both."""
    columns = np.column_stack([levels.nuisance, levels.candidates[:, index], levels.value])
    columns = columns - columns[0]
    steps, before = _pairs(columns, levels.first)
    rows = steps + forgets * before
    if forgets > 0.0:
        labels = _labels(levels.first)
        rows = rows - _means(rows, labels)[0][labels]
    q = levels.nuisance.shape[1]
    if q:
        both = rows[:, q:]
        fitted = rows[:, :q] @ np.linalg.lstsq(rows[:, :q], both, rcond=None)[0]
        rows = np.column_stack([rows[:, :q], both - fitted])
    return rows[:, q], rows[:, q + 1]


def _standard_error(x: FloatArray, residual: FloatArray) -> float:
    """Root of the variance of ``x @ errors``, with Bartlett weights."""
    # A few events determine most of the line, and residuals shrink at those points (HC3).
    lean = np.minimum(x * x / float(x @ x), 0.5)
    score = x * residual / (1.0 - lean)
    lags = int(4 * (score.size / 100.0) ** (2.0 / 9.0)) + 1
    variance = float(score @ score)
    for lag in range(1, min(lags, score.size - 1) + 1):
        variance += 2.0 * (1.0 - lag / (lags + 1.0)) * float(score[lag:] @ score[:-lag])
    plain = float(residual @ residual) / max(residual.size - 1, 1) * float(x @ x)
    return float(np.sqrt(max(variance, plain, 0.0)))
