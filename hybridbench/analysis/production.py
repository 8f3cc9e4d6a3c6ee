"""How much garbage one event makes, from probes of what waits for the collector.

A full collection empties the account, so only stretches between two collections count; within them
the number of waiting objects rises by the same amount per event, whether or not the process's
memory ever grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.findings import Rate
from hybridbench.analysis.record import FloatArray, Series
from hybridbench.analysis.student import t_quantile, wilson_interval

_MIN_DF = 2
_UNKNOWN_WIDTH = 0.1  # of a rate that two points alone give


@dataclass(frozen=True)
class Probes:
    """Values seen by probes, with the number of full collections just before and after each."""

    t_s: FloatArray
    value: FloatArray
    collections_before: FloatArray
    collections_after: FloatArray

    def stretches(self) -> list[slice[int, int, None]]:
        """Runs of at least two probes without a full collection, nor any fall, between them."""
        if self.t_s.size < 2:
            return []
        same = self.collections_after[1:] <= self.collections_before[:-1]
        # A fall without a counted collection is a younger one, or one that the counter missed.
        joined = same & (np.diff(self.value) >= 0)
        runs: list[slice[int, int, None]] = []
        start = 0
        for i, together in enumerate([*joined.tolist(), False]):
            if not together:
                if i > start:
                    runs.append(slice(start, i + 1, None))
                start = i + 1
        return runs


def make_probes(t_s: FloatArray, value: FloatArray, collections: Series | None) -> Probes:
    """Probes with the collection counts around them; without a counter only falls part the
    stretches.
    """
    if collections is None or not len(collections):
        none = np.zeros_like(t_s)
        return Probes(t_s, value, none, none)
    last = len(collections) - 1
    before = np.clip(np.searchsorted(collections.t_s, t_s, side="right") - 1, 0, last)
    after = np.clip(np.searchsorted(collections.t_s, t_s, side="left"), 0, last)
    return Probes(t_s, value, collections.value[before], collections.value[after])


def production_rate(probes: Probes, progress: FloatArray, unit: str, per: str) -> Rate | None:
    """Rise of the value for each unit of ``progress`` (a counter or hours at the probes), pooled
    over stretches.

    The interval joins the scatter about the line with the chance in counting events; None without
    two probes between collections.
    """
    xs: list[FloatArray] = []
    ys: list[FloatArray] = []
    for run in probes.stretches():
        xs.append(progress[run] - progress[run].mean())
        ys.append(probes.value[run] - probes.value[run].mean())
    if not xs:
        return None
    x, y = np.concatenate(xs), np.concatenate(ys)
    spread = float(x @ x)
    if spread <= 0:
        return None
    value = float(x @ y) / spread
    df = x.size - len(xs) - 1
    if df < _MIN_DF:
        half = _UNKNOWN_WIDTH * abs(value)
    else:
        residual = y - value * x
        variance = float(residual @ residual) / df
        half = t_quantile(0.975, df) * float(np.sqrt(variance * _memory(residual) / spread))
    return Rate(value, value - half, value + half, unit, per)


def _memory(residual: FloatArray) -> float:
    """By how much correlation between neighbours widens the variance of a slope (AR(1))."""
    energy = float(residual @ residual)
    if energy <= 0:
        return 1.0
    lag = float(np.clip(float(residual[1:] @ residual[:-1]) / energy, 0.0, 0.95))
    return (1.0 + lag) / (1.0 - lag)


def with_counting_error(rate: Rate, events: float) -> Rate:
    """``rate`` widened by what chance alone does to a share of ``events``, where it is a share."""
    if not 0.0 <= rate.value <= 1.0:
        return rate
    low, high = wilson_interval(rate.value * events, events)
    return Rate(
        rate.value,
        min(rate.lower, low),
        max(rate.upper, high),
        rate.unit,
        rate.per,
        rate.confidence,
    )
