"""A run's samples as one table for spreadsheets and data frames: `--format csv`."""

from __future__ import annotations

import csv
import io

import numpy as np

from hybridbench.analysis.record import RunRecord


def render_samples(record: RunRecord) -> str:
    """Return CSV: ``t_s`` (seconds since the run began), then a column per series; a row per time.

    A cell is empty if its series was not sampled at that time.  Numbers are written with all their
    digits.
    """
    series = list(record.series.values())
    times = np.unique(np.concatenate([one.t_s for one in series])) if series else np.array([])
    columns = []
    for one in series:
        cells = [""] * times.size
        for row, value in zip(np.searchsorted(times, one.t_s), one.value.tolist(), strict=True):
            cells[row] = _number(value)
        columns.append(cells)
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["t_s", *(one.name for one in series)])
    table.writerows(zip(map(_number, times.tolist()), *columns, strict=True))
    return out.getvalue()


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
