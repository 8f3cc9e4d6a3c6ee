"""Split a run of several processes into one record per process.

A process has its own series and its own segments, because it may restart while others continue.
Counters of events, requests in flight, and the events of the run are shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from hybridbench.analysis.facts.kv_cache import KvCache, kv_caches
from hybridbench.analysis.facts.steady import outlasts_fill
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.foundation.labels import labelled, labels_of, unlabelled
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import Event, ProcessStarted, Segment, Steady


@dataclass(frozen=True)
class ProcessView:
    """One process of a run; ``record`` has its series under the names in ``metrics``."""

    labels: Mapping[str, str]
    record: RunRecord
    metrics: frozenset[str]

    @property
    def last_s(self) -> float:
        """Time of the process's last sample."""
        own = [self.record.series[metric] for metric in self.metrics]
        return max((float(series.t_s[-1]) for series in own if len(series)), default=0.0)

    @property
    def renamed(self) -> bool:
        """Whether its last process continued under another name: its pid appeared there later."""
        starts, own = self.record.all_events(ProcessStarted), labelled("", self.labels)
        last = next((e for e in reversed(starts) if e.process == own), None)
        return last is not None and any(
            event.pid == last.pid and event.t_s > last.t_s and event.process != own
            for event in starts
        )


def process_views(record: RunRecord) -> list[ProcessView]:
    """Return one view per labelled process, in order; empty if no series has labels."""
    if record.gates is not None:
        return []  # a label is only part of a name that the user gave
    groups: dict[str, dict[str, Series]] = {}
    shared: dict[str, Series] = {}
    for name, series in record.series.items():
        metric = unlabelled(name)
        if metric == name:
            shared[name] = series
        else:
            groups.setdefault(name[len(metric) :], {})[metric] = replace(series, name=metric)
    caches = kv_caches(record)
    return [
        _view(record, shared, text, own, caches.get(text)) for text, own in sorted(groups.items())
    ]


def memory_series(record: RunRecord) -> Series | None:
    """Return private memory of the only process, or of the one with the most samples."""
    alone = record.series.get(MEMORY)
    if alone is not None:
        return alone
    several = [s for name, s in record.series.items() if unlabelled(name) == MEMORY]
    return max(several, key=len, default=None)


def _view(
    record: RunRecord,
    shared: Mapping[str, Series],
    text: str,
    own: Mapping[str, Series],
    cache: KvCache | None,
) -> ProcessView:
    labels = labels_of(text)
    # A process that holds the KV cache is steady once the cache is full, if the run then lasts long
    # enough to show whether another fill follows.
    full_s = None if cache is None else cache.full_s
    full = [] if full_s is None else [Steady(Steady.CACHE_FULL, t_s=full_s)]
    events = sorted(
        [
            *record.events,
            *_segments(record, text),
            *(steady for steady in full if outlasts_fill(record, steady.t_s)),
        ],
        key=lambda event: event.t_s,
    )
    seen = replace(record, series={**shared, **own}, events=tuple(events))
    return ProcessView(labels, seen, frozenset(own))


def _segments(record: RunRecord, text: str) -> Iterable[Event]:
    """Yield a border for each start of the process but the first and those at run borders."""
    borders = [event.t_s for event in record.all_events(Segment)]
    starts = [e.t_s for e in record.all_events(ProcessStarted) if e.process == text]
    for index, (before, start) in enumerate(pairwise(starts), start=1):
        if not any(before < border <= start for border in borders):
            yield Segment(index, t_s=start)
