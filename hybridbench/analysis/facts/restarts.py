"""Find restarts of the process behind a recorded series, from other columns of the recording.

A process id, a counter or a clock that starts again is a restart; a fall of memory may be one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridbench.analysis.record import FloatArray

_LEVEL_SAMPLES = 5
_FALLS_TO = 0.5  # share of the previous value
_BELOW_USUAL = 0.6  # share of the usual value
_NEAR = 5  # samples; falls closer together than this count as one
_SWAPPED = 0.5  # minimum share of a fall that went to swap


@dataclass(frozen=True)
class Falls:
    """Times of certain restarts, and of falls of a level that may be restarts.

    A possible restart may be part of a sawtooth.  A restart is certain only if an id, a counter
    or a clock also started again.
    """

    certain_s: tuple[float, ...] = ()
    possible_s: tuple[float, ...] = ()


def counter_resets(t_s: FloatArray, value: FloatArray) -> tuple[float, ...]:
    """Return the times at which a cumulative counter fell: a new process counts from zero."""
    fell = np.flatnonzero(np.diff(value) < -0.1 * np.abs(value[:-1])) + 1
    return tuple(t_s[fell].tolist())


def changes(t_s: FloatArray, value: FloatArray) -> tuple[float, ...]:
    """Return the times at which a value that identifies a process (its id) changed."""
    return tuple(t_s[np.flatnonzero(np.diff(value) != 0) + 1].tolist())


def level_falls(
    t_s: FloatArray, value: FloatArray, known_s: Sequence[float], *, counted: bool
) -> Falls:
    """Find where a level of memory fell to a fraction of its previous value.

    Args:
        known_s: known restart times; nearby falls are attributed to them.
        counted: whether a process id or a counter would have shown a restart; if so, falls that it
            does not confirm are ignored.
    """
    if t_s.size < 4 * _LEVEL_SAMPLES or not np.any(value > 0):
        return Falls(tuple(known_s))
    usual_s = float(np.median(np.diff(t_s)))
    possible: list[float] = []
    begin, last = 0, -_NEAR
    for i in range(_LEVEL_SAMPLES, t_s.size - 1):
        if not _falls(value, begin, i) or i - last < _NEAR:
            continue
        last = begin = i
        if not any(abs(t_s[i] - known) <= _NEAR * usual_s for known in known_s):
            possible.append(float(t_s[i]))
    return Falls(tuple(sorted(known_s)), () if counted else tuple(possible))


def swapped_out(t_s: FloatArray, value: FloatArray, swap: FloatArray, falls: Falls) -> Falls:
    """Drop from ``falls`` those that match a simultaneous rise of ``swap``."""

    def moved(at_s: float) -> bool:
        i = int(np.searchsorted(t_s, at_s))
        around = slice(max(0, i - _LEVEL_SAMPLES), i + _LEVEL_SAMPLES)
        fell, rose = np.ptp(value[around]), np.ptp(swap[around])
        return bool(rose >= _SWAPPED * fell)

    return replace(falls, possible_s=tuple(at for at in falls.possible_s if not moved(at)))


def longest_stretch(t_s: FloatArray, starts_s: Sequence[float]) -> tuple[float, float]:
    """Return the first and last time of the longest stretch without a restart."""
    edges = sorted({float(t_s[0]), *(s for s in starts_s if t_s[0] < s <= t_s[-1])})
    ends = [*(float(t_s[np.searchsorted(t_s, edge) - 1]) for edge in edges[1:]), float(t_s[-1])]
    return max(zip(edges, ends, strict=True), key=lambda stretch: stretch[1] - stretch[0])


def _falls(value: FloatArray, begin: int, i: int) -> bool:
    """Return whether the level at ``i`` is a fraction of the previous and of the usual level."""
    if value[i] >= _FALLS_TO * value[i - 1] and value[i] >= _FALLS_TO * value[i - 2]:
        return False
    recent = float(np.median(value[max(begin, i - _LEVEL_SAMPLES) : i]))
    usual = float(np.median(value[begin:i]))
    after = float(np.median(value[i : i + _LEVEL_SAMPLES]))
    return (
        value[i] < _FALLS_TO * recent
        and value[i] < _BELOW_USUAL * usual
        and (after < _BELOW_USUAL * recent)
    )
