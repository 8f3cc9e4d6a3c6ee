"""Detect a swing of fewer than two cycles, such as a daily load cycle in a run of 36 hours.

No sine can be fitted to it, and a bent or saturating trend may fit a part of it: a rise at the end
looks like growth, and a fall at the end looks like no growth.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.blocks import Blocks

_FEWEST_BLOCKS = 8  # times the width of the moving average
_SD_OF_MAD = 1.5
_ABOVE_NOISE = 8.0  # standard deviations
# Shares of the last rise that count as its foot and its top, and the least duration of the earlier
# rise and fall relative to the last rise.
_FOOT, _TOP = 0.1, 0.8
_AS_SLOW = 0.5
# Least height of a peak, above the higher of the two lows, as a share of the range; and least range
# of the later half as a share of that height.  If that range is smaller, the level has settled.
_PEAK, _STILL_MOVES = 0.15, 0.5
# A peak shorter than ``_LASTS``, a share of the window, is a spike.  More than ``_MOST_LEGS`` rises
# and falls of half the peak's height are several cycles.
_LASTS, _MOST_LEGS = 0.1, 4


def rises_again(blocks: Blocks) -> bool:
    """Whether memory rose as high and as slowly once before, and all of that was freed.

    Then the rise at the end may belong to the second cycle.  After a short burst, or memory held
    only during a start, the later rise is far slower.
    """
    level = _level(blocks)
    if level is None:
        return False
    foot, top = float(level.min()), float(level[-_width(blocks) :].mean())
    noise = float(np.median(np.abs(np.diff(blocks.value))))
    if top - foot < _ABOVE_NOISE * noise:
        return False
    low, high = (foot + share * (top - foot) for share in (_FOOT, _TOP))
    marks = [(i, bool(v >= high)) for i, v in enumerate(level) if v >= high or v <= low]
    turns = [i for (_, before), (i, now) in pairwise(marks) if before != now]
    # High, low, high; the series may also begin low.
    if not marks[-1][1] or len(turns) not in (2, 3):
        return False
    fell, rose = turns[-2:]
    began = max((i for i, is_high in marks if i < turns[0] and not is_high), default=0)
    left = max(i for i, is_high in marks if not is_high)
    return fell - began >= _AS_SLOW * (rose - left)


def growth_of_lows(blocks: Blocks) -> float:
    """Return the growth over the window at the pace from the low before a peak to the low after it.

    The peak with the fastest growth counts.  Return 0 if there is no peak, if the level has
    settled, or if there are several cycles.
    """
    level = _level(blocks)
    if level is None:
        return 0.0
    width = _width(blocks)
    noise = _SD_OF_MAD * float(np.median(np.abs(blocks.value - level))) / np.sqrt(width)
    least = max(_ABOVE_NOISE * noise, _PEAK * float(np.ptp(level)))
    moves = float(np.ptp(level[level.size // 2 :]))
    paces = [0.0]
    for peak in range(1, level.size - 1):
        before = int(level[:peak].argmin())
        after = peak + int(level[peak:].argmin())
        rise = level[after] - level[before]
        height = level[peak] - max(level[before], level[after])
        if (
            height >= least > 0.0
            and moves >= _STILL_MOVES * height
            and _lasts(level, peak, level[peak] - 0.5 * height)
            and _legs(level, 0.5 * height) <= _MOST_LEGS
        ):
            paces.append(float(rise / (blocks.t_s[after] - blocks.t_s[before])))
    return max(paces) * (blocks.end_s - blocks.start_s)


def _lasts(level: FloatArray, peak: int, least: float) -> bool:
    """Whether the level stays above ``least`` around the peak, longer than a spike does."""
    # At the resolution of a float, ``least`` may be one of the lows.
    low = np.flatnonzero(level <= least)
    start, end = low[low < peak], low[low > peak]
    return bool(end[0] - start[-1] > _LASTS * level.size)


def _legs(level: FloatArray, least: float) -> int:
    """Count the level's rises and falls of at least ``least``."""
    legs, lowest, highest, falling = 0, level[0], level[0], None
    for value in level:
        lowest, highest = min(lowest, value), max(highest, value)
        if falling is not True and highest - value >= least:
            legs, falling, lowest = legs + 1, True, value
        elif falling is not False and value - lowest >= least:
            legs, falling, highest = legs + 1, False, value
    return legs


def _width(blocks: Blocks) -> int:
    return max(3, len(blocks) // 20) | 1


def _level(blocks: Blocks) -> FloatArray | None:
    """Return the moving average of the blocks; None if there are too few of them."""
    width = _width(blocks)
    if len(blocks) < _FEWEST_BLOCKS * width:
        return None
    padded = np.pad(blocks.value, width // 2, mode="edge")
    level: FloatArray = np.convolve(padded, np.full(width, 1.0 / width), mode="valid")
    return level
