"""The heaps of a run's processes: counts by name at every heap scan, and readings at idle points.

An event has only the changes since the previous scan; here every name has its count at every scan
of the same process.  A restarted process begins a new stretch, with counts that start from zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.facts.counters import EventCounters, bare
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.foundation.labels import labelled
from hybridbench.records.events import PAGE, Census, IdleLook, Phase

# Maximum seconds between a heap scan and the idle look at the same idle point.
_SAME_POINT_S: Final = 60.0

_Seen = TypeVar("_Seen", Census, IdleLook)


@dataclass(frozen=True)
class Counts:
    """The counts of all names of one kind; ``value`` is [names, censuses]."""

    names: tuple[str, ...]
    value: FloatArray

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The row of each name."""
        return {name: at for at, name in enumerate(self.names)}

    def of(self, name: str) -> FloatArray | None:
        """Return the counts of ``name``, or None if it was never seen."""
        at = self.place.get(name)
        return None if at is None else self.value[at]


@dataclass(frozen=True)
class IdlePoint:
    """An idle point: the reading, and the index of the heap scan taken at it, if any."""

    look: IdleLook
    counts: Mapping[str, float]  # the counters of work, by their bare names
    census: int | None


@dataclass(frozen=True)
class Heap:
    """Everything that a probe reported about one process (by role), in order.

    Attributes:
        labels: the labels of its series.
        first: [censuses], True at the first scan of each process.
        whole: [censuses], True if the scan also searched dictionaries the collector does not track.
        containers: number of containers at each path.
        bounds, limits, holds: the latest values for each path.
        points: idle points of the last process with this role.
    """

    labels: Mapping[str, str]
    t_s: FloatArray
    first: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    entries: Counts
    types: Counts
    containers: Counts
    bounds: Mapping[str, int]
    limits: Mapping[str, int]
    holds: Mapping[str, str]
    points: tuple[IdlePoint, ...]
    censuses: tuple[Census, ...]
    looks: tuple[IdleLook, ...]

    @property
    def role(self) -> str:
        """The name of the process."""
        return self.labels.get("role", "") or "the process"

    @property
    def probed(self) -> bool:
        """Whether a probe answered; a metrics page has none, nor does an unprobed process."""
        answered = any(look.blocks is not None for look in self.looks)
        return self.role != PAGE and (bool(self.censuses) or answered)

    def subject(self, name: str) -> str:
        """Return ``name`` with this process's labels, as series are named."""
        return labelled(name, self.labels)

    def comparable(self, values: FloatArray) -> NDArray[np.bool_]:
        """Return which scans count for a name with these counts [censuses].

        All do, or only whole-heap scans if no other scan ever saw the count change.
        """
        changed = np.zeros(values.size, dtype=np.bool_)
        changed[1:] = np.diff(values) != 0
        changed &= ~self.first
        if not changed.any() or np.any(changed & ~self.whole) or self.whole.all():
            return np.ones(values.size, dtype=np.bool_)
        return self.whole


def heaps_of(record: RunRecord, counters: EventCounters) -> list[Heap]:
    """Return one heap for each process, ordered by label; it has no counts if there is no probe."""
    censuses = _by_process(record.all_events(Census))
    looks = _by_process(record.all_events(IdleLook))
    return [
        _heap(record, counters, censuses.get(text, []), looks.get(text, []))
        for text in sorted({*censuses, *looks})
    ]


def _by_process(events: Sequence[_Seen]) -> dict[str, list[_Seen]]:
    found: dict[str, list[_Seen]] = {}
    for event in events:
        found.setdefault(event.process, []).append(event)
    return found


def _heap(
    record: RunRecord,
    counters: EventCounters,
    censuses: list[Census],
    looks: list[IdleLook],
) -> Heap:
    labels = (censuses or looks)[0].labels
    first = [at == 0 or one.pid != censuses[at - 1].pid for at, one in enumerate(censuses)]
    seen: list[Census | IdleLook] = [*censuses[-1:], *looks[-1:]]
    last_pid = max(seen, key=lambda one: one.t_s).pid
    own = [look for look in looks if look.pid == last_pid]
    return Heap(
        labels=labels,
        t_s=np.array([one.t_s for one in censuses], dtype=np.float64),
        first=np.array(first, dtype=np.bool_),
        whole=np.array([one.whole for one in censuses], dtype=np.bool_),
        entries=_counts([one.entries for one in censuses], first),
        types=_counts([one.types for one in censuses], first),
        containers=_counts([one.containers for one in censuses], first, unsaid=1.0),
        bounds=_latest([one.bounds for one in censuses]),
        limits=_latest([one.limits for one in censuses]),
        holds={name: kind for one in censuses for name, kind in one.holds.items()},
        points=tuple(_points(record, counters, censuses, own)),
        censuses=tuple(censuses),
        looks=tuple(looks),
    )


def _latest(said: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """Return the latest bounds; a path without one any more is reported with 0."""
    latest = {name: size for one in said for name, size in one.items()}
    return {name: size for name, size in latest.items() if size}


def _counts(
    said: Sequence[Mapping[str, int]], first: Sequence[bool], unsaid: float = 0.0
) -> Counts:
    """Return every name's count at every scan; a name not yet reported has the count ``unsaid``."""
    names = tuple(dict.fromkeys(name for one in said for name in one))
    place = {name: at for at, name in enumerate(names)}
    value = np.full((len(names), len(said)), unsaid)
    now = np.full(len(names), unsaid)
    for column, (one, starts) in enumerate(zip(said, first, strict=True)):
        if starts:
            now = np.full(len(names), unsaid)
        if one:
            now[[place[name] for name in one]] = list(one.values())
        value[:, column] = now
    return Counts(names, value)


def _points(
    record: RunRecord, counters: EventCounters, censuses: Sequence[Census], looks: list[IdleLook]
) -> list[IdlePoint]:
    places = [at for at, one in enumerate(censuses) if looks and one.pid == looks[0].pid]
    found = []
    for look in looks:
        if look.idle:
            near = [
                (abs(censuses[at].t_s - look.t_s), at)
                for at in places
                if _at_same_point(censuses[at], look, record)
            ]
            census = min(near)[1] if near else None
            found.append(IdlePoint(look, _counters_at(look, counters), census))
    # Keep one look per point: the last, when most activity had stopped.
    return [list(same)[-1] for _, same in groupby(found, key=lambda point: point.look.index)]


def _at_same_point(census: Census, look: IdleLook, record: RunRecord) -> bool:
    """Whether there was no traffic between the two, by the run's phases or its work counters."""
    start_s, end_s = sorted((census.t_s, look.t_s))
    phases = record.all_events(Phase)
    if any(start_s < phase.t_s <= end_s for phase in phases) or end_s - start_s > _SAME_POINT_S:
        return False
    if any(one.phase == "idle" for one in [p for p in phases if p.t_s <= start_s][-1:]):
        return True
    works = [record.series[name] for name in record.drivers.works[:1] if name in record.series]
    t_s = np.array([start_s, end_s])
    return bool(works) and all(np.ptp(np.interp(t_s, w.t_s, w.value)) == 0 for w in works)


def _counters_at(look: IdleLook, counters: EventCounters) -> Mapping[str, float]:
    """The work counters read with the look, or those of the samples if a counter restarted."""
    t_s = np.array([look.t_s])
    known = {name: float(counters.at(name, t_s)[0]) for name in counters.names}
    if not counters.restarts_s.size:
        known |= {bare(name): value for name, value in look.counters.items()}
    return known
