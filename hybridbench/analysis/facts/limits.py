"""The growth limits that a profile sets, for the length that a run has reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridbench.analysis.reading import mapping, number
from hybridbench.analysis.record import RunRecord
from hybridbench.metrics import MEMORY
from hybridbench.records.events import Phase
from hybridbench.records.json_value import JsonValue


def growth_limits(record: RunRecord) -> Mapping[str, float] | None:
    """Limit per hour by metric; None where the profile has none for so short a run.

    The length is the planned one, or the traffic served if the run was extended: a longer run is
    held to a tighter limit, and an early stop does not loosen one.
    """
    profile = mapping(record.manifest, "profile")
    schedule = profile.get("limits")
    if not isinstance(schedule, Sequence) or isinstance(schedule, str):
        # Series of other programs, and runs stored before limits came by length.
        return _numbers(profile.get("promise"))
    length_s = run_length_s(record)
    entries = [_numbers(entry) for entry in schedule]
    reached = [entry for entry in entries if entry.pop("from_s", 0.0) <= length_s]
    return reached[-1] if reached else None


def next_limit_s(record: RunRecord) -> float | None:
    """The shortest run, in seconds, for which the profile limits memory; None if it never does."""
    schedule = mapping(record.manifest, "profile").get("limits")
    if not isinstance(schedule, Sequence) or isinstance(schedule, str):
        return None
    entries = [_numbers(entry) for entry in schedule]
    return next((entry.get("from_s", 0.0) for entry in entries if MEMORY in entry), None)


def planned_s(record: RunRecord) -> float:
    """Seconds of traffic that the run was planned to serve; 0 if nothing says."""
    manifest = record.manifest
    return number(manifest, "planned_duration_s", number(manifest, "duration_s"))


def run_length_s(record: RunRecord) -> float:
    """Seconds of traffic, as planned or as served, whichever is longer."""
    return max(planned_s(record), served_s(record))


def served_s(record: RunRecord) -> float:
    """Seconds from the first request to the last drain or sample of the record."""
    phases = [(e.t_s, e.read(Phase).name) for e in record.events if e.kind == "phase"]
    begun = [t for t, name in phases if name == "warmup"]
    if not begun:
        return 0.0
    ends = [float(series.t_s[-1]) for series in record.series.values() if len(series)]
    drained = [t for t, name in phases if name == "drain"]
    resumed = [t for t, name in phases if name in ("resume", "steady")]
    if drained and (not resumed or drained[-1] > resumed[-1]):
        ends = [drained[-1]]
    return max(0.0, max(ends, default=begun[0]) - begun[0])


def _numbers(entry: JsonValue) -> dict[str, float]:
    if not isinstance(entry, Mapping):
        return {}
    return {name: float(value) for name, value in entry.items() if isinstance(value, int | float)}
