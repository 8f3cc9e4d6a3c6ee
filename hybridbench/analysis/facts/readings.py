"""Which samples are readings at all: a number that nothing measured can have is left out, and said.

Fits multiply up to four samples with each other, so numbers near the ends of floating point
overflow or vanish on the way.  Far inside those ends lies all that memory, counts and times can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray, RunRecord, Series

# Bytes, nanoseconds or events: no process gets there.
LARGEST = 1e30
# Smaller than this is 0: nothing measured resolves it beside what it is a part of.
SMALLEST = 1e-30


def are_readings(value: FloatArray) -> NDArray[np.bool_]:
    """Where ``value`` is a number that a sample can have."""
    return np.abs(value) <= LARGEST  # False for NaN


def beyond_reading(value: FloatArray) -> int:
    """How many are beyond any reading, infinities among them; NaN says that nothing was read."""
    return int((np.abs(value) > LARGEST).sum())


def without_dust(value: FloatArray) -> FloatArray:
    """``value`` with what is too small to matter as 0; the same array where nothing is."""
    dust = (np.abs(value) < SMALLEST) & (value != 0)
    return np.where(dust, 0.0, value) if dust.any() else value


def only_readings(series: Series) -> Series:
    """``series`` without samples that are none; itself where all are."""
    keep = are_readings(series.value)
    if not keep.all():
        series = Series(series.name, series.t_s[keep], series.value[keep])
    value = without_dust(series.value)
    return series if value is series.value else replace(series, value=value)


def readable(record: RunRecord) -> tuple[RunRecord, Mapping[str, int]]:
    """``record`` with nothing but readings, and how many samples of a series were beyond one.

    A series of which nothing is left is one that was never sampled.
    """
    kept = {name: only_readings(series) for name, series in record.series.items()}
    if all(kept[name] is series for name, series in record.series.items()):
        return record, {}
    beyond = {name: beyond_reading(series.value) for name, series in record.series.items()}
    left = {name: series for name, series in kept.items() if len(series)}
    return replace(record, series=left), {name: n for name, n in beyond.items() if n}
