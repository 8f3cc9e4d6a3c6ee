"""Phases, the judged window and the marks in the background of every chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.metrics import COLLECTIONS
from hybridbench.records.events import (
    Allocations,
    DiagnosisBaseline,
    DiagnosisStages,
    Event,
    Hold,
    Note,
    Phase,
    Reclaim,
    Segment,
    Steady,
    kind_of,
)
from hybridbench.records.verdict import Verdict
from hybridbench.report.document import Mark, Span, Timeline
from hybridbench.report.quantity import moment

# Events of the bench itself, which say nothing about the engine's curves.
_UNMARKED: Final = (Allocations, DiagnosisBaseline, DiagnosisStages, Hold, Note, Phase, Reclaim)

# More marks would cover a chart; the table of events keeps them all.
_GC_MARKS_MAX: Final = 400
_MARKS_MAX: Final = 300


def timeline_of(record: RunRecord, verdict: Verdict) -> Timeline:
    """Return the timeline that all charts of a report share."""
    end_s = record.last_moment_s
    phases, marks = tuple(_phases(record, end_s)), tuple(_marks(record))
    return Timeline(end_s, phases, verdict.window_s, marks)


def _phases(record: RunRecord, end_s: float) -> list[Span]:
    starts = record.all_events(Phase)
    spans = [Span(_label(this), this.t_s, following.t_s) for this, following in pairwise(starts)]
    if starts:
        spans.append(Span(_label(starts[-1]), starts[-1].t_s, end_s))
    return [span for span in spans if span.end_s > span.start_s]


def _marks(record: RunRecord) -> list[Mark]:
    plain = [event for event in record.events if not isinstance(event, _UNMARKED)]
    counts = Counter(kind_of(event) for event in plain)
    named: set[str] = set()
    marks = []
    for event in _thinned(plain):
        kind = kind_of(event)
        label = "" if kind in named else _mark_label(event, counts[kind])
        if not isinstance(event, Segment):
            # Twenty labels would hide a chart's curves: only the first of a kind has a label.
            named.add(kind)
        marks.append(Mark(kind, event.t_s, label))
    return marks + [Mark("gc", t_s, "full collection") for t_s in _collections(record)]


def _label(phase: Phase) -> str:
    return phase.name or "?"


def _mark_label(event: Event, count: int) -> str:
    if isinstance(event, Segment):
        return f"segment {event.index + 1}: a new worker"
    kind = kind_of(event)
    name = kind.replace("_", " ")
    if isinstance(event, Steady):
        return name
    return f"{name} at {moment(name, event.t_s)}" + (f", first of {count}" if count > 1 else "")


def _thinned(events: Sequence[Event]) -> Sequence[Event]:
    always = [event for event in events if isinstance(event, Steady | Segment)]
    rest = [event for event in events if not isinstance(event, Steady | Segment)]
    return always + rest[:: max(1, -(-len(rest) // _MARKS_MAX))]


def _collections(record: RunRecord) -> list[float]:
    """Return the times of full collections, from their counter in the samples."""
    counter = record.series.get(COLLECTIONS)
    if counter is None:
        return []
    times = [float(t) for t in counter.t_s[1:][np.diff(counter.value) > 0]]
    return times[:: max(1, -(-len(times) // _GC_MARKS_MAX))]
