"""A record together with the facts that several analyses need, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.facts.counters import EventCounters, event_counters
from hybridbench.analysis.facts.pools import IdleReading, idle_checkpoints, in_flight
from hybridbench.analysis.facts.window import Window, judged_window, segments
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.events import (
    BenchFailed,
    Checkpoint,
    Crash,
    DiskFull,
    Event,
    Interrupted,
    StoppedEarly,
    WorkloadFailed,
)
from hybridbench.records.verdict import Covered

_UNKNOWN = EventCounters({})
CUTS: Final[tuple[type[Event], ...]] = (Crash, Interrupted, StoppedEarly, DiskFull, WorkloadFailed)


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """An event that occurred less often than the profile requires."""

    counter: str
    seen: int | float
    required: int | float

    @property
    def text(self) -> str:
        """Text such as ``retracts 11 of 1,000``."""
        return f"{self.counter} {self.seen:,.0f} of {self.required:,.0f}"


@dataclass(frozen=True)
class Coverage:
    """The events that a profile requires of a run, and how many occurred.

    ``table`` has every counter that moved or has a requirement.  ``missing`` lists the counters
    that stayed below their requirement.
    """

    table: Mapping[str, Covered]
    missing: tuple[Missed, ...]


@dataclass(frozen=True)
class Facts:
    """Facts about a run, or one segment of a resumed run, before it is judged.

    ``idle`` has the checkpoints with no request in the engine.  ``parts`` has the segments of a
    resumed run, and is empty for any other.
    """

    record: RunRecord
    window: Window | None
    counters: EventCounters
    idle: tuple[Checkpoint, ...]
    coverage: Coverage
    parts: tuple[Facts, ...] = ()

    @staticmethod
    def of(record: RunRecord, boundary: Boundary | None = None) -> Facts:
        """Return the facts of a whole run; parts that fail within ``boundary`` are empty."""
        guard = boundary or Boundary(guarded=False)
        records = guard.value("the segments", [record], segments, record)
        if len(records) == 1:
            return _facts(record, (), guard)
        return _facts(record, tuple(_facts(part, (), guard) for part in records), guard)

    @property
    def segments(self) -> tuple[Facts, ...]:
        """One per worker, in order; the facts themselves if there was only one."""
        return self.parts or (self,)

    @property
    def last(self) -> RunRecord:
        """The segment that shows how the run ended."""
        return self.segments[-1].record

    @property
    def longest(self) -> Facts:
        """The segment with the longest judged window."""
        return max(self.segments, key=lambda part: part.window.duration_s if part.window else 0.0)

    @property
    def ended_early(self) -> bool:
        """Whether the run was cut short, so that it could not cover everything.

        It was interrupted, the worker, the workload, the disk or the bench failed, or it stopped
        because it had its answer.
        """
        return any(
            isinstance(event, CUTS) or (isinstance(event, BenchFailed) and event.ended_run)
            for event in self.last.events
        )

    @property
    def load(self) -> list[Series]:
        """Series of requests in flight, which move most levels."""
        return in_flight(self.record)

    def requests_at(self, t_s: FloatArray) -> FloatArray:
        """The requests in flight at the times ``t_s``; 0 if the engine does not report them."""
        requests = np.zeros(t_s.size)
        for load in self.load:
            if len(load):
                requests += np.interp(t_s, load.t_s, load.value)
        return requests

    def idle_readings(self, read: Callable[[Checkpoint], float | None]) -> list[IdleReading]:
        """Apply ``read`` to each idle checkpoint since the worker last started."""
        restarts = self.counters.restarts_s
        begun_s = float(restarts[-1]) if restarts.size else -np.inf
        values = ((event, read(event)) for event in self.idle if event.t_s >= begun_s)
        return [
            IdleReading(event.t_s, value, event.counters)
            for event, value in values
            if value is not None
        ]


def _facts(record: RunRecord, parts: tuple[Facts, ...], guard: Boundary) -> Facts:
    window = guard.value("the judged window", None, judged_window, record)
    counters = guard.value("the event counters", _UNKNOWN, event_counters, record)
    # A new worker counts from zero.
    counted = [part.counters for part in parts] or [counters]
    covered = Coverage({}, ())
    if not any(one is _UNKNOWN for one in counted):
        covered = guard.value("the coverage", covered, coverage, record, counted)
    idle = guard.value("the idle checkpoints", [], idle_checkpoints, record)
    return Facts(record, window, counters, tuple(idle), covered, parts)


def coverage(record: RunRecord, counted: Sequence[EventCounters]) -> Coverage:
    """Compare each counter's total over all workers with the profile's requirement."""
    required = dict(sorted(record.manifest.profile.assert_coverage.items()))
    names = sorted({name for counters in counted for name in counters.names})
    totals = {name: sum(c.total(name) for c in counted) for name in (*required, *names)}
    table = {
        name: Covered(need, totals[name], met=totals[name] >= need)
        for name, need in required.items()
    }
    # A replayed trace has no requirements, but readers still want to know what it exercised.
    for name in names:
        if name not in required and totals[name] > 0:
            table[name] = Covered(None, totals[name], met=True)
    missing = tuple(
        Missed(counter=name, seen=totals[name], required=need)
        for name, need in required.items()
        if totals[name] < need
    )
    return Coverage(table, missing)
