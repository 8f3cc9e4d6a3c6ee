"""How fast a count that only grows has grown for each hour, with an honest interval."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.findings import Rate
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.student import t_quantile

_PIECES = 12
_FEWEST_PIECES = 4


def rate_per_hour(t_s: FloatArray, value: FloatArray, unit: str) -> Rate | None:
    """The mean rate, and how well the rates of equal pieces of the time agree on it (95 %).

    None for samples too few to be cut into pieces.
    """
    pieces = min(_PIECES, t_s.size // 2)
    if pieces < _FEWEST_PIECES or t_s[-1] <= t_s[0]:
        return None
    edges = np.linspace(float(t_s[0]), float(t_s[-1]), pieces + 1)
    rates = np.diff(np.interp(edges, t_s, value)) / np.diff(edges) * 3600.0
    mean = float(rates.mean())
    error = float(np.std(rates, ddof=1)) / np.sqrt(pieces)
    half = float(t_quantile(0.975, pieces - 1) * error)
    lowest = 0.0 if np.all(np.diff(value) >= 0) else -np.inf
    return Rate(mean, max(mean - half, lowest), mean + half, unit, "h")
