"""The growth limits of a profile, for the length that a run has reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import Phase

# The only key of an entry that is not a metric: the run length from which the entry applies.
_FROM_S: Final = "from_s"


def growth_limits(record: RunRecord) -> Mapping[str, float] | None:
    """Return the limit per hour by metric; None if the profile has none for so short a run.

    The length is the planned one, or the time of traffic if the run was extended.  A longer run has
    a tighter limit, and stopping early does not loosen it.
    """
    profile = record.manifest.profile
    if profile.limits is None:
        # The run was stored before limits depended on the length.
        return profile.limits_as_planned
    length_s = run_length_s(record)
    reached = [entry for entry in profile.limits if entry.get(_FROM_S, 0.0) <= length_s]
    return {k: v for k, v in reached[-1].items() if k != _FROM_S} if reached else None


def next_limit_s(record: RunRecord) -> float | None:
    """Return the shortest run length with a memory limit in the profile, or None."""
    schedule = record.manifest.profile.limits or ()
    return next((entry.get(_FROM_S, 0.0) for entry in schedule if MEMORY in entry), None)


def planned_s(record: RunRecord) -> float:
    """Return the planned seconds of traffic; 0 if unknown."""
    return record.manifest.planned_duration_s or 0.0


def run_length_s(record: RunRecord) -> float:
    """Return the seconds of traffic, planned or served, whichever is longer."""
    return max(planned_s(record), served_s(record))


def served_s(record: RunRecord) -> float:
    """Return the seconds from the first request to the last drain or sample of the record."""
    phases = [(phase.t_s, phase.name) for phase in record.all_events(Phase)]
    begun = [t for t, name in phases if name == "warmup"]
    if not begun:
        return 0.0
    end_s = record.span_s[1]
    drained = [t for t, name in phases if name == "drain"]
    resumed = [t for t, name in phases if name in ("resume", "steady")]
    if drained and (not resumed or drained[-1] > resumed[-1]):
        end_s = drained[-1]
    return max(0.0, end_s - begun[0])
