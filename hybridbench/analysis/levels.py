"""Levels of a metric in the judged window: a mean, a quantile or an extreme, with its interval.

Neighbouring samples are correlated, so the interval of a mean or a quantile uses the effective
number of independent samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.distributions import autocorrelation, t_quantile
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.foundation.metrics import declared
from hybridbench.foundation.thresholds import Stat
from hybridbench.records.verdict import LevelResult

FEWEST_SAMPLES = 8
CONFIDENCE = 0.95

_Z = 1.959964
# High, because levels such as memory are correlated over hundreds of samples.
_MAX_PHI = 0.999
_QUANTILES = {Stat.P50: 0.5, Stat.P95: 0.95, Stat.P99: 0.99}
# Levels stored with every verdict, so that runs can be compared without their samples.
_STORED: tuple[tuple[str, Stat], ...] = (
    ("throughput_tokens_per_s", Stat.MEAN),
    ("requests_per_s", Stat.MEAN),
    ("ttft_ms_p50", Stat.P50),
    ("ttft_ms_p99", Stat.P50),
    ("itl_ms_p50", Stat.P50),
    ("itl_ms_p99", Stat.P50),
    ("rss_anon_swap_bytes", Stat.MAX),
    ("rest_anon_swap_bytes", Stat.LAST),
)


@dataclass(frozen=True)
class Measured:
    """A value with its 95% interval.

    The interval's half-width is proportional to the judged time to the power of -``narrows``, which
    is 0 if more time does not narrow the interval.
    """

    value: float
    lower: float
    upper: float
    narrows: float = 0.0


def run_levels(record: RunRecord, window: Window | None) -> tuple[LevelResult, ...]:
    """Return the levels that every verdict contains, except those without enough samples."""
    if window is None:
        return ()
    found_levels = []
    for name, stat in _STORED:
        found = level(judged_values(record, window, name), stat)
        if found is not None:
            unit = declared(name).unit.value
            ends = (finite(found.lower), finite(found.upper))
            found_levels.append(LevelResult(name, stat.value, unit, found.value, *ends))
    return tuple(found_levels)


def judged_values(record: RunRecord, window: Window, name: str) -> FloatArray:
    """Return the samples of ``name`` in the window, or in its pauses if there are no others."""
    series = record.series.get(name)
    if series is None:
        return np.zeros(0)
    value = window.samples(series)[1]
    if not value.size:
        at_rest = series.between(window.start_s, window.end_s).value
        value = at_rest[np.isfinite(at_rest)]
    return value


def level(value: FloatArray, stat: Stat) -> Measured | None:
    """Return ``stat`` of the samples; None if there are too few."""
    if stat in (Stat.MIN, Stat.MAX, Stat.LAST):
        if not value.size:
            return None
        seen = {Stat.MIN: value.min(), Stat.MAX: value.max(), Stat.LAST: value[-1]}[stat]
        return Measured(float(seen), float(seen), float(seen))
    if value.size < FEWEST_SAMPLES:
        return None
    if stat in _QUANTILES:
        return _quantile(value, _QUANTILES[stat])
    if stat is Stat.LAST_FIRST_RATIO:
        return _last_over_first(value)
    mean, half = _mean(value)
    return Measured(mean, mean - half, mean + half, 0.5)


def finite(value: float) -> float | None:
    """Return ``value``, or None if it is infinite."""
    return value if math.isfinite(value) else None


def _quantile(value: FloatArray, share: float) -> Measured:
    """Estimate a quantile by ranks, for any distribution; an end beyond the samples is infinite."""
    ranked = np.sort(value)
    worth = _worth(value)
    spread = _Z * math.sqrt(share * (1.0 - share) / worth)
    low, high = share - spread, share + spread
    last = ranked.size - 1
    lower = float(ranked[math.floor(low * last)]) if low >= 0 else -math.inf
    upper = float(ranked[math.ceil(high * last)]) if high <= 1 else math.inf
    return Measured(float(np.quantile(ranked, share)), lower, upper, 0.5)


def _last_over_first(value: FloatArray) -> Measured | None:
    third = value.size // 3
    if third < FEWEST_SAMPLES:
        return None
    (first, first_half), (last, last_half) = _mean(value[:third]), _mean(value[-third:])
    if min(first - first_half, last - last_half) <= 0:
        return None
    ratio = last / first
    half = math.hypot(first_half / first, last_half / last)
    return Measured(ratio, ratio * math.exp(-half), ratio * math.exp(half), 0.5)


def _mean(value: FloatArray) -> tuple[float, float]:
    """Return the mean and the half-width of its interval."""
    worth = _worth(value)
    error = float(np.std(value, ddof=1)) / math.sqrt(worth)
    return float(value.mean()), t_quantile(0.5 + CONFIDENCE / 2, max(worth - 1.0, 1.0)) * error


def _worth(value: FloatArray) -> float:
    """Return the effective number of independent samples under AR(1) noise."""
    off = value - value.mean()
    if not np.any(off):
        return float(value.size)
    phi = autocorrelation(off, 1, _MAX_PHI)
    return max(value.size * (1.0 - phi) / (1.0 + phi), 2.0)
