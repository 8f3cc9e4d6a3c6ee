"""The judged window of a run: from ``steady`` to the first event that ends it, minus pauses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.facts.steady import (
    FirstFill,
    first_fill,
    observed_steady,
    reports_steady,
)
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.events import Crash, Interrupted, Phase, Segment, Steady
from hybridbench.records.manifest import OBSERVED, Manifest

_UNKNOWN_WARMUP = 0.1  # share of the run, if nothing reports the end of warm-up
PAUSES = ("drain", "idle")
# Without ``steady``, a fill at constant speed looks like a leak to any statistic for the first 45
# minutes (detection.md, "What it cannot do").
LEAK_WITHOUT_STEADY_S = 45 * 60.0
# Share of the planned time after which a trend counts while the run goes on, even without
# ``steady``; before it, the live view calls none a leak.
FIRST_LOOK = 0.5
_TRAFFIC = ("warmup", "steady", "resume")
_ENDS = (Crash, Interrupted)


@dataclass(frozen=True)
class Window:
    """The judged time of a run.

    ``steady`` is True if the engine reported the start or its series show it, and False if the
    start is only an estimate, or the end of a first fill that was only a quick start.  ``reported``
    is True only in the first case.  ``fill`` is the first fill of a watched target that needs a
    longer run to show that it was the last one.
    """

    start_s: float
    end_s: float
    steady: bool
    pauses: tuple[tuple[float, float], ...] = ()
    reported: bool = True
    fill: FirstFill | None = None

    @property
    def duration_s(self) -> float:
        return max(0.0, self.end_s - self.start_s)

    def samples(self, series: Series) -> tuple[FloatArray, FloatArray]:
        """Return times and values of the finite samples in the window, outside pauses."""
        keep = self.covers(series.t_s) & np.isfinite(series.value)
        return series.t_s[keep], series.value[keep]

    def covers(self, t_s: FloatArray) -> NDArray[np.bool_]:
        """Return which of the times lie in the window and in no pause."""
        keep = (t_s >= self.start_s) & (t_s <= self.end_s)
        for start, end in self.pauses:
            keep &= (t_s < start) | (t_s > end)
        return keep

    def stretches(self) -> list[tuple[float, float]]:
        """Return the parts of the window between pauses, in order."""
        edges = [self.start_s, *(t for pause in self.pauses for t in pause), self.end_s]
        return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def judged_window(record: RunRecord) -> Window | None:
    """Return the window of a run, or None for one that ended before it."""
    first, last = record.span_s
    if last <= first:
        return None
    fill = first_fill(record) if record.manifest.target.kind == OBSERVED else None
    steady_s = _steady_s(record, fill)
    start = _start_without_steady(record, first, last) if steady_s is None else steady_s
    end = min([last, *(e.t_s for e in record.events if isinstance(e, _ENDS) and e.t_s >= start)])
    pauses, end = _pauses(record, start, end)
    if end <= start:
        return None
    reported = _is_reported(record)
    if steady_s is None:
        return Window(start, end, steady=False, pauses=pauses, reported=reported, fill=fill)
    steady = reported or fill is None or fill.is_most
    return Window(start, end, steady, pauses, reported)


def _steady_s(record: RunRecord, fill: FirstFill | None) -> float | None:
    """Return when the target reported being steady, or when a watched target became steady."""
    steady = record.last_event(Steady)
    if steady is not None:
        return steady.t_s
    return observed_steady(record, fill) if record.manifest.target.kind == OBSERVED else None


def _is_reported(record: RunRecord) -> bool:
    steady = record.last_event(Steady)
    return reports_steady(record) if steady is None else steady.reason != Steady.CACHE_FULL


def _start_without_steady(record: RunRecord, first: float, last: float) -> float:
    planned = [t for t, name in _phases(record) if name == "steady"]
    if planned:
        return planned[0]
    # Before this phase a watched target is starting and gets no requests.
    first = max(first, next((t for t, name in _phases(record) if name == "observe"), first))
    return first + _UNKNOWN_WARMUP * max(0.0, last - first)


def _phases(record: RunRecord) -> Iterable[tuple[float, str]]:
    return ((phase.t_s, phase.name) for phase in record.all_events(Phase))


def _pauses(
    record: RunRecord, start: float, end: float
) -> tuple[tuple[tuple[float, float], ...], float]:
    """Return the pauses of traffic, and the window's end: a pause that does not end closes it.

    Of a pause that began before the window, only the part inside counts.
    """
    pauses: list[tuple[float, float]] = []
    opened: float | None = None
    for t, name in _phases(record):
        if name == "done" and t >= start:
            end = min(end, t)
        elif name in PAUSES and opened is None:
            opened = t
        elif name in _TRAFFIC and opened is not None:
            pauses.append((opened, t))
            opened = None
    if opened is not None and opened >= start:
        end = min(end, opened)
    return tuple((max(a, start), b) for a, b in pauses if b > start and a < end), end


def borders(record: RunRecord) -> list[float]:
    """Return the times at which a new worker took over, in seconds of the run."""
    return sorted(event.t_s for event in record.all_events(Segment))


def segments(record: RunRecord) -> list[RunRecord]:
    """Return one record per segment, in order; the record itself if there is only one.

    Times remain those of the run.  Coverage requirements are removed from a part's manifest, since
    only all parts together can meet them.
    """
    cuts = borders(record)
    if not cuts:
        return [record]
    edges = [-float("inf"), *cuts, float("inf")]
    profile = msgspec.structs.replace(record.manifest.profile, assert_coverage={})
    manifest = msgspec.structs.replace(record.manifest, profile=profile)
    return [_part(record, start, end, manifest) for start, end in pairwise(edges)]


def last_segment(record: RunRecord) -> RunRecord:
    """Return the segment that shows how the run ended."""
    return segments(record)[-1]


def judged_length_s(record: RunRecord, window: tuple[float, float]) -> float:
    """Return the judged part of ``window``, without gaps between segments and later warm-ups."""
    start_s, end_s = window
    parts = segments(record)
    if len(parts) == 1:
        return end_s - start_s
    lengths = []
    for part in parts:
        times = [float(t) for series in part.series.values() for t in series.t_s[[0, -1]]]
        if times:
            steady = part.last_event(Steady)
            begun_s = min(times) if steady is None else steady.t_s
            lengths.append(min(end_s, max(times)) - max(start_s, begun_s))
    return sum(max(0.0, length) for length in lengths)


def _part(record: RunRecord, start_s: float, end_s: float, manifest: Manifest) -> RunRecord:
    series = {}
    for name, whole in record.series.items():
        keep = (whole.t_s >= start_s) & (whole.t_s < end_s)
        if keep.any():
            series[name] = replace(whole, t_s=whole.t_s[keep], value=whole.value[keep])
    events = tuple(event for event in record.events if start_s <= event.t_s < end_s)
    counted = {
        name: one.where((one.t_s >= start_s) & (one.t_s < end_s))
        for name, one in record.latencies.items()
    }
    return replace(record, manifest=manifest, series=series, events=events, latencies=counted)
