"""Filter samples to plausible readings: values that no measurement can have are dropped and noted.

Fits multiply up to four samples with each other, so numbers near the ends of the floating-point
range overflow or underflow on the way.  All memory sizes, counts and times lie well inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray, RunRecord, Series

# Bytes, nanoseconds or events: no process reaches this.
LARGEST = 1e30
# Smaller values become 0: nothing measured can resolve them.
SMALLEST = 1e-30


def are_readings(value: FloatArray) -> NDArray[np.bool_]:
    """Return where ``value`` is a number that a sample can have."""
    return np.abs(value) <= LARGEST  # False for NaN


def beyond_reading(value: FloatArray) -> int:
    """Count the values beyond any reading, including infinities; NaN means nothing was read."""
    return int((np.abs(value) > LARGEST).sum())


def without_dust(value: FloatArray) -> FloatArray:
    """Replace values too small to matter with 0; return the same array if there are none."""
    dust = (np.abs(value) < SMALLEST) & (value != 0)
    return np.where(dust, 0.0, value) if dust.any() else value


def only_readings(series: Series) -> Series:
    """Drop samples that are not readings; return ``series`` unchanged if there are none."""
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
