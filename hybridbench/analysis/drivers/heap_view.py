"""The readings of one process's heap that are evaluated for growth, and the work done meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.drivers.kept import Work
from hybridbench.analysis.drivers.search import TIME
from hybridbench.analysis.facts.censuses import Heap, IdlePoint
from hybridbench.analysis.facts.counters import EventCounters, expectation
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.kv_cache import KvCache
from hybridbench.analysis.record import OF_EXPORTER, FloatArray

# Substrings of the names of counters that describe the work done, most informative first.
_SAY: Final = (
    *("finish", "success", "complet", "refus", "reject", "abort", "cancel", "error", "fail"),
    *("request", "session", "preempt", "token"),
)
_OF_SECONDS: Final = "_seconds_total"
# The substrings whose counters count only some of the requests.
_RARE: Final = ("refus", "reject", "abort", "cancel", "error", "fail", "preempt", "session")
# What the load client counts of each kind of request; ``requests_submitted`` is the total.
_OF_A_KIND: Final = frozenset({"requests_with", "requests_of", "requests_failed_with"})
# Entries or objects that the last moments before a scan may have added.
FEW: Final = 2.0
_ROUND_LEAST: Final = 0.2  # share of a usual round's work; one counter must reach it


class HeapView:
    """One heap with the readings that are evaluated.

    Attributes:
        main: the counters of the common work.
        cpu: processor time of the process, if it was sampled.
        keep: [censuses], the scans after the process's own warm-up.
        is_steady: whether the run's warm-up is known to have ended.
        work: the counters at every scan.
        load: [censuses, 1], the requests in flight at every scan; [censuses, 0] if constant.
        points: the idle points that are compared.
        collected: whether garbage was collected at these points.
        cache: the KV cache that the process holds, unless it was emptied before the last point.
        fills_until_s: when that was full; infinite if it is not, -inf without one.
    """

    def __init__(self, facts: Facts, heap: Heap, cache: KvCache | None) -> None:
        self.heap = heap
        self._counters = facts.counters
        ranks = {name: _rank_of(name) for name in facts.counters.names}
        self._telling = {name: rank for name, rank in ranks.items() if rank is not None}
        self.main = _common(facts.counters, self._telling)
        self.cpu = facts.record.series.get(heap.subject("worker_cpu_s"))
        self.keep = _after_warmup(facts, heap)
        self.is_steady = facts.window is not None and facts.window.steady
        self.work = self._work_at(heap.t_s)
        load = facts.requests_at(heap.t_s)
        # One that never moves explains nothing, and would cost a degree of freedom.
        moves = load.size > 0 and np.ptp(load) > 0
        self.load = load[:, None] if moves else np.empty((load.size, 0))
        self.points = _comparable(heap.points)
        # Garbage is not collected at idle points if the heap is large or the program disabled it.
        # The first point is exempt: garbage there only makes the gain since then look smaller.
        self.collected = all(p.look.unreachable is not None for p in self.points[1:])
        emptied = bool(self.points) and self.points[-1].look.cache_reset
        self.cache = None if emptied else cache
        self.fills_until_s = -np.inf
        if self.cache is not None:
            full_s = self.cache.full_s
            self.fills_until_s = np.inf if full_s is None else full_s

    def work_of(self, points: Sequence[IdlePoint]) -> Work:
        """The counters of work at these points, without those that did not move."""
        # A per-outcome counter does not exist before the first event with that outcome.
        names = [
            name
            for name in _events(self._counters)
            if all(name in p.counts or name.rpartition(".")[0] in p.counts for p in points)
        ]
        t_s = [point.look.t_s for point in points]
        columns = [[point.counts.get(name, 0.0) for point in points] for name in names]
        work = Work((*names, TIME), np.array([*columns, t_s]).T, self._telling, self.main)
        return work.rows(np.ones(len(points), dtype=np.bool_))

    def _work_at(self, t_s: FloatArray) -> Work:
        names = _events(self._counters)
        columns = [self._counters.at(name, t_s) for name in names]
        return Work((*names, TIME), np.column_stack([*columns, t_s]), self._telling, self.main)


def _events(counters: EventCounters) -> list[str]:
    """Counters of events, excluding seconds and the exporter's own activity."""
    return [
        name
        for name, series in counters.series.items()
        if not name.startswith(OF_EXPORTER)
        and not name.endswith("_calls")
        and bool(np.all(series.value == np.round(series.value)))
    ]


def _rank_of(name: str) -> int | None:
    """The rank of a counter among those that describe the work; None if it does not."""
    if name.endswith("_sum"):
        # A histogram of requests sums up their seconds, bytes or tokens.
        return len(_SAY) if name.endswith("_tokens_sum") else None
    return expectation(name, _SAY)


def _common(counters: EventCounters, telling: Mapping[str, int]) -> frozenset[str]:
    """The informative counters that moved at least half as often as requests arrived."""
    # Exclude per-outcome counters, which are a random share of all requests, and seconds, which are
    # not events: a small total of seconds would make every rare event look common.
    totals_known = _OF_A_KIND.union(counters.names)
    whole = [
        name
        for name in telling
        if name.rpartition(".")[0] not in totals_known and not name.endswith(_OF_SECONDS)
    ]
    totals = {name: counters.total(name) for name in whole}
    work = [total for name, total in totals.items() if not any(s in name for s in _RARE)]
    least = 0.5 * min((total for total in work if total > 0), default=0.0)
    return frozenset(name for name, total in totals.items() if total >= max(least, 1.0))


def _after_warmup(facts: Facts, heap: Heap) -> NDArray[np.bool_]:
    """Select the scans of each process after its own warm-up."""
    start_s = 0.0 if facts.window is None else facts.window.start_s
    end_s = np.inf if facts.window is None else facts.window.end_s
    warmup_s = max(0.0, start_s - facts.record.span_s[0])
    keep = (heap.t_s >= start_s) & (heap.t_s <= end_s)
    for at in np.flatnonzero(heap.first)[1:].tolist():
        keep &= (heap.t_s < heap.t_s[at]) | (heap.t_s > heap.t_s[at] + warmup_s)
    return keep


def _comparable(points: Sequence[IdlePoint]) -> list[IdlePoint]:
    """The points since the first that followed work, with the same cache handling as the last."""
    if not points:
        return []
    begun: Mapping[str, float] = points[0].counts
    worked = [p for p in points if any(p.counts[n] > begun[n] for n in begun if n in p.counts)]
    after = worked if not any(begun.values()) else list(points)
    alike = [p for p in after if p.look.cache_reset == points[-1].look.cache_reset]
    return _after_work(alike)


def _after_work(points: Sequence[IdlePoint]) -> list[IdlePoint]:
    """The points that follow a real round of traffic.

    At the end of a run, an idle point may come only a few requests after the previous one.
    """
    if len(points) < 3:
        return list(points)
    names = [n for n in points[0].counts if all(n in p.counts for p in points)]
    counts = np.array([[p.counts[n] for n in names] for p in points])
    usual = np.median(np.diff(counts, axis=0), axis=0) if names else np.zeros(0)
    kept = [0]
    for at in range(1, len(points)):
        if np.any(counts[at] - counts[kept[-1]] >= np.maximum(_ROUND_LEAST * usual, 1.0)):
            kept.append(at)
    return [points[at] for at in kept]
