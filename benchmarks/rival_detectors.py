"""Rival leak detectors for memory series, for comparison.

They are line fits, rank tests, rules of thumb, and the prototype of the analysis.  All but the last
drop the first tenth as warm-up, because they cannot detect where warm-up ends.  All get the same
floor and margin as the analysis of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.composite_rival import composite
from benchmarks.corpus import WARMUP, LabelledTrace
from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.blocks import make_blocks

LEAK, CLEAN, INCONCLUSIVE = "LEAK", "CLEAN", "INCONCLUSIVE"

_ALPHA = 0.01
_BLOCKS = 192
_ENDPOINT_SHARE, _ENDPOINT_MB = 0.1, 20.0
_MANY = 1e6


@dataclass(frozen=True)
class Answer:
    """A detector's answer; rates in MB/h, None without an interval."""

    word: str
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Thresholds:
    """Growth in MB/h above which a finding is worth reporting, and below which it is clean."""

    floor: float
    margin: float


Detector = Callable[[LabelledTrace, Thresholds], Answer]


def least_squares(trace: LabelledTrace, limits: Thresholds) -> Answer:
    """A straight line through all samples; its slope is tested by Student's t."""
    t, y = _after_warmup(trace)
    slope, se = _line(t, y)
    call = slope - t_quantile(1.0 - _ALPHA, t.size - 2) * se
    half = t_quantile(0.975, t.size - 2) * se
    return _by_interval(call, slope - half, slope + half, limits)


def mann_kendall(trace: LabelledTrace, limits: Thresholds) -> Answer:
    """Kendall's rank test for a rise, combined with a median slope above the floor."""
    t, y = _block_medians(trace)
    slopes, signs = _pairs(t, y)
    z = float(signs.sum()) / _kendall_sd(t.size)
    rises = z > t_quantile(1.0 - _ALPHA, _MANY) and float(np.median(slopes)) > limits.floor
    return Answer(LEAK if rises else CLEAN)


def theil_sen(trace: LabelledTrace, limits: Thresholds) -> Answer:
    """The median of all slopes between two points; its interval is from ranks (Sen 1968)."""
    t, y = _block_medians(trace)
    slopes = np.sort(_pairs(t, y)[0])

    def at(probability: float) -> float:
        away = t_quantile(probability, _MANY) * _kendall_sd(t.size)
        place = round((slopes.size - 1 + away) / 2.0)
        return float(slopes[int(np.clip(place, 0, slopes.size - 1))])

    return _by_interval(at(_ALPHA), at(0.025), at(0.975), limits)


def endpoints(trace: LabelledTrace, limits: Thresholds) -> Answer:
    """A leak if the last samples exceed the first by more than a tenth and by more than 20 MB."""
    _, y = _after_warmup(trace)
    edge = max(1, y.size // 50)
    first, last = float(np.median(y[:edge])), float(np.median(y[-edge:]))
    grown = last - first
    return Answer(LEAK if grown > max(_ENDPOINT_SHARE * first, _ENDPOINT_MB) else CLEAN)


def last_quarter(trace: LabelledTrace, limits: Thresholds) -> Answer:
    """A leak if a line through the last quarter has a slope above the floor."""
    late = trace.t_s >= trace.t_s[0] + 0.75 * (trace.t_s[-1] - trace.t_s[0])
    slope, _ = _line(trace.t_s[late] / 3600.0, trace.value[late])
    return Answer(LEAK if slope > limits.floor else CLEAN)


def prototype(trace: LabelledTrace, limits: Thresholds) -> Answer:
    """A set of plausible models (``composite_rival``)."""
    found = composite(trace, limits.floor)
    if found is None:
        return Answer(INCONCLUSIVE)
    word = CLEAN if not found.open and found.bound < limits.margin else INCONCLUSIVE
    return Answer(LEAK if found.leak else word, found.lower, found.upper)


RIVALS: Mapping[str, Detector] = {
    "least squares, t-test": least_squares,
    "Mann-Kendall + median slope": mann_kendall,
    "Theil-Sen": theil_sen,
    "endpoints > 10% and > 20 MB": endpoints,
    "slope of the last quarter": last_quarter,
    "prototype of the analysis": prototype,
}


def _by_interval(call: float, lower: float, upper: float, limits: Thresholds) -> Answer:
    if call > limits.floor:
        return Answer(LEAK, lower, upper)
    return Answer(CLEAN if upper < limits.margin else INCONCLUSIVE, lower, upper)


def _after_warmup(trace: LabelledTrace) -> tuple[FloatArray, FloatArray]:
    """Times in hours and values in MB, without the warm-up."""
    keep = trace.t_s >= trace.t_s[0] + WARMUP * (trace.t_s[-1] - trace.t_s[0])
    return trace.t_s[keep] / 3600.0, trace.value[keep]


def _block_medians(trace: LabelledTrace) -> tuple[FloatArray, FloatArray]:
    t, y = _after_warmup(trace)
    blocks = make_blocks(t, y, 0.5, _BLOCKS)
    return blocks.t_s, blocks.value


def _line(t: FloatArray, y: FloatArray) -> tuple[float, float]:
    centred = t - t.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    residual = y - y.mean() - slope * centred
    return slope, float(np.sqrt(residual @ residual / (t.size - 2) / spread))


def _pairs(t: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    first, second = np.triu_indices(t.size, 1)
    rise = y[second] - y[first]
    return rise / (t[second] - t[first]), np.sign(rise)


def _kendall_sd(n: int) -> float:
    return float(np.sqrt(n * (n - 1) * (2 * n + 5) / 18.0))
