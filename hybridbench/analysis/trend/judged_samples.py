"""The samples of a metric that are judged: those in the window, and zeros that were not written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.foundation.metrics import AT_REST, FROM_FIRST


def judged_samples(window: Window, record: RunRecord, name: str) -> tuple[FloatArray, FloatArray]:
    """Return times and values of a metric in the window; idle readings lie in its pauses."""
    series = record.series[name]
    if name == AT_REST:
        window = replace(window, pauses=())
    return window.samples(_from_zero(series, record) if name in FROM_FIRST else series)


def _from_zero(series: Series, record: RunRecord) -> Series:
    """Add a zero at each sampling before the first value; without them it would look new."""
    times = max((one.t_s for one in record.series.values()), key=len)
    before = times[times < series.t_s[0]] if len(series) else times[:0]
    zeros = np.zeros(before.size)
    t_s, value = np.append(before, series.t_s), np.append(zeros, series.value)
    return Series(series.name, t_s, value)
