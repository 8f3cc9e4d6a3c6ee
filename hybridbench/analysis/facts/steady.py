"""Find when a watched target was steady: under load, and after its first fill.

A server may report it as a gauge; otherwise it is detected.  A first fill is fast growth that ends
in a knee.  Growth at a constant rate from the start may be a filling cache or a leak, which cannot
be distinguished; no steady state is detected then, and the run is judged without one.  The same
holds if no counter shows when work began, because program start looks like a fill.  A second,
slower fill looks like a leak after the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import MEMORY, STEADY, Check, spec_of

_REPORTED = f"gauge.{STEADY}"
_BLOCKS = 40
_FEWEST_PER_BLOCK = 3
# A fill's fastest growth is at least this many times the growth after it.
_KNEE = 4.0
# Growth of at most this share of the fill's fastest growth no longer belongs to the fill.
_OVER = 0.1
# Minimum rise of a fill, as a share of the level.
_LEAST_SHARE = 0.01
# The time after a fill must be this many times as long, to reveal a second, slower fill.
_TIMES_AS_LONG = 3.0
# So a run must be this many times as long as the fill.  In a longer run the blocks are longer too,
# and the end is found up to two blocks late.
_TIMES_IN_ALL = (1.0 + _TIMES_AS_LONG) / (1.0 - 2.0 * (1.0 + _TIMES_AS_LONG) / _BLOCKS)
# Significant growth, in units of the blocks' scatter.
_NOISE = 3.0


def reports_steady(record: RunRecord) -> bool:
    """Return whether the server has a gauge that reports whether it is steady."""
    return _REPORTED in record.series and len(record.series[_REPORTED]) > 0


@dataclass(frozen=True)
class FirstFill:
    """The first fill of a target.

    Attributes:
        end_s: when the last of its processes finished it.
        shown_s: when a longer run shows that no other fill follows.
        is_shown: whether this run lasted so long.
        is_most: whether it added at least as much memory as has been added since.  If not, it may
            have been a quick start, and what was added since may be the fill of a cache.
    """

    end_s: float
    shown_s: float
    is_shown: bool
    is_most: bool = True


def observed_steady(record: RunRecord, fill: FirstFill | None) -> float | None:
    """Return when the server was steady; None if it was not, or if that cannot be detected.

    If it has no gauge that reports it, this is when the last of its processes finished its first
    ``fill``.
    """
    if reports_steady(record):
        reported = record.series[_REPORTED]
        before = np.flatnonzero(~(reported.value > 0))
        first = int(before[-1]) + 1 if before.size else 0
        return float(reported.t_s[first]) if first < len(reported) else None
    return fill.end_s if fill is not None and fill.is_shown else None


def first_fill(record: RunRecord) -> FirstFill | None:
    """Return the fill of all processes; None if there was none, or if it cannot be detected."""
    begun_s = _load_begun_s(record)
    memories = [s for name, s in record.series.items() if unlabelled(name) == MEMORY]
    if begun_s is None or not memories:
        return None
    fills = [_fill(series, begun_s) for series in memories]
    known = [fill for fill in fills if fill is not None]
    if len(known) < len(fills) or max(fill.end_s for fill in known) <= begun_s:
        return None
    return FirstFill(
        end_s=max(fill.end_s for fill in known),
        shown_s=max(fill.shown_s for fill in known),
        is_shown=all(fill.is_shown for fill in known),
        is_most=all(fill.is_most for fill in known),
    )


def _load_begun_s(record: RunRecord) -> float | None:
    """Return the time of the last sample before any counter of work moved; None if none moved."""
    begun = []
    for name, series in record.series.items():
        spec = spec_of(name)
        counts = name in record.drivers.works or (spec is not None and spec.check is Check.DRIVER)
        if counts and len(series) >= 2:
            moved = np.flatnonzero(np.diff(series.value) > 0)
            begun += [float(series.t_s[moved[0]])] if moved.size else []
    return min(begun, default=None)


def _fill(series: Series, begun_s: float) -> FirstFill | None:
    """Return the fast growth after ``begun_s``, which is also its end if there was none.

    None if that cannot be decided: too few samples, or steady growth.
    """
    none = FirstFill(begun_s, begun_s, is_shown=True)
    keep = np.isfinite(series.value) & (series.t_s >= begun_s)
    t, value = series.t_s[keep], series.value[keep]
    blocks = min(_BLOCKS, t.size // _FEWEST_PER_BLOCK)
    if blocks < _BLOCKS // 2:
        return None
    edges = np.linspace(float(t[0]), float(t[-1]), blocks + 1)
    level = _levels(t, value, edges)
    rise = np.diff(level)
    late = rise[rise.size // 2 :]
    after = float(np.median(late))
    scatter = 1.4826 * float(np.median(np.abs(late - after)))
    most = float(rise.max())
    if most <= _KNEE * max(after, scatter):
        return none if after <= scatter else None  # neither fills nor grows, or grows steadily
    fast = np.flatnonzero(rise > after + max(_OVER * (most - after), _NOISE * scatter))
    full = float(level[fast[-1] + 1])
    if full - level[0] < _LEAST_SHARE * abs(level[0]):
        return none
    end_s = float(edges[fast[-1] + 2])
    begun_s, last_s = float(edges[0]), float(edges[-1])
    lasted_s = end_s - begun_s
    is_shown = last_s - end_s >= _TIMES_AS_LONG * lasted_s
    is_most = full - level[0] >= level[-1] - full
    return FirstFill(end_s, begun_s + _TIMES_IN_ALL * lasted_s, is_shown, bool(is_most))


def outlasts_fill(record: RunRecord, full_s: float) -> bool:
    """Return whether a run lasted long enough after a fill, over at ``full_s``, to show another."""
    begun_s = _load_begun_s(record)
    last_s = record.span_s[1]
    return begun_s is None or last_s - full_s >= _TIMES_AS_LONG * (full_s - begun_s)


def _levels(t: FloatArray, value: FloatArray, edges: FloatArray) -> FloatArray:
    """The median of each block; a block without samples is interpolated."""
    place = np.clip(np.searchsorted(edges, t, side="right") - 1, 0, edges.size - 2)
    found = [value[place == block] for block in range(edges.size - 1)]
    seen = [block for block, values in enumerate(found) if values.size]
    medians = [float(np.median(found[block])) for block in seen]
    return np.interp(np.arange(edges.size - 1), seen, medians)
