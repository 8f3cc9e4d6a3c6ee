"""Event counters as the x-axis of findings: their values at any time, and what one event is
called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.record import FloatArray, RunRecord, Series

_PREFIX = "events."

# What a reader calls one event; names that only lose a plural s need no entry.
_SINGULAR: Mapping[str, str] = {
    "finishes": "request",
    "requests_submitted": "submitted request",
    "requests_rejected": "rejected request",
    "evict_leaf": "evicted leaf",
    "evict_internal_state": "evicted internal state",
    "abort_queued": "abort while queued",
    "abort_prefill": "abort in prefill",
    "abort_decode": "abort in decode",
    "nodes_evicted": "evicted node",
    "tree_nodes_evicted": "evicted node",
    "refusals": "refusal",
    "admission_refusals": "refusal",
    "sessions_closed": "session close",
    "session_closed": "session close",
    "cow_copies": "copy on write",
    "hits": "cache hit",
}


@dataclass(frozen=True)
class EventCounters:
    """All ``events.*`` series of a run, by their bare names in order."""

    series: Mapping[str, Series]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.series)

    def at(self, name: str, t_s: FloatArray) -> FloatArray:
        """The counter at the times ``t_s``, from the samples on either side."""
        series = self.series[name]
        return np.interp(t_s, series.t_s, series.value)

    def bounds(self, name: str, t_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The last sampled value before each time, and the first after it."""
        series = self.series[name]
        last = len(series) - 1
        before = np.clip(np.searchsorted(series.t_s, t_s, side="right") - 1, 0, last)
        after = np.clip(np.searchsorted(series.t_s, t_s, side="left"), 0, last)
        return series.value[before], series.value[after]

    def total(self, name: str) -> float:
        """What the counter reached; 0 for one that was never sampled."""
        series = self.series.get(name.removeprefix(_PREFIX))
        return float(np.nanmax(series.value)) if series is not None and len(series) else 0.0


def event_counters(record: RunRecord) -> EventCounters:
    """The event counters of ``record`` that have samples."""
    names = sorted(n for n, s in record.series.items() if n.startswith(_PREFIX) and len(s))
    return EventCounters({n.removeprefix(_PREFIX): record.series[n] for n in names})


def singular(counter: str) -> str:
    """One event of ``counter`` in words: ``nodes_evicted`` is an evicted node."""
    name = counter.removeprefix(_PREFIX)
    if name in _SINGULAR:
        return _SINGULAR[name]
    words = name.replace("_", " ")
    return words[:-1] if words.endswith("s") and not words.endswith("ss") else words
