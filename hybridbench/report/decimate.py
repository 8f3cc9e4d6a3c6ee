"""Reduce points for display, but keep every spike: each bucket keeps its minimum and maximum."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray

POINTS_MAX: Final = 2000
_WINDOWS_MAX: Final = 400

# A pause of this many times the usual interval is drawn as a gap.
_GAP_FACTOR: Final = 5.0
_GAPS_MAX: Final = 50


def gaps(t_s: FloatArray) -> NDArray[np.intp]:
    """Return positions ``i`` with a gap between ``t_s[i]`` and ``t_s[i + 1]``; the largest 50."""
    if t_s.size < 3:
        return np.zeros(0, np.intp)
    step = np.diff(t_s)
    holes = np.flatnonzero(step > _GAP_FACTOR * np.median(step))
    if holes.size > _GAPS_MAX:
        holes = np.sort(holes[np.argsort(step[holes])[-_GAPS_MAX:]])
    return holes


def kept(t_s: FloatArray, values: FloatArray, limit: int = POINTS_MAX) -> NDArray[np.intp]:
    """Return rising positions to draw, at most ``limit`` (not below 2 * (gaps + rows + 1)).

    Args:
        t_s: [N], rising.
        values: [N] or [K, N]; with K rows the extremes of every row stay at shared positions.
        limit: maximum number of positions.
    """
    rows = np.atleast_2d(values)
    size = t_s.size
    if size <= limit:
        return np.arange(size)
    edges = np.array([0, size - 1])
    holes = gaps(t_s)
    fixed = np.concatenate([edges, holes, holes + 1])
    bucket_count = max(1, (limit - fixed.size) // (2 * rows.shape[0]))
    # Equal counts per bucket; the last one is padded with its own last value.
    width = -(-size // bucket_count)
    padding = width * bucket_count - size
    padded = np.pad(rows, ((0, 0), (0, padding)), mode="edge")
    buckets = padded.reshape(rows.shape[0], bucket_count, width)
    start = np.arange(bucket_count) * width
    extremes = np.concatenate([buckets.argmin(axis=2) + start, buckets.argmax(axis=2) + start])
    return np.unique(np.minimum(np.concatenate([fixed, extremes.ravel()]), size - 1))


def per_minute(t_s: FloatArray, count: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Convert a cumulative counter to events per minute, averaged over at most 400 windows.

    A counter that falls (the worker was restarted) contributes nothing to that window.
    """
    if t_s.size < 2:
        return np.zeros(0), np.zeros(0)
    # At least three samples if there are enough: the rate over one is mostly noise.
    every = max(3 if t_s.size > 30 else 1, -(-(t_s.size - 1) // _WINDOWS_MAX))
    picked = np.arange(0, t_s.size, every)
    # Samples left at the end join the last window: a short one would fluctuate.
    picked[-1] = t_s.size - 1
    t, c = t_s[picked], count[picked]
    rise = np.maximum(np.diff(c), 0.0)
    return t[1:], 60.0 * rise / np.diff(t)
