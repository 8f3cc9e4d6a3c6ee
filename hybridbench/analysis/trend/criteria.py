"""Decide whether models indicate a leak: all plausible ones must, and the growth must continue.

``estimate`` makes the fits; the functions here return yes or no with a reason (detection.md,
"Decision" and "Lumps").  A warm-up slows down and a leak does not, so the pace of the last two
quarters is measured on the blocks themselves, without any fitted shape.

The thresholds were chosen on the curve corpus, seeds 1000 to 77015 and 8310000 (detection.md,
"How fresh these figures are").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hybridbench.analysis.distributions import t_quantile, t_tail
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.blocks import Blocks
from hybridbench.analysis.trend.gls import (
    MAX_PHI,
    Model,
    ModelFit,
    Problem,
    is_plain,
    straight_line,
    whiten,
)
from hybridbench.analysis.trend.shapes import Trend, Warmup

# BIC: all models this close to the best must agree before a leak is called.
_DECIDE_WITHIN = 3.5
# A trend that exceeds the growth by this factor implies a falling warm-up beside it.
_TREND_AND_NO_MORE = 1.15
_LINES = (Trend.TIME, Trend.WORK)
_SURE_WITH_STEPS = 0.6
_SURE_WITH_ALL_STEPS = 0.75
_LUMPY_PHI = 0.75
_FORGETS = 0.5  # below this autocorrelation, stretches between steps can be judged separately
_STRETCH = 6  # blocks
_STRETCH_SE = 2.0
_STRETCH_KEEPS = 0.5  # minimum slope of a stretch, as a share of the trend
_STRETCHES_SEEN = 0.7  # minimum share of the window in such stretches
# If the model has a warm-up shape, lumps may be its tail; then nearly half of the growth must come
# in the second half, which a flattening tail never reaches.
_LATE_SHARE_WARMING = 0.45

HALF, THREE_QUARTERS = 0.5, 0.75
_WARM = 0.1  # share of a warm-up that may be left when it is over; a logarithm leaves a quarter
_KEEPS_PACE = 0.88
# If a warm-up shape is part of the explanation, fading is expected, so the tolerance is smaller.
_TOLERANCE_SE = 2.0
_TOLERANCE_SE_WARM = 1.0
_SHOWS = 0.6  # share of the claimed growth that the last quarter must show
# A pace that recently fell to a fraction of its former value may fall again: the range in which to
# search for such a late knee, and the ratio of paces that counts.
_KNEES = (0.1, 0.85, 61)  # arguments of np.linspace
_FINER = 11
_LATE_KNEE = 0.3
_NEAR = 0.05  # share of the window; two knees this close are the same
_SLOWED, _OTHER_FILL = 1.5, 10.0
_KNEE_WITHIN = 6.0  # BIC: no strong evidence against it (Kass and Raftery 1995)
_TWO_LINES_COST = 5  # parameters in the BIC: a level, a slope, and a bend with its position
# The growth must also be visible at the end by itself, not only as the remainder beside a shape.
_SURELY_SE = 2.0
_MIN_BLOCKS = 6
# An end is searched for at every block, so a bend must be more significant than at one place.
_BEND_SE = 4.0
_STOPPED = 0.5  # share of the pace before the end
_FEWEST_BEFORE_STOP, FEWEST_AFTER_STOP = 6, 2

_STRETCHES = 24
_LARGEST_DROPPED = 3
LATE_SHARE = 0.35  # minimum share of the growth in the second half


@dataclass(frozen=True)
class Question:
    """What is tested: that growth over the window exceeds ``floor``, at error rate ``alpha``.

    Up to ``max_steps`` steps may explain the growth away.  Any model except a plain line may
    include a continuing warm-up; plain lines use ``line_floor``.
    """

    floor: float
    line_floor: float
    alpha: float
    max_steps: int

    def floor_of(self, model: Model) -> float:
        """Return the growth that ``model`` must exceed to indicate a leak."""
        is_line = is_plain(model) and not model.steps and model.candidate.trend in _LINES
        return self.line_floor if is_line else self.floor


def agreed(fits: Sequence[ModelFit], phi: float, blocks: Blocks, asked: Question) -> bool:
    """Whether every model close to the best has a trend significantly above the floor.

    If the best model uses all its steps, or the noise is strongly autocorrelated, a leak in lumps
    can be hidden or faked; then the lumps decide.
    """
    best = fits[0].model
    all_agree = chance(fits, asked) < asked.alpha
    if not is_plain(best):
        lumps = phi >= _LUMPY_PHI and grows_in_lumps(blocks, asked.alpha, _LATE_SHARE_WARMING)
        return all_agree or lumps
    all_steps = len(best.steps) >= asked.max_steps > 0
    if all_agree and not all_steps:
        return True
    if all_agree and phi < _FORGETS and climbs_between_steps(fits[0], blocks.x):
        return True
    return (all_steps or phi >= _LUMPY_PHI) and grows_in_lumps(blocks, asked.alpha, LATE_SHARE)


def climbs_between_steps(fit: ModelFit, x: FloatArray) -> bool:
    """Whether every stretch between two fitted steps climbs significantly and at a similar rate.

    A staircase of more than three steps shows up as a trend, but its stretches are flat.
    """
    trend = fit.trend()
    if trend is None or trend[0] <= 0:
        return False
    edges = [0, *sorted(step + 1 for step in fit.model.steps), x.size]
    seen = 0
    for start, end in pairwise(edges):
        if end - start < _STRETCH:
            continue
        slope, se, _ = straight_line(x[start:end], fit.residuals[start:end])
        if trend[0] + slope - _STRETCH_SE * se < _STRETCH_KEEPS * trend[0]:
            return False
        seen += end - start
    return seen >= _STRETCHES_SEEN * x.size


def goes_on(pace: Pace | None, best: ModelFit, growth: float) -> bool:
    """Whether growth keeps its pace.

    A falling logarithmic warm-up permits a trend that the blocks alone do not show; a falling
    warm-up that ends may be an accelerating leak.
    """
    trend = best.trend()
    falls = trend is not None and trend[0] > _TREND_AND_NO_MORE * growth
    if pace is None or (falls and best.model.candidate.warmup is Warmup.LOG):
        return False
    warming = not is_plain(best.model)
    return pace.holds(warming=warming) and (pace.shows(growth) or not warming)


def slowed(fits: Sequence[ModelFit], problem: Problem, phi: float) -> tuple[float, float] | None:
    """Return growth per window before and after a late knee that reduced the pace, or None.

    There is a knee if two lines that meet there explain the blocks as well as the best model, or
    are that model.  A fill that ends may leave a leak of any size; one that slows down continues to
    fill.  Lumps and steps about one line also look bent: if they explain nearly as much, there is
    no knee.
    """
    knee, _, _ = _best_knee(problem, phi, np.linspace(*_KNEES))
    step = (_KNEES[1] - _KNEES[0]) / (_KNEES[2] - 1)
    finer = np.linspace(knee - step, knee + step, _FINER)
    knee, (before, after), bent_rss = _best_knee(problem, phi, finer)
    if knee < _LATE_KNEE or not _SLOWED * after <= before <= _OTHER_FILL * after:
        return None
    n = problem.y.size

    def worse_by(fit: ModelFit) -> float:
        rss = float((whiten(fit.residuals[:, None], phi, problem.gaps) ** 2).sum())
        more = fit.model.parameters - _TWO_LINES_COST
        return float(n * np.log(max(rss, 1e-300) / bent_rss) + more * np.log(n))

    best = min(0.0, worse_by(fits[0]))
    straight = any(is_plain(fit.model) and worse_by(fit) <= best + _DECIDE_WITHIN for fit in fits)
    same = best >= -_KNEE_WITHIN or abs(_ramp_ends(fits[0], problem) - knee) < _NEAR
    return (before, after) if same and not straight else None


def _ramp_ends(fit: ModelFit, problem: Problem) -> float:
    """Return where the ramp of a ramp-and-line model ends; infinity for all other models."""
    candidate = fit.model.candidate
    if candidate.warmup is not Warmup.RAMP or candidate.trend not in _LINES:
        return np.inf
    ramp = problem.shapes.columns[:, candidate.columns[candidate.beside]]
    return float(problem.shapes.x[np.argmax(ramp >= 1.0)]) if ramp[-1] >= 1.0 else np.inf


def _best_knee(
    problem: Problem, phi: float, knees: FloatArray
) -> tuple[float, tuple[float, float], float]:
    """Return the best of ``knees``, the slopes before and after it, and the fit's rss."""
    x, at = problem.shapes.x, knees[:, None]
    legs = [np.ones_like(x), np.minimum(x, at), np.maximum(x - at, 0.0), problem.y]
    white = whiten(np.stack(np.broadcast_arrays(*legs), axis=-1), phi, problem.gaps)
    _, beta, rss = _least_squares(white)
    best = int(np.argmin(rss))
    _, before, after = beta[best].tolist()
    return float(knees[best]), (before, after), float(rss[best])


def least_sure(model: Model, max_steps: int, phi: float = 0.0) -> float:
    """Return the share of the growth that the lower end of its interval must reach.

    Steps fit many things, and a warm-up shape with all its steps almost anything; strongly
    autocorrelated residuals of a shape are misfit.  Such models are accepted only if little doubt
    remains.  For a plain model with all its steps, the lumps decide.
    """
    all_steps = len(model.steps) >= max_steps > 0
    if all_steps and not is_plain(model):
        return _SURE_WITH_ALL_STEPS
    if (model.steps and not all_steps) or (phi >= _LUMPY_PHI and not is_plain(model)):
        return _SURE_WITH_STEPS
    return 0.0


def reason(all_agree: bool, best: ModelFit) -> str:
    """Return the code of why growth is not called a leak; ``metric_trend`` explains it."""
    if all_agree or not is_plain(best.model):
        return "still-filling"
    return "few-steps" if len(best.model.steps) > 1 else "too-short"


def deciding(fits: Sequence[ModelFit]) -> list[ModelFit]:
    """Return the models so close to the best that all must agree before a leak is called."""
    return [fit for fit in fits if fit.model.bic <= fits[0].model.bic + _DECIDE_WITHIN]


def chance(fits: Sequence[ModelFit], asked: Question) -> float:
    """Return the largest p-value among the deciding models."""
    return max(p_value(fit, asked.floor_of(fit.model)) for fit in deciding(fits))


def p_value(fit: ModelFit, floor: float) -> float:
    """Return the probability of such a trend if growth is at the floor; 1 without a trend."""
    trend = fit.trend()
    return 1.0 if trend is None else tail(trend[0] - floor, trend[1], fit.df)


def tail(above: float, se: float, df: int) -> float:
    """Return P(noise alone is ``above`` or more); without noise, whether it is above at all."""
    if se <= 0:
        return 0.0 if above > 0 else 1.0
    return t_tail(above / se, df)


@dataclass(frozen=True)
class Pace:
    """Growth per window in the third and the last quarter of the run, with standard errors."""

    third_quarter: float
    last_quarter: float
    se_last: float
    se_fade: float  # of last_quarter - 0.88 third_quarter

    def shows(self, growth: float) -> bool:
        """Whether the last quarter may contain most of ``growth``; if not, a shape invented it."""
        return self.last_quarter + _TOLERANCE_SE * self.se_last >= _SHOWS * growth

    def holds(self, *, warming: bool) -> bool:
        """Whether growth continues and is not shown to be slower than before."""
        tolerance = _TOLERANCE_SE_WARM if warming else _TOLERANCE_SE
        surely = _SURELY_SE if warming else 0.0
        fade = self.last_quarter - _KEEPS_PACE * self.third_quarter
        return self.last_quarter > surely * self.se_last and fade + tolerance * self.se_fade >= 0


def measure_pace(
    progress: FloatArray,
    value: FloatArray,
    gaps: FloatArray,
    phi: float,
    start: float = HALF,
) -> Pace | None:
    """Return the pace of ``value`` in the two parts from ``start`` on; None for too few blocks.

    ``progress`` is time or work, from 0 to 1.
    """
    late = progress >= start
    middle = 0.5 * (start + 1.0)
    p = progress[late]
    if p.size < _MIN_BLOCKS or np.ptp(p) <= 0:
        return None
    design = np.column_stack(
        [
            np.ones(p.size),
            np.minimum(p, middle) - start,
            np.maximum(p - middle, 0.0),
        ]
    )
    found = _whitened(design, value[late], phi, gaps[-(p.size - 1) :])
    beta, cov = found.beta, found.cov
    contrast = np.array([0.0, -_KEEPS_PACE, 1.0])
    fade_variance = float(contrast @ cov @ contrast)
    return Pace(
        float(beta[1]),
        float(beta[2]),
        float(np.sqrt(max(cov[2, 2], 0.0))),
        float(np.sqrt(max(fade_variance, 0.0))),
    )


def is_warm_by_middle(fit: ModelFit, problem: Problem) -> bool:
    """Whether the model has a warm-up that is over in the second half of the window."""
    warmup = _warmup(fit, problem)
    return warmup is not None and _late_range(warmup, problem) <= _WARM * float(np.ptp(warmup))


def still_warms(fit: ModelFit, problem: Problem) -> bool:
    """Whether the model's warm-up adds notably to its trend in the second half of the window."""
    warmup, trend = _warmup(fit, problem), fit.trend()
    if warmup is None or trend is None:
        return False
    return _late_range(warmup, problem) > _WARM * HALF * abs(trend[0])


def _warmup(fit: ModelFit, problem: Problem) -> FloatArray | None:
    """Return the part of the fitted values that is a warm-up; None if the model has none."""
    candidate = fit.model.candidate
    own = range(candidate.beside, len(candidate.columns))
    of_warmup = [i for i in own if candidate.columns[i] != candidate.trend_column]
    if not of_warmup:
        return None
    columns = problem.shapes.columns[:, [candidate.columns[i] for i in of_warmup]]
    return np.asarray(columns @ fit.beta[[1 + i for i in of_warmup]])


def _late_range(value: FloatArray, problem: Problem) -> float:
    return float(np.ptp(value[problem.shapes.x >= HALF]))


def stops_at_the_end(progress: FloatArray, value: FloatArray, gaps: FloatArray) -> bool:
    """Whether growth through the second half ended significantly before the end of the window.

    A fill at constant speed that ends in the last tenth of the window is a straight line until
    then.  No shape distinguishes it from a leak, but the few blocks after its end do.
    """
    late = progress >= HALF
    p, y = progress[late], value[late]
    if p.size < _MIN_BLOCKS or np.ptp(p) <= 0:
        return False
    between = gaps[-(p.size - 1) :]
    # Work that pauses at the end puts many blocks at one place: require some beyond that place.
    ends = p[_FEWEST_BEFORE_STOP:-FEWEST_AFTER_STOP]
    ends = ends[(ends >= THREE_QUARTERS) & (ends < p[-FEWEST_AFTER_STOP])]
    return any(_stops_at(float(end), p, y, between) for end in ends)


def _stops_at(end: float, p: FloatArray, y: FloatArray, gaps: FloatArray) -> bool:
    design = np.column_stack([np.ones(p.size), np.minimum(p, end), np.maximum(p - end, 0.0)])
    left = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    phi = float(np.clip(left[1:] @ left[:-1] / max(float(left @ left), 1e-300), 0.0, MAX_PHI))
    found = _whitened(design, y, phi, gaps)
    return surely_ends(float(found.beta[1]), float(found.beta[2]), found.cov[1:, 1:])


@dataclass(frozen=True)
class _Whitened:
    """Coefficients with their covariance under AR(1) noise."""

    beta: FloatArray
    cov: FloatArray


def _whitened(design: FloatArray, y: FloatArray, phi: float, gaps: FloatArray) -> _Whitened:
    """Fit least squares under AR(1) noise of ``phi``."""
    inverse, beta, rss = _least_squares(whiten(np.column_stack([design, y]), phi, gaps))
    return _Whitened(beta, inverse * rss / max(y.size - beta.size, 1))


def _least_squares(white: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Regress the last column of ``white`` [..., rows, k + 1] on the others.

    Returns:
        The inverse of their products [..., k, k], the coefficients [..., k], and the residual sum
        of squares [...], at least 1e-300.
    """
    x, z = white[..., :-1], white[..., -1:]
    inverse = np.asarray(np.linalg.pinv(x.mT @ x), dtype=np.float64)
    beta = inverse @ (x.mT @ z)
    residual = z - x @ beta
    rss: FloatArray = np.maximum((residual.mT @ residual)[..., 0, 0], 1e-300)
    return inverse, beta[..., 0], rss


def surely_ends(before: float, after: float, cov: FloatArray) -> bool:
    """Whether pace ``after`` is significantly below half of ``before``, given their covariance."""
    contrast = np.array([-1.0, 1.0])
    se_bend = float(np.sqrt(max(contrast @ cov @ contrast, 0.0)))
    se_after = float(np.sqrt(max(cov[1, 1], 0.0)))
    return (
        before - after > _BEND_SE * se_bend and after + _TOLERANCE_SE * se_after < _STOPPED * before
    )


def grows_in_lumps(blocks: Blocks, alpha: float, late_share: float = LATE_SHARE) -> bool:
    """Whether growth continues in lumps and is significant even without the three largest.

    ``late_share`` of it must come in the second half.
    """
    edges = np.linspace(0.0, 1.0, _STRETCHES + 1)
    at = np.clip(np.searchsorted(edges, blocks.x, side="right") - 1, 0, _STRETCHES - 1)
    filled = [np.median(blocks.value[at == k]) for k in range(_STRETCHES) if np.any(at == k)]
    increments = np.diff(np.array(filled, dtype=np.float64))
    if increments.size < _STRETCHES // 2 or not np.any(increments):
        return False
    kept = np.sort(increments)[:-_LARGEST_DROPPED]
    se = float(kept.std(ddof=1)) / float(np.sqrt(kept.size))
    late = float(increments[increments.size // 2 :].sum())
    holds = late >= late_share * float(increments.sum())
    return holds and float(kept.mean()) > t_quantile(1.0 - alpha, kept.size - 1) * se
