"""Runs whose worker was replaced, joined from hand-made records."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import Segment

GAP_S = 20.0


def last_moment_s(record: RunRecord) -> float:
    return max(float(series.t_s[-1]) for series in record.series.values())


def cut_at(record: RunRecord, end_s: float) -> RunRecord:
    """Return the record as left by a kill at ``end_s``."""
    series = {name: series.between(0.0, end_s) for name, series in record.series.items()}
    series = {name: part for name, part in series.items() if len(part)}
    return replace(record, series=series, events=[e for e in record.events if e.t_s <= end_s])


def resumed(first: RunRecord, second: RunRecord) -> RunRecord:
    """Join ``first`` and, after a gap, ``second`` in a new worker to one run."""
    border = last_moment_s(first) + GAP_S
    series = dict(first.series)
    for name, late in second.series.items():
        t, value = late.t_s + border, late.value
        early = first.series.get(name)
        if early is not None:
            t, value = np.concatenate([early.t_s, t]), np.concatenate([early.value, value])
        series[name] = Series(name, t, value)
    events = [
        *(event for event in first.events if event.t_s < border),
        Segment(1, GAP_S, t_s=border),
        *(msgspec.structs.replace(event, t_s=event.t_s + border) for event in second.events),
    ]
    return RunRecord(second.manifest, series, events)
