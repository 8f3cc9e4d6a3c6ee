"""Keep only plausible readings: values that no measurement can have are dropped and counted.

Fits multiply up to four samples with each other, so numbers near the ends of the floating-point
range would overflow or underflow.  All memory sizes, counts and times lie well inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray, RunRecord, Series

# No process reaches this many bytes, nanoseconds or events.
LARGEST = 1e30
# Smaller values become 0, because no measurement resolves them.
SMALLEST = 1e-30


def are_readings(value: FloatArray) -> NDArray[np.bool_]:
    """Return a mask of the values that a sample can have."""
    return np.abs(value) <= LARGEST  # False for NaN


def beyond_reading(value: FloatArray) -> int:
    """Count the values beyond any reading, including infinities but not NaN (nothing was read)."""
    return int((np.abs(value) > LARGEST).sum())


def without_dust(value: FloatArray) -> FloatArray:
    """Replace values too small to matter with 0; return the same array if there are none."""
    dust = (np.abs(value) < SMALLEST) & (value != 0)
    return np.where(dust, 0.0, value) if dust.any() else value


def only_readings(series: Series) -> Series:
    """Drop samples that are not readings, and zero tiny ones; return ``series`` if all are fine."""
    keep = are_readings(series.value)
    if not keep.all():
        series = Series(series.name, series.t_s[keep], series.value[keep])
    value = without_dust(series.value)
    return series if value is series.value else replace(series, value=value)


def readable(record: RunRecord) -> tuple[RunRecord, Mapping[str, int]]:
    """Return ``record`` with readings only, and the number of out-of-range samples by series.

    A series with no reading left is treated as never sampled.
    """
    kept = {name: only_readings(series) for name, series in record.series.items()}
    if all(kept[name] is series for name, series in record.series.items()):
        return record, {}
    beyond = {name: beyond_reading(series.value) for name, series in record.series.items()}
    left = {name: series for name, series in kept.items() if len(series)}
    return replace(record, series=left), {name: n for name, n in beyond.items() if n}
