"""Put foreign timestamps in rising order: handle duplicates, backward steps and restarts.

Data before and after a restart are two series; nothing may be fitted across a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray

_DROPPED_MAX = 0.05  # share of rows that may go back in time and be dropped
_UNSORTED_MIN = 0.1  # share of rows that go back, with no two times equal: the file is unsorted
_RESTARTS_MAX = 200
_DOUBLES_MAX, _DOUBLES_LEAST = 0.05, 3
_SUMMER_TIME_S = 3600.0
_LEVEL_SAMPLES = 5
_FALLS_TO = 0.5  # of the previous value
_BELOW_USUAL = 0.6  # of the usual value
_NEAR = 5  # samples: falls closer together than this count as one
_SWAPPED = 0.5  # least share of a fall that went to swap


class TimelineError(ValueError):
    """The times of a file cannot be ordered; the message says what to do."""


@dataclass(frozen=True)
class Timeline:
    """Which rows to use, in which order, at which rising times; ``starts_s`` are restarts."""

    rows: NDArray[np.intp]
    t_s: FloatArray
    starts_s: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Falls:
    """Times at which a level fell to a fraction: ``certain`` restarts, and possible ones.

    A possible restart may be part of a sawtooth.  A restart is certain only if an id, a counter
    or a clock also started again.
    """

    certain_s: tuple[float, ...] = ()
    possible_s: tuple[float, ...] = ()


def make_timeline(t_s: FloatArray, *, absolute: bool = False) -> Timeline:
    """Order the rows of a file by time; ``absolute`` means epoch times.

    Raises:
        TimelineError: times repeat or go back, as those of several processes do.
    """
    rows = np.arange(t_s.size)
    notes: list[str] = []
    if t_s.size > 2 and np.all(np.diff(t_s) <= 0) and t_s[0] > t_s[-1]:
        rows, notes = rows[::-1], ["the file runs backwards, newest first: read from its end"]
    t = t_s[rows]
    starts: tuple[float, ...] = ()
    behind = t < np.maximum.accumulate(t)
    if behind.any():
        if np.mean(np.diff(t) < 0) > _UNSORTED_MIN and np.unique(t).size == t.size:
            order = np.argsort(t)
            rows, t = rows[order], t[order]
            notes.append("the rows were not in the order of their times: sorted")
        elif behind.mean() <= _DROPPED_MAX:
            rows, t = rows[~behind], t[~behind]
            notes.append(f"{_times(int(behind.sum()), 'row')} went back in time: left out")
        elif absolute and not _is_clock_set_back(t):
            order, whole = _in_blocks(t)
            rows, t = rows[order], whole
            notes.append("recordings that follow each other were not in order: sorted")
        else:
            t, starts = _joined(t)
            notes.append(
                f"the times go back {_times(len(starts), 'time')}: a new start each, nothing is "
                "fitted across"
            )
    last_of_its_time = np.concatenate([np.diff(t) > 0, [True]]) if t.size else np.ones(0, bool)
    doubles = int((~last_of_its_time).sum())
    if doubles > max(_DOUBLES_LEAST, _DOUBLES_MAX * t.size):
        raise TimelineError(
            f"{doubles} of {t.size} rows share their time with another: several processes in one "
            "file? keep the rows of one, or add a column that says whose row it is"
        )
    if doubles:
        notes.append(f"{_times(doubles, 'row')} shared a time with the next: the last one counts")
    return Timeline(rows[last_of_its_time], t[last_of_its_time], starts, tuple(notes))


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
        known_s: restart times known otherwise; nearby falls are attributed to them.
        counted: whether a process id or a counter would have shown a restart; then a fall that it
            does not confirm is ignored.
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
    """Return whether the level at ``i`` is a fraction of the last and of the usual one."""
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


def _is_clock_set_back(t: FloatArray) -> bool:
    """Return whether times go back once, by about an hour, as at the end of summer time."""
    steps = np.diff(t)
    back = steps[steps < 0]
    return back.size == 1 and abs(back[0] + _SUMMER_TIME_S) <= 2 * float(np.median(np.abs(steps)))


def _in_blocks(t: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """Order whole recordings in a file by time.

    Raises:
        TimelineError: two of them overlap in time.
    """
    edges = np.concatenate([[0], np.flatnonzero(np.diff(t) < 0) + 1, [t.size]])
    blocks = sorted((np.arange(a, b) for a, b in pairwise(edges)), key=lambda rows: t[rows[0]])
    if any(t[after[0]] < t[before[-1]] for before, after in pairwise(blocks)):
        raise TimelineError(
            f"the times go back {_times(len(blocks) - 1, 'time')} and overlap: several "
            "processes in one file? keep the rows of one, or add a column that says whose row it is"
        )
    order = np.concatenate(blocks)
    return order, t[order]


def _joined(t: FloatArray) -> tuple[FloatArray, tuple[float, ...]]:
    """Join stretches end to end where each starts at an earlier time than the one before."""
    steps = np.diff(t)
    back = np.flatnonzero(steps < 0) + 1
    if back.size > _RESTARTS_MAX:
        raise TimelineError(
            f"the times go back {back.size} times: sort the rows by time, or keep the rows of one "
            "process"
        )
    forward = steps[steps > 0]
    usual = float(np.median(forward)) if forward.size else 1.0
    shift = np.zeros(t.size)
    shift[back] = usual - steps[back - 1]
    whole = t + np.cumsum(shift)
    return whole, tuple(whole[back].tolist())


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
