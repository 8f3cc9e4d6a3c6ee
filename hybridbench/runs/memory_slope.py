"""Fit a line to memory growth, cheaply enough for a live view to do so at every sample.

The verdict also considers other shapes, load and sawteeth (``analysis/trend``), in a separate
process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from hybridbench.analysis.distributions import autocorrelation, t_quantile

_BLOCKS_MAX = 64
_BLOCKS_MIN = 8
_HOUR_S = 3600.0
_PHI_MAX = 0.95


@dataclass(frozen=True)
class Slope:
    """Growth per hour, and the half-width of its 95% interval."""

    per_hour: float
    half_width: float


@dataclass
class MemorySlope:
    """Means over equal numbers of samples; when there are too many, neighbours are merged."""

    _t_s: list[float] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _samples_per_block: int = 1
    _open: list[tuple[float, float]] = field(default_factory=list)

    def add(self, t_s: float, value: float) -> None:
        """Add one sample."""
        self._open.append((t_s, value))
        if len(self._open) < self._samples_per_block:
            return
        t_mean_s, mean = np.mean(self._open, axis=0).tolist()
        self._open.clear()
        self._t_s.append(t_mean_s)
        self._values.append(mean)
        if len(self._t_s) == _BLOCKS_MAX:
            self._t_s = np.reshape(self._t_s, (-1, 2)).mean(axis=1).tolist()
            self._values = np.reshape(self._values, (-1, 2)).mean(axis=1).tolist()
            self._samples_per_block *= 2

    def fit(self) -> Slope | None:
        """Fit a least-squares line, its interval widened for autocorrelation; None if too few."""
        count = len(self._t_s)
        if count < _BLOCKS_MIN:
            return None
        t_h = np.array(self._t_s) / _HOUR_S
        x, y = t_h - t_h.mean(), np.array(self._values) - np.mean(self._values)
        spread = float(x @ x)
        slope = float(x @ y) / spread
        residuals = y - slope * x
        error = math.sqrt(float(residuals @ residuals) / (count - 2) / spread)
        phi = autocorrelation(residuals, fitted=2, most=_PHI_MAX)
        error *= math.sqrt((1.0 + phi) / (1.0 - phi))
        return Slope(slope, t_quantile(0.975, count - 2) * error)
