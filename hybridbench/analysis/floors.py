"""What garbage falls back to after each full collection: the only growth of its sawtooth.

Between two collections garbage grows in any program that makes cycles; that is a rate of work.
Only what the collections leave behind can be a leak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.analysis.student import t_quantile
from hybridbench.analysis.window import Window

COLLECTIONS = "gc_gen2_collections"
FEWEST_FLOORS = 4  # before a rise of them is called a leak
_LEAST_ERROR_BYTES = 4096.0  # a census sizes objects, and misses some bytes of each


@dataclass(frozen=True)
class Floors:
    """The first value after each full collection, and the line through them.

    ``slope_per_s`` has the 95 % interval ``lower`` to ``upper``; ``surely`` is its one-sided bound
    at one in a thousand.  Two floors leave no error to measure: all between them counts as noise.
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
    """The floors of samples ``value`` at ``t_s``; None with fewer than two in the window."""
    counter = record.series.get(COLLECTIONS)
    if counter is None or len(counter) < 2:
        return None
    inside = (counter.t_s > window.start_s) & (counter.t_s <= window.end_s)
    rose = np.diff(counter.value, prepend=counter.value[0]) > 0
    times = counter.t_s[rose & inside]
    first = np.searchsorted(t_s, times)
    # Two collections between two censuses have one floor.
    first = np.unique(first[first < t_s.size])
    if first.size < 2:
        return None
    return _line(t_s[first], value[first])


def _line(t: FloatArray, value: FloatArray) -> Floors:
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
