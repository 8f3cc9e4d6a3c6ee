"""Sawteeth longer than a block: find the falls, and fit the troughs instead of the ramps.

A full collection frees memory at once; growth beneath the sawtooth shows in the troughs
(detection.md, "Sawteeth").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.foundation.metrics import COLLECTIONS

# Chosen on the curve corpus, seeds 77000 to 77015 and 7700000 on (detection.md, "How fresh
# these figures are").
MIN_TROUGHS = 4

_MAX_POINTS = 4000
_FALL_WITHIN = 3  # samples that one fall may take
_FALL_NOISE = 8.0  # robust standard deviations of a sample-to-sample difference
_LIKE_SIZE = 0.4  # share of the largest fall, from which a fall counts
# A smaller fall counts if its trough is this close to the floor, in units of a trough's typical
# deviation from its neighbours.
_SAME_FLOOR = 2.5
_NEAR_FLOOR = 0.03  # the same, as a share of the typical fall
_LEAST_OF_TYPICAL = 0.15  # share of the typical fall; a smaller fall may be anything
_SUDDEN = 0.5  # a rise of this share of the fall in one step is a burst of load, not a ramp
# Share of all growth so far: a fall at least this deep shows that growth was only stored up, but a
# far deeper one freed something else.
_GIVES_BACK, _GIVES_MORE = 0.5, 2.0
_OUTGROWS = 1.5  # times the largest fall; a ramp would have ended before rising so far
_OUTGROWS_FROM = 0.25  # share of the window; an earlier rise may be a fill
_LINE_POINTS = 8  # points of a ramp needed to draw a line through it
_LINE_MISS = 4.0  # standard deviations between the line's trough and the lowest sample
_SCATTERS_MORE = 1.5
_SKIP = 0.12  # share of the window in which a trough may still belong to the warm-up

FEWEST_FLOORS = 4  # needed before their rise is called a leak
_LEAST_ERROR_BYTES = 4096.0  # a heap scan estimates object sizes and misses some bytes of each


@dataclass(frozen=True)
class Sawtooth:
    """The falls of a series and the trough after each."""

    fall_s: FloatArray
    fall: FloatArray
    trough_s: FloatArray
    trough: FloatArray
    gives_back: bool  # one fall freed most of the growth up to it, but not far more
    outgrown: bool  # memory rose by far more than any fall freed, without a fill in that rise
    jitter: float  # how far off a sampled trough may be: the climb between two samples


def find_sawtooth(t_s: FloatArray, value: FloatArray) -> Sawtooth | None:
    """Return the sawtooth of a series, or None if no fall exceeds the noise."""
    if t_s.size < 4 * _FALL_WITHIN:
        return None
    t, raw = _thin(t_s, value)
    y = _without_spikes(raw)
    step = np.diff(raw)
    noise = 1.4826 * float(np.median(np.abs(step - np.median(step))))
    # If most samples are equal, the median says nothing about the noise; use the quietest 90%.
    noise = max(noise, float(np.quantile(np.abs(step), 0.9)) / 3.0)
    after = np.lib.stride_tricks.sliding_window_view(y[1:], _FALL_WITHIN).min(axis=1)
    fall = y[: after.size] - after
    every = _peaks(fall, max(_FALL_NOISE * noise, 1e-9 * float(np.abs(y).max()), 1e-300))
    at = _alike(y, fall, every) if every.size else every
    at = at[[not _sudden_rise(y, int(i), float(fall[i])) for i in at]] if at.size else at
    if not at.size:
        return None
    bottoms = _bottoms(y, at)
    troughs = _troughs(t, y, bottoms, at)
    low_so_far = np.minimum.accumulate(y)
    rise_so_far = np.array([y[max(0, i - 2) : i + 1].max() - low_so_far[i] for i in at])
    stored_up = (fall[at] >= _GIVES_BACK * rise_so_far) & (fall[at] <= _GIVES_MORE * rise_so_far)
    gives_back = bool(np.any(stored_up))
    points_each = float(np.median(np.diff(at))) if at.size > 1 else float(y.size)
    jitter = float(np.median(fall[at])) / points_each
    low = min(float(troughs[-1]), float(y[int(_OUTGROWS_FROM * y.size) :].min()))
    risen = float(np.median(y[-_FALL_WITHIN:])) - low
    outgrown = risen >= _OUTGROWS * float(fall[at].max())
    return Sawtooth(t[at], fall[at], t[bottoms], troughs, gives_back, outgrown, jitter)


def _alike(y: FloatArray, fall: FloatArray, every: NDArray[np.int64]) -> NDArray[np.int64]:
    """Select the falls that end ramps: those of similar size, and smaller ones to the same floor.

    An early collection frees little but leaves the same floor; a line drawn through it would miss
    the start of its ramp.
    """
    large = fall[every] >= _LIKE_SIZE * fall[every].max()
    at: NDArray[np.int64] = every[large]
    if at.size < MIN_TROUGHS or at.size == every.size:
        return at
    low = _bottoms(y, at)
    between = np.interp(low[1:-1], low[:-2], y[low[:-2]]) + np.interp(
        low[1:-1], low[2:], y[low[2:]]
    )
    miss = float(np.median(np.abs(y[low[1:-1]] - 0.5 * between)))
    floor = np.interp(_bottoms(y, every), low, y[low])
    typical = float(np.median(fall[at]))
    near = max(_SAME_FLOOR * miss, _NEAR_FLOOR * typical)
    same = np.abs(y[_bottoms(y, every)] - floor) <= near
    counts = fall[every] >= _LEAST_OF_TYPICAL * typical
    chosen: NDArray[np.int64] = every[large | (same & counts)]
    return chosen


def usable_troughs(
    sawtooth: Sawtooth, start_s: float, end_s: float
) -> tuple[FloatArray, FloatArray]:
    """Return times and values of the troughs after the first 12% of the window."""
    keep = sawtooth.trough_s >= start_s + _SKIP * (end_s - start_s)
    return sawtooth.trough_s[keep], sawtooth.trough[keep]


def _thin(t_s: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Reduce the series to at most 4,000 points."""
    per_point = -(-t_s.size // _MAX_POINTS)
    points = t_s.size // per_point
    t = t_s[: points * per_point].reshape(points, per_point).mean(axis=1)
    y: FloatArray = np.median(value[: points * per_point].reshape(points, per_point), axis=1)
    return t, y


def _without_spikes(y: FloatArray) -> FloatArray:
    inner = np.median(np.lib.stride_tricks.sliding_window_view(y, 3), axis=1)
    return np.concatenate([y[:1], inner, y[-1:]])


def _peaks(fall: FloatArray, threshold: float) -> NDArray[np.int64]:
    """Return the deepest index in each run of neighbouring falls above ``threshold``."""
    above = np.flatnonzero(fall > threshold)
    if not above.size:
        return above
    runs = np.split(above, np.flatnonzero(np.diff(above) > _FALL_WITHIN) + 1)
    return np.array([run[np.argmax(fall[run])] for run in runs], dtype=np.int64)


def _sudden_rise(y: FloatArray, at: int, fall: float) -> bool:
    """Whether the level before the fall at ``at`` was reached in one jump (a burst of load)."""
    before = y[: at + 1]
    if before.size <= _FALL_WITHIN:
        return False
    # Only the rise before this fall counts: from the last point as low as the bottom of the fall.
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


def _troughs(
    t: FloatArray, y: FloatArray, bottoms: NDArray[np.int64], at: NDArray[np.int64]
) -> FloatArray:
    """Return where the line through each ramp starts, which is less noisy than its lowest sample.

    If a ramp is bent or too short for a line, its lowest sample is returned.
    """
    troughs = y[bottoms].copy()
    ends = [*at[1:].tolist(), y.size - 1]
    lines = [
        _Line.through(t[start : end + 1], y[start : end + 1], place)
        for place, (start, end) in enumerate(zip(bottoms.tolist(), ends, strict=True))
        if end - start + 1 >= _LINE_POINTS
    ]
    if not lines:
        return troughs
    typical = float(np.median([line.scatter for line in lines]))
    lines = [_straight(t, y, int(bottoms[line.place]), line, typical) for line in lines]
    for line in lines:
        trough = line.mean - line.climb * line.reach_s
        if abs(trough - troughs[line.place]) <= _LINE_MISS * line.scatter:
            troughs[line.place] = trough
    return troughs


def _straight(t: FloatArray, y: FloatArray, start: int, line: _Line, typical: float) -> _Line:
    """Shorten a ramp until it scatters about its line no more than other ramps do.

    More scatter indicates a bend, or a fall too small to be detected.
    """
    points = int(np.searchsorted(t, t[start] + 2.0 * line.reach_s, side="right")) - start
    while line.scatter > _SCATTERS_MORE * typical and points >= 2 * _LINE_POINTS:
        points //= 2
        end = start + points
        line = _Line.through(t[start:end], y[start:end], line.place)
    return line


@dataclass(frozen=True)
class _Line:
    """The straight line through one ramp."""

    place: int  # which ramp
    mean: float
    reach_s: float  # from the trough to the middle
    climb: float  # per second
    scatter: float  # standard deviation of the samples about the line

    @staticmethod
    def through(t: FloatArray, y: FloatArray, place: int) -> _Line:
        middle, mean = float(t.mean()), float(y.mean())
        x, v = t - middle, y - mean
        spread = float(x @ x)
        climb = float(x @ v) / spread
        left = v - climb * x
        return _Line(place, mean, middle - float(t[0]), climb, float(np.std(left)))


@dataclass(frozen=True)
class Floors:
    """The first value after each full collection, and the line through these floors.

    ``slope_per_s`` has the 95% interval ``lower`` to ``upper``; ``surely`` is its one-sided 99.9%
    bound.  With only two floors there is no residual, so their difference counts as noise.
    """

    t_s: FloatArray
    value: FloatArray
    slope_per_s: float
    lower: float
    upper: float
    surely: float

    def __len__(self) -> int:
        return int(self.t_s.size)


def floors_after_collections(
    record: RunRecord, window: Window, t_s: FloatArray, value: FloatArray
) -> Floors | None:
    """Return the floors of samples ``value`` at ``t_s``; None with fewer than two."""
    counter = record.series.get(COLLECTIONS)
    if counter is None or len(counter) < 2:
        return None
    inside = (counter.t_s > window.start_s) & (counter.t_s <= window.end_s)
    rose = np.diff(counter.value, prepend=counter.value[0]) > 0
    times = counter.t_s[rose & inside]
    first = np.searchsorted(t_s, times)
    # Two collections between two heap scans share one floor.
    first = np.unique(first[first < t_s.size])
    if first.size < 2:
        return None
    return _floor_line(t_s[first], value[first])


def _floor_line(t: FloatArray, value: FloatArray) -> Floors:
    centred = t - t.mean()
    energy = float(centred @ centred)
    slope = float(centred @ value) / energy
    freedom = max(t.size - 2, 1)
    left = value - value.mean() - (slope * centred if t.size > 2 else 0.0)
    spread = max(float(np.sqrt(left @ left / freedom)), _LEAST_ERROR_BYTES)
    error = spread / float(np.sqrt(energy))
    half = t_quantile(0.975, freedom) * error
    surely = slope - t_quantile(0.999, freedom) * error
    return Floors(t, value, slope, slope - half, slope + half, surely)
