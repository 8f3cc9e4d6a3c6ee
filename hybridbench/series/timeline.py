"""Put foreign timestamps in rising order: handle duplicates, backward steps and restarts.

Data before and after a restart are two series; nothing may be fitted across a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.findings import words
from hybridbench.analysis.record import FloatArray
from hybridbench.foundation.foreign import WALL_S_MAX
from hybridbench.series.source import Source

_DROPPED_MAX = 0.05  # share of rows that may go back in time and be dropped
_UNSORTED_MIN = 0.1  # if more of the rows go back and few times are equal: an unsorted file
_RESTARTS_MAX = 200
_DOUBLES_MAX, _DOUBLES_LEAST = 0.05, 3
_SUMMER_TIME_S = 3600.0


@dataclass(frozen=True)
class Timeline:
    """Which rows to use, in which order, at which rising times; ``starts_s`` are restarts."""

    rows: NDArray[np.intp]
    t_s: FloatArray
    starts_s: tuple[float, ...] = ()


def make_timeline(t_s: FloatArray, source: Source, *, absolute: bool = False) -> Timeline:
    """Order the rows of a file by time; ``absolute`` means epoch times.

    Raises:
        ConfigError: times repeat or go back, as those of several processes do, or are too far off.
    """
    far = t_s[~(np.abs(t_s) <= WALL_S_MAX)]
    if far.size:
        raise source.wrong(f"has a time of {far[0]:g} s, which is not a time; remove that row.")
    rows, note = np.arange(t_s.size), source.notes.append
    if t_s.size > 2 and np.all(np.diff(t_s) <= 0) and t_s[0] > t_s[-1]:
        rows = rows[::-1]
        note("the file runs backwards, newest first: read from its end")
    t = t_s[rows]
    starts: tuple[float, ...] = ()
    behind = t < np.maximum.accumulate(t)
    few = max(_DOUBLES_LEAST, _DOUBLES_MAX * t.size)
    if behind.any():
        if np.mean(np.diff(t) < 0) > _UNSORTED_MIN and t.size - np.unique(t).size <= few:
            order = np.argsort(t, kind="stable")
            rows, t = rows[order], t[order]
            note("the rows were not in the order of their times: sorted")
        elif behind.mean() <= _DROPPED_MAX:
            rows, t = rows[~behind], t[~behind]
            note(f"{words.times(int(behind.sum()), 'row')} went back in time: left out")
        elif absolute and not _is_clock_set_back(t):
            order = _in_blocks(t, source)
            rows, t = rows[order], t[order]
            note("recordings that follow each other were not in order: sorted")
        else:
            t, starts = _joined(t, source)
            note(
                f"the times go back {words.times(len(starts), 'time')}: a new start each, nothing "
                "is fitted across"
            )
    last_of_its_time = np.concatenate([np.diff(t) > 0, [True]]) if t.size else np.ones(0, bool)
    doubles = int((~last_of_its_time).sum())
    if doubles > few:
        raise source.wrong(
            f"{doubles} of {t.size} rows share their time with another: several processes in one "
            "file? keep the rows of one, or add a column that says whose row it is."
        )
    if doubles:
        note(f"{words.times(doubles, 'row')} shared a time with the next: the last one counts")
    return Timeline(rows[last_of_its_time], t[last_of_its_time], starts)


def _is_clock_set_back(t: FloatArray) -> bool:
    """Return whether times go back once, by about an hour, as at the end of summer time."""
    steps = np.diff(t)
    back = steps[steps < 0]
    return back.size == 1 and abs(back[0] + _SUMMER_TIME_S) <= 2 * float(np.median(np.abs(steps)))


def _in_blocks(t: FloatArray, source: Source) -> NDArray[np.intp]:
    """Order whole recordings in a file by time.

    Raises:
        ConfigError: two of them overlap in time.
    """
    order = np.argsort(t, kind="stable")
    back = int((np.diff(t) < 0).sum())
    # Recordings that do not overlap stay whole.
    if (np.diff(order) != 1).sum() > back:
        raise source.wrong(
            f"the times go back {words.times(back, 'time')} and overlap: several processes in one "
            "file? keep the rows of one, or add a column that says whose row it is."
        )
    return order


def _joined(t: FloatArray, source: Source) -> tuple[FloatArray, tuple[float, ...]]:
    """Join recordings end to end, where the time goes back; return the times and the joints."""
    steps = np.diff(t)
    back = np.flatnonzero(steps < 0) + 1
    if back.size > _RESTARTS_MAX:
        raise source.wrong(
            f"the times go back {back.size} times: sort the rows by time, or keep the rows of one "
            "process."
        )
    forward = steps[steps > 0]
    usual = float(np.median(forward)) if forward.size else 1.0
    shift = np.zeros(t.size)
    shift[back] = usual - steps[back - 1]
    whole = t + np.cumsum(shift)
    return whole, tuple(whole[back].tolist())
