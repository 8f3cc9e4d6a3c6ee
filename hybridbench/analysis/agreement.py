"""When fitted models say leak: every plausible one must, the growth must go on, and lumps count.

Takes fits, returns yes or no with a reason; ``estimate`` makes the fits (detection.md 4.2, steps 4
to 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hybridbench.analysis.blocks import Blocks
from hybridbench.analysis.gls import Model, ModelFit, has_trend, is_plain
from hybridbench.analysis.guard import Pace
from hybridbench.analysis.lumpy import LATE_SHARE, grows_in_lumps
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.shapes import Warmup
from hybridbench.analysis.student import t_quantile, t_tail

# BIC: models this close to the best must agree before a leak is called.
_DECIDE_WITHIN = 3.5
# What a warm-up leaves of the growth is believed if no model can do without it, and if it is a fair
# part of it.
_TREND_IS_NEEDED = 20.0  # BIC
_TREND_SHARE = 0.4
_TREND_AND_NO_MORE = 1.15
_WARMUPS_THAT_END = (Warmup.RAMP, Warmup.EXPONENTIAL)
_SURE_WITH_STEPS = 0.6
_SURE_WITH_ALL_STEPS = 0.75
_LUMPY_PHI = 0.75
_FORGETS = 0.5  # noise below this leaves the stretches between steps to speak for themselves
_STRETCH = 6  # blocks
_STRETCH_SE = 2.0
_STRETCH_KEEPS = 0.5  # of the trend
_STRETCHES_SEEN = 0.7  # of the window
# Beside a warm-up shape lumps may be its tail; then nearly half of them must come in the second
# half, which no tail that bends at all does.
_LATE_SHARE_WARMING = 0.45


@dataclass(frozen=True)
class Question:
    """Is growth over the window above ``floor``, at error rate ``alpha``, with up to so many steps
    allowed to explain it away?
    """

    floor: float
    alpha: float
    max_steps: int


@dataclass(frozen=True)
class Paces:
    """How growth went on in the second half: all of it, and what the warm-up shape leaves of it
    (None where the model has none or could do without a trend).
    """

    whole: Pace | None
    left: Pace | None


def agreed(fits: Sequence[ModelFit], phi: float, blocks: Blocks, asked: Question) -> bool:
    """Whether every model close to the best has a trend that is surely above the floor.

    A best model that needs every step it may have, or noise that hardly forgets, can hide a leak
    in lumps and can feign one: there the lumps decide.
    """
    best = fits[0].model
    all_agree = all(p_value(fit, asked.floor) < asked.alpha for fit in deciding(fits))
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
    """Whether every stretch between two fitted steps climbs surely, and not far from alike.

    Of a staircase the trend is what three steps are too few for; its stretches are flat.
    """
    trend = fit.trend()
    if trend is None or trend[0] <= 0:
        return False
    edges = [0, *sorted(step + 1 for step in fit.model.steps), x.size]
    seen = 0
    for start, end in pairwise(edges):
        if end - start < _STRETCH:
            continue
        slope, se = _slope(x[start:end], fit.residuals[start:end])
        if trend[0] + slope - _STRETCH_SE * se < _STRETCH_KEEPS * trend[0]:
            return False
        seen += end - start
    return seen >= _STRETCHES_SEEN * x.size


def _slope(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    left = y - y.mean() - slope * centred
    return slope, float(np.sqrt(left @ left / (x.size - 2) / spread))


def goes_on(paces: Paces, best: ModelFit, growth: float) -> bool:
    """Whether growth keeps its pace; where all of it fades, what the warm-up leaves of it may
    still.
    """
    trend = best.trend()
    if paces.whole is None:
        return False
    falls = trend is not None and trend[0] > _TREND_AND_NO_MORE * growth
    if falls and best.model.candidate.warmup is Warmup.LOG:
        # Ever slower growth that falls makes room for a trend that nothing shows by itself; a
        # falling warm-up that ends may be a leak that gets faster.
        return False
    if paces.whole.holds(growth, warming=not is_plain(best.model)):
        return True
    if paces.left is None or trend is None or paces.whole.last_quarter <= 0:
        return False
    surely = trend[0] - t_quantile(0.999, best.df) * trend[1]
    return surely >= _TREND_SHARE * growth and paces.left.holds(trend[0], warming=True)


def trend_is_needed(ranked: Sequence[Model]) -> bool:
    """Whether the best model has a warm-up that ends, and none without a trend comes near it.

    A warm-up that gets ever slower looks like one that ends and a trend, and steps fit much.
    """
    if ranked[0].steps or ranked[0].candidate.warmup not in _WARMUPS_THAT_END:
        return False
    without = min(model.bic for model in ranked if not has_trend(model))
    return without > ranked[0].bic + _TREND_IS_NEEDED


def least_sure(model: Model, max_steps: int, phi: float = 0.0) -> float:
    """The share of the growth that its interval's lower end must reach.

    Steps fit much, and a warm-up shape with every step it may have nearly anything; what a shape
    leaves as noise that hardly forgets is misfit.  Such models are believed where little doubt is
    left.  A plain one with every step has the lumps to answer for.
    """
    all_steps = len(model.steps) >= max_steps > 0
    if all_steps and not is_plain(model):
        return _SURE_WITH_ALL_STEPS
    if (model.steps and not all_steps) or (phi >= _LUMPY_PHI and not is_plain(model)):
        return _SURE_WITH_STEPS
    return 0.0


def reason(all_agree: bool, best: ModelFit) -> str:
    """Why it is not called a leak, in a word of detection.md 4.1."""
    if all_agree or not is_plain(best.model):
        return "still-filling"
    return "few-steps" if len(best.model.steps) > 1 else "too-short"


def deciding(fits: Sequence[ModelFit]) -> list[ModelFit]:
    """The models so close to the best that each must agree before a leak is called."""
    return [fit for fit in fits if fit.model.bic <= fits[0].model.bic + _DECIDE_WITHIN]


def p_value(fit: ModelFit, floor: float) -> float:
    """How likely a trend like this one is where growth stays at the floor; 1 without a trend."""
    trend = fit.trend()
    return 1.0 if trend is None else tail(trend[0] - floor, trend[1], fit.df)


def tail(above: float, se: float, df: int) -> float:
    """P(noise alone is ``above`` or more); without any noise, whether it is above at all."""
    if se <= 0:
        return 0.0 if above > 0 else 1.0
    return t_tail(above / se, df)
