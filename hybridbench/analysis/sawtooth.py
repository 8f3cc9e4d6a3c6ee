"""Sawteeth longer than a block: find the falls, and fit the bottoms instead of the teeth.

A full collection gives memory back at once; what grows under it shows in the troughs (detection.md
4.2, step 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray

MIN_TROUGHS = 4

_MAX_POINTS = 4000
_FALL_WITHIN = 3  # samples that one fall may take
_FALL_NOISE = 8.0  # robust standard deviations of a sample-to-sample difference
_FALL_QUANTA = 2.5  # of what the values are rounded to: less is one sample on the edge of two
_LIKE_SIZE = 0.4  # of the largest fall
_SUDDEN = 0.5  # a rise of this share of the fall in one go is a burst of load, not a tooth
_GIVES_BACK = 0.5  # of all growth so far: one fall this deep says that growth was only stored up
_LINE_POINTS = 8  # of a tooth before a line is drawn through it
_LINE_MISS = 3.0  # standard deviations between the line's foot and the lowest sample
_SKIP = 0.12  # share of the window in which a trough may still be warm-up


@dataclass(frozen=True)
class Teeth:
    """The falls of a series and the trough after each."""

    fall_s: FloatArray
    fall: FloatArray
    trough_s: FloatArray
    trough: FloatArray
    gives_back: bool  # one fall returned most of the growth up to it
    jitter: float  # how far a trough may be missed by: what a tooth climbs between two samples


def find_teeth(t_s: FloatArray, value: FloatArray) -> Teeth | None:
    """The teeth of a series, or None where there is no fall that stands out of the noise."""
    t, raw = _thin(t_s, value)
    if raw.size < 4 * _FALL_WITHIN:
        return None
    y = _without_spikes(raw)
    step = np.diff(raw)
    noise = 1.4826 * float(np.median(np.abs(step - np.median(step))))
    # Where most samples tie, the median says nothing about the noise; the quiet nine tenths do.
    noise = max(noise, float(np.quantile(np.abs(step), 0.9)) / 3.0)
    after = np.lib.stride_tricks.sliding_window_view(y[1:], _FALL_WITHIN).min(axis=1)
    fall = y[: after.size] - after
    least = max(_FALL_NOISE * noise, _FALL_QUANTA * _quantum(step))
    at = _peaks(fall, max(least, 1e-9 * float(np.abs(y).max()), 1e-300))
    at = at[fall[at] >= _LIKE_SIZE * fall[at].max()] if at.size else at
    at = at[[not _sudden_rise(y, int(i), float(fall[i])) for i in at]] if at.size else at
    if not at.size:
        return None
    bottoms = _bottoms(y, at)
    troughs = _feet(t, y, bottoms, at)
    low_so_far = np.minimum.accumulate(y)
    rise_so_far = np.array([y[max(0, i - 2) : i + 1].max() - low_so_far[i] for i in at])
    gives_back = bool(np.any(fall[at] >= _GIVES_BACK * rise_so_far))
    points_each = float(np.median(np.diff(at))) if at.size > 1 else float(y.size)
    jitter = float(np.median(fall[at])) / points_each
    return Teeth(t[at], fall[at], t[bottoms], troughs, gives_back, jitter)


def usable_troughs(teeth: Teeth, start_s: float, end_s: float) -> tuple[FloatArray, FloatArray]:
    """Times and values of the troughs after the first 12 % of the window."""
    keep = teeth.trough_s >= start_s + _SKIP * (end_s - start_s)
    return teeth.trough_s[keep], teeth.trough[keep]


def _thin(t_s: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At most 4,000 points."""
    per_point = -(-t_s.size // _MAX_POINTS)
    points = t_s.size // per_point
    t = t_s[: points * per_point].reshape(points, per_point).mean(axis=1)
    y: FloatArray = np.median(value[: points * per_point].reshape(points, per_point), axis=1)
    return t, y


def _quantum(step: FloatArray) -> float:
    """What the values are rounded to, if most neighbours are equal; else 0."""
    moved = np.abs(step[step != 0])
    if not moved.size or 2 * moved.size > step.size:
        return 0.0
    return float(np.quantile(moved, 0.1))


def _without_spikes(y: FloatArray) -> FloatArray:
    inner = np.median(np.lib.stride_tricks.sliding_window_view(y, 3), axis=1)
    return np.concatenate([y[:1], inner, y[-1:]])


def _peaks(fall: FloatArray, threshold: float) -> NDArray[np.int64]:
    """One index for each run of neighbouring falls above ``threshold``: its deepest."""
    above = np.flatnonzero(fall > threshold)
    if not above.size:
        return above
    runs = np.split(above, np.flatnonzero(np.diff(above) > _FALL_WITHIN) + 1)
    return np.array([run[np.argmax(fall[run])] for run in runs], dtype=np.int64)


def _sudden_rise(y: FloatArray, at: int, fall: float) -> bool:
    """Whether the level that falls at ``at`` had been reached in one jump, as a burst of load
    does.
    """
    before = y[: at + 1]
    if before.size <= _FALL_WITHIN:
        return False
    # Only the rise that leads to this fall counts: from the last point as low as the fall's bottom.
    low = np.flatnonzero(before <= y[at] - 0.9 * fall)
    start = int(low[-1]) if low.size else 0
    climb = before[start:]
    if climb.size <= _FALL_WITHIN:
        return low.size > 0
    jump = climb[_FALL_WITHIN:] - climb[:-_FALL_WITHIN]
    slowest = (climb[-1] - climb[0]) * _FALL_WITHIN / climb.size
    return bool(float(jump.max()) > max(_SUDDEN * fall, 3.0 * float(slowest)))


def _bottoms(y: FloatArray, at: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array(
        [i + 1 + int(np.argmin(y[i + 1 : i + 2 + _FALL_WITHIN])) for i in at], dtype=np.int64
    )


def _feet(
    t: FloatArray, y: FloatArray, bottoms: NDArray[np.int64], at: NDArray[np.int64]
) -> FloatArray:
    """Where the line through each tooth starts: the trough, less the noise of one sample.

    A tooth too short for a line, or bent, keeps its lowest sample.
    """
    feet = y[bottoms].copy()
    ends = [*at[1:].tolist(), y.size - 1]
    for i, (start, end) in enumerate(zip(bottoms.tolist(), ends, strict=True)):
        if end - start + 1 < _LINE_POINTS:
            continue
        x = t[start : end + 1] - t[start]
        part = y[start : end + 1]
        slope, foot = np.polyfit(x, part, 1)
        scatter = float(np.std(part - slope * x - foot))
        if abs(foot - feet[i]) <= _LINE_MISS * scatter:
            feet[i] = foot
    return feet
