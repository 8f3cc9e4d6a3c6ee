"""The segments of a run that was cut off and went on: one record each, as no worker outlives a cut.

Counters of a new worker start at zero and its memory starts small, so nothing may be fitted across
the border.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hybridbench.analysis.reading import mapping
from hybridbench.analysis.record import JsonValue, RunRecord

# The event that opens every segment but the first.
SEGMENT = "segment"


def borders(record: RunRecord) -> list[float]:
    """The times at which a new worker took over, in seconds of the run."""
    return sorted(event.t_s for event in record.all_events(SEGMENT))


def segments(record: RunRecord) -> list[RunRecord]:
    """One record per segment, in order; the record itself where there is only one.

    Times stay those of the run.  What a run must have covered is left out of a part's manifest:
    only all of them together can have covered it.
    """
    cuts = borders(record)
    if not cuts:
        return [record]
    edges = [-float("inf"), *cuts, float("inf")]
    manifest = _without_coverage(record)
    return [_part(record, start, end, manifest) for start, end in pairwise(edges)]


def last_segment(record: RunRecord) -> RunRecord:
    """The part that tells how the run ended."""
    return segments(record)[-1]


def judged_length_s(record: RunRecord, window: tuple[float, float]) -> float:
    """How much of ``window`` was judged: not the gaps between segments, nor warm-ups after one."""
    start_s, end_s = window
    parts = segments(record)
    if len(parts) == 1:
        return end_s - start_s
    lengths = []
    for part in parts:
        times = [float(t) for series in part.series.values() for t in series.t_s[[0, -1]]]
        if times:
            steady = part.last_event("steady")
            begun_s = min(times) if steady is None else steady.t_s
            lengths.append(min(end_s, max(times)) - max(start_s, begun_s))
    return sum(max(0.0, length) for length in lengths)


def _part(
    record: RunRecord, start_s: float, end_s: float, manifest: dict[str, JsonValue]
) -> RunRecord:
    series = {}
    for name, whole in record.series.items():
        keep = (whole.t_s >= start_s) & (whole.t_s < end_s)
        if keep.any():
            series[name] = replace(whole, t_s=whole.t_s[keep], value=whole.value[keep])
    events = tuple(event for event in record.events if start_s <= event.t_s < end_s)
    return RunRecord(manifest, series, events)


def _without_coverage(record: RunRecord) -> dict[str, JsonValue]:
    profile = {**mapping(record.manifest, "profile"), "assert_coverage": {}}
    return {**record.manifest, "profile": profile}
