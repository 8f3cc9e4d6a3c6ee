"""Classify growth in each process's heap, name by name: kept, a cache that fills, or open.

Growth alone is not evidence of a leak.  An attribute path is called kept if rounds between idle
points agree on it, or if a driver suggested by the first half of the heap scans is confirmed in the
second, corrected for all names of all processes.  Bounded or slowing growth is a cache that fills.
Objects counted under traffic may be garbage not yet collected, so they stay open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import holm
from hybridbench.analysis.drivers.kept import (
    ALPHA,
    FEWEST_KEPT,
    FEWEST_ROUNDS,
    Kept,
    Work,
    kept_at_idle,
    kept_under_traffic,
    last_start,
    of_bytes,
)
from hybridbench.analysis.drivers.search import TIME
from hybridbench.analysis.facts.censuses import Counts, Heap, IdlePoint, heaps_of, loads_at
from hybridbench.analysis.facts.counters import EventCounters, expectation
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.kv_cache import KvCache, kv_caches
from hybridbench.analysis.facts.window import LEAK_WITHOUT_STEADY_S
from hybridbench.analysis.record import OF_EXPORTER, FloatArray
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import HANDLES
from hybridbench.records.events import BYTES, NOT_A_NUMBER

# Substrings of the names of counters that describe the work done, most informative first.
_SAY: Final = (
    *("finish", "success", "complet", "refus", "reject", "abort", "cancel", "error", "fail"),
    *("request", "session", "preempt", "token"),
)
_OF_SECONDS: Final = "_seconds_total"
# The substrings whose counters count only some of the requests.
_RARE: Final = ("refus", "reject", "abort", "cancel", "error", "fail", "preempt", "session")
# What the load client counts of each kind of request; ``requests_submitted`` is the total.
_OF_A_KIND: Final = frozenset({"requests_with", "requests_failed_with"})
# Entries or objects that the last moments before a scan may have added.
_FEW: Final = 2.0
_LEAST_OF_ROUND: Final = 5.0
_ROUND_LEAST: Final = 0.2  # share of a usual round's work; one counter must reach it
# Blocks and bytes by which a healthy process varies between two idle points: per event, and the
# minimum if there are few events.
_BLOCKS_PER_EVENT: Final = 0.5
_BLOCKS: Final = 100.0
_BYTES_PER_EVENT: Final = 64.0
_BYTES: Final = 2.0**18
# Rounds that must agree on growth in blocks or bytes, which have no names that identify them.
_ROUNDS_UNNAMED: Final = 3
# Engines keep recent events for their averages: vLLM's ``CachingMetrics`` keeps 1,000 requests.
WINDOW: Final = 1_024
# Shortest time span after which growth is called kept if its rate per event is not a whole number.
LEAST_S: Final = 420.0
# The same if traffic may have risen, in which case a cache may fill at a constant pace.
LEAST_TIMED_S: Final = 1_020.0
# Ratio of the processor time of both halves up to which traffic did not rise.
_AS_BUSY: Final = 1.1
# A count and its counter are read up to this many seconds apart, and may differ by this share.
_APART_S: Final = 3.0
_APART: Final = 0.02
_STAYS: Final = 0.5  # share of the growth under traffic that must remain when idle
_MULTIPLIED: Final = 1.5  # factor over the usual number of containers in the first half
_BY_NUMBER: Final = 0.5  # share of the entries that new containers of the usual length explain
_NEAR: Final = 0.5  # share of a limit that a cache must reach for the limit to be believed
# Timers that have yet to run, and the share by which there may be fewer of them than entries.
_TIMERS: Final = frozenset({"asyncio.events.TimerHandle", "threading.Timer"})
_FEWER_TIMERS: Final = 0.1
_OWN: Final = 0.2  # new containers per new entry; above it, each object has its own container


class GrowthKind(StrEnum):
    """The classification of a growing count."""

    KEPT = "kept"
    FILLS = "fills"  # a cache
    FULL = "full"  # a cache at its bound
    OPEN = "open"


class Doubt(StrEnum):
    """Why growth is not called kept."""

    NONE = ""
    PACE = "pace"  # it may be a fill that slows down
    CLOCK = "clock"  # the same: no counter of work explains it, and traffic may have risen
    PARTS = "parts"  # the same: seen for minutes only, and its rate per event is not whole
    GARBAGE = "garbage"
    MANY = "many"  # the number of containers grew with the entries
    EARLIER = "earlier"  # it stopped in an earlier process
    STOPPED = "stopped"  # it did not grow after the last idle point
    WINDOW = "window"  # it may hold only the most recent events
    LIMIT = "limit"  # its owner or the code has a number that may be its limit
    EXPIRY = "expiry"  # code or timers remove old entries, which may not have begun
    CACHE = "cache"  # it may stop growing once the server's KV cache is full
    UNNAMED = "unnamed"  # without a name, a cache that fills looks the same


class Sort(StrEnum):
    """What is counted; the value is its unit."""

    ENTRIES = "entries"
    OBJECTS = "objects"
    BLOCKS = "blocks"
    BYTES = "B"
    HANDLES = "handles"


@dataclass(frozen=True)
class Growing:
    """A growing count of one process: a name in its heap, allocator blocks or bytes, or handles.

    Attributes:
        at_idle: counts at the compared idle points; empty if only traffic was evaluated.
        collected: whether garbage was collected at these points.
        censuses: heap scans compared under traffic; 0 if only idle points were evaluated.
        last: the final count.
        one: whether the entries are in the same container, or the same few, throughout.
        bound: the container's maximum size.
        limit: the same, if only a number that its owner or the code has suggests it.
        expires: whether code removes its old entries by another rule than their number.
        doubt: why the growth is open.
        since_s, until_s: time span of the compared readings.
    """

    heap: Heap
    sort: Sort
    name: str
    kept: Kept
    kind: GrowthKind
    since_s: float
    until_s: float
    at_idle: tuple[float, ...] = ()
    collected: bool = True
    censuses: int = 0
    last: float = 0.0
    one: bool = True
    bound: int | None = None
    limit: int | None = None
    expires: bool = False
    doubt: Doubt = Doubt.NONE

    @property
    def unit(self) -> str:
        """What is counted; the entries of a buffer are bytes."""
        is_buffer = self.sort is Sort.ENTRIES and self.heap.holds.get(self.name) == BYTES
        return Sort.BYTES.value if is_buffer else self.sort.value

    @property
    def per_second(self) -> float:
        """Growth per second in the second half of the time span."""
        driver, events = self.kept.driver, self.kept.driver.events
        span_s = self.until_s - self.since_s
        per_event = max(self.kept.late, 0.0)
        if driver.counter == TIME:
            return per_event
        return per_event * events / span_s if span_s > 0 else 0.0

    @property
    def full_in_s(self) -> float | None:
        """Seconds until the container is full; None if unknown."""
        if self.most is None or self.per_second <= 0:
            return None
        return max(0.0, self.most - self.last) / self.per_second

    @property
    def most(self) -> int | None:
        """The bound, or the limit that may be one; None without either."""
        return self.limit if self.bound is None else self.bound


def growing_heaps(facts: Facts) -> list[Growing]:
    """Return the growing counts of all processes with a probe."""
    heaps = heaps_of(facts.record, facts.counters)
    caches = kv_caches(facts.record)
    views = [_View(facts, heap, caches.get(labelled("", heap.labels))) for heap in heaps]
    suspects = [one for view in views for one in view.under_traffic()]
    odds = holm([one.kept.odds for one in suspects])
    shown = [one for one, adjusted in zip(suspects, odds, strict=True) if adjusted <= ALPHA]
    found = []
    for view in views:
        at_idle = {(one.sort, one.name): one for one in view.at_idle()}
        traffic = {(one.sort, one.name): one for one in shown if one.heap is view.heap}
        judged = [view.judged(at_idle.get(k), traffic.get(k)) for k in {**at_idle, **traffic}]
        found += _open_beside_timers([one for one in judged if one is not None])
    return found


def _open_beside_timers(growing: list[Growing]) -> list[Growing]:
    """Leave open what pending timers of the same process may remove once they are due."""
    timers = [one.kept.driver for one in growing if one.name in _TIMERS]
    if not timers:
        return growing

    def may_end(one: Growing) -> bool:
        driver, young = one.kept.driver, one.until_s - one.since_s < LEAK_WITHOUT_STEADY_S
        same = [timer for timer in timers if timer.counter in (driver.counter, *driver.rivals)]
        least = (1.0 - _FEWER_TIMERS) * driver.per_event
        return one.kind is GrowthKind.KEPT and young and any(t.per_event >= least for t in same)

    return [
        replace(one, kind=GrowthKind.OPEN, doubt=Doubt.EXPIRY) if may_end(one) else one
        for one in growing
    ]


class _View:
    """One heap with the readings that are evaluated."""

    def __init__(self, facts: Facts, heap: Heap, cache: KvCache | None = None) -> None:
        self.heap = heap
        self._counters = facts.counters
        ranks = {name: _rank_of(name) for name in facts.counters.names}
        self._telling = {name: rank for name, rank in ranks.items() if rank is not None}
        self._main = _common(facts.counters, self._telling)
        self._cpu = facts.record.series.get(heap.subject("worker_cpu_s"))
        self._keep = _after_warmup(facts, heap)
        self._is_steady = facts.window is not None and facts.window.steady
        self._work = self._work_at(heap.t_s)
        load = loads_at(facts.load, heap.t_s)
        self._load = load.sum(axis=1, keepdims=True) if load.size else load
        self._points = _comparable(heap.points)
        # Garbage is not collected at idle points if the heap is large or the program disabled it.
        # The first point is exempt: garbage there only makes the gain since then look smaller.
        self._collected = all(p.look.unreachable is not None for p in self._points[1:])
        emptied = bool(self._points) and self._points[-1].look.cache_reset
        self._cache = None if emptied else cache
        self._fills_until_s = -np.inf
        if self._cache is not None:
            full_s = self._cache.full_s
            self._fills_until_s = np.inf if full_s is None else full_s

    def under_traffic(self) -> Iterator[Growing]:
        """Yield growth suggested by the first half of the scans, with the second half's odds."""
        heap = self.heap
        for sort, counts in ((Sort.ENTRIES, heap.entries), (Sort.OBJECTS, heap.types)):
            whole = np.array([not heap.comparable(v).all() for v in counts.value], dtype=np.bool_)
            for rows, keep in ((~whole, self._keep), (whole, self._keep & heap.whole)):
                names = np.flatnonzero(rows)
                if names.size == 0 or not keep.any():
                    continue
                first = np.diff(np.cumsum(heap.first)[keep], prepend=-1) > 0
                values = counts.value[np.ix_(names, keep)]
                rising = np.flatnonzero(_gained(values, first) >= FEWEST_KEPT)
                work, load = self._work.rows(keep), self._load[keep]
                found = kept_under_traffic(values[rising], first, work, load)
                for at, kept in zip(names[rising].tolist(), found, strict=True):
                    if kept is not None:
                        span = heap.t_s[keep]
                        ends = float(span[0]), float(span[-1])
                        one = self._growing(sort, counts, at, kept, ends)
                        yield replace(one, censuses=int(keep.sum()))

    def at_idle(self) -> Iterator[Growing]:
        """Yield the growth that rounds between idle points agree on."""
        heap = self.heap
        points = [point for point in self._points if point.census is not None]
        places = [point.census for point in points if point.census is not None]
        if len(places) > FEWEST_ROUNDS:
            work = self._work_of(points)
            for sort, counts in ((Sort.ENTRIES, heap.entries), (Sort.OBJECTS, heap.types)):
                held = counts.value[:, places]
                late = np.diff(held[:, last_start(len(places)) :], axis=1)
                for at in np.flatnonzero(late.min(axis=1) >= _LEAST_OF_ROUND):
                    named = sort is Sort.ENTRIES and self._is_one(
                        counts.names[at], counts.value[at]
                    )
                    kept = kept_at_idle(held[at], work, _FEW, _LEAST_OF_ROUND, named=named)
                    if kept is not None:
                        one = self._growing(sort, counts, int(at), kept, _span(points))
                        seen = tuple(held[at].tolist())
                        yield replace(one, at_idle=seen, collected=self._collected)
        yield from self._allocators()
        yield from self._handles()

    def judged(self, idle: Growing | None, traffic: Growing | None) -> Growing | None:
        """Combine both views of a name; None for growth under traffic that is gone when idle."""
        one = idle or traffic
        if one is None or (idle is None and traffic is not None and self._gone_at_idle(traffic)):
            return None
        # A few new containers are as little evidence as a few new objects, however long they are.
        if not one.one and self._came(one.name) < FEWEST_KEPT:
            return None
        if idle is not None and traffic is not None:
            # Idle points show how much is kept and for which event; the scans under traffic add
            # whether it slows down.
            one = replace(idle, censuses=traffic.censuses)
            # A fit does not override an exact count at every idle point.
            slows = idle.kept.slows or (traffic.kept.slows and not idle.kept.driver.exact)
            # Uneven rounds alone do not show that the growth continues.
            shown = idle.kept.steady or (traffic.kept.steady and not idle.kept.alike)
            steady = shown and not slows
            # Idle points of a program that is never idle are off by a few entries.
            same = idle.kept.driver.counter == traffic.kept.driver.counter
            whole = idle.kept.whole or (traffic.kept.whole and same)
            own = replace(idle.kept, slows=slows, steady=steady, whole=whole)
            one = replace(one, kept=own)
        if one.bound is not None:
            full = one.last >= one.bound
            return replace(one, kind=GrowthKind.FULL if full else GrowthKind.FILLS)
        if one.kept.slows:
            return replace(one, kind=GrowthKind.FILLS)
        doubt = one.doubt or self._doubt(one, at_idle=idle is not None)
        return replace(one, kind=GrowthKind.OPEN if doubt else GrowthKind.KEPT, doubt=doubt)

    def _doubt(self, one: Growing, *, at_idle: bool) -> Doubt:
        kept = one.kept
        if not kept.steady:
            return Doubt.PACE
        if not (at_idle and self._collected):
            if one.sort is Sort.OBJECTS:
                return Doubt.GARBAGE
            if one.sort is Sort.ENTRIES and not one.one:
                return Doubt.MANY
        span_s = one.until_s - one.since_s
        if span_s < LEAST_TIMED_S and kept.timed and self._traffic_may_have_risen(one):
            return Doubt.CLOCK
        if not kept.whole and span_s < LEAST_S:
            return Doubt.PARTS
        if self._may_be_window(one):
            return Doubt.WINDOW
        return self._limited(one) or self._stopped(one)

    def _limited(self, one: Growing) -> Doubt:
        """Check for a limit that the count has not reached: its own, an expiry, the KV cache's."""
        if one.limit is not None:
            return Doubt.LIMIT
        if one.expires and one.until_s - one.since_s < LEAK_WITHOUT_STEADY_S:
            return Doubt.EXPIRY
        return Doubt.CACHE if self._may_be_cache(one) else Doubt.NONE

    def _traffic_may_have_risen(self, one: Growing) -> bool:
        """Whether no counter of work and no processor time shows that traffic did not rise."""
        if self._main or self._cpu is None or len(self._cpu) < 2:
            return not self._main
        times = np.linspace(one.since_s, one.until_s, 3)
        early_s, late_s = np.diff(np.interp(times, self._cpu.t_s, self._cpu.value)).tolist()
        # Processor time falls where a process was started anew.
        return not 0.0 <= late_s <= _AS_BUSY * early_s

    def _may_be_window(self, one: Growing) -> bool:
        """Whether the count may be a window of the most recent requests that is not full yet."""
        driver = one.kept.driver
        if one.kept.timed:  # each entry may be that of an event
            return one.last <= WINDOW and one.name != "zombies"
        few = one.last <= WINDOW * max(driver.per_event, 1.0)
        return few and driver.counter in self._main and driver.upper >= 1.0

    def _may_be_cache(self, one: Growing) -> bool:
        """Whether the count may be growing only because the KV cache is not full yet.

        It may if it is within what the cache can hold, unless it kept growing with its event after
        the cache was full.
        """
        if self._cache is None or one.sort is Sort.HANDLES or one.last > self._cache.most:
            return False
        since = int(np.searchsorted(self.heap.t_s, self._fills_until_s))
        last = self.heap.t_s.size - 1
        return since >= last or self._went_on(one, since, last) is not True

    def _stopped(self, one: Growing) -> Doubt:
        """Check whether scans outside the comparison show that the growth stops.

        These are the scans after the last idle point, and those of earlier processes of this role:
        a process younger than its entries' lifetime appears to keep them forever.
        """
        starts = np.flatnonzero(self.heap.first)
        earlier = pairwise(starts.tolist())
        if any(self._went_on(one, (a + b) // 2, b - 1) is False for a, b in earlier):
            return Doubt.EARLIER
        idle = [p.census for p in self._points if p.census is not None]
        last = self.heap.t_s.size - 1
        stopped = bool(idle) and self._went_on(one, idle[-1], last) is False
        return Doubt.STOPPED if stopped else Doubt.NONE

    def _went_on(self, one: Growing, start: int, last: int) -> bool | None:
        """Whether the count grew with its event between two scans; None with too few events."""
        heap, driver = self.heap, one.kept.driver
        held = (heap.entries if one.sort is Sort.ENTRIES else heap.types).of(one.name)
        if held is None or driver.counter not in self._work.names:
            return None
        events = self._work.columns[:, self._work.names.index(driver.counter)]
        expected = driver.per_event * float(events[last] - events[start])
        if expected < FEWEST_KEPT:
            return None
        slack = (1.0 - _STAYS) * expected
        if one.kept.whole:  # both are read a moment apart, with requests in flight
            per_s = expected / max(float(heap.t_s[last] - heap.t_s[start]), 1e-9)
            slack = _FEW + _APART_S * per_s + _APART * expected
        return expected - float(held[last] - held[start]) <= slack

    def _allocators(self) -> Iterator[Growing]:
        """Yield growth in blocks and bytes; they have no names, so more rounds must agree."""
        points = self._points
        if len(points) <= FEWEST_ROUNDS:
            return
        since_s, until_s = _span(points)
        work = self._work_of(points)
        counted = [name != TIME and not of_bytes(name) for name in work.names]
        events = max((float(np.diff(x).max()) for x in work.columns.T[counted]), default=0.0)
        for sort, each, alone in (
            (Sort.BLOCKS, _BLOCKS_PER_EVENT, _BLOCKS),
            (Sort.BYTES, _BYTES_PER_EVENT, _BYTES),
        ):
            read = [p.look.blocks if sort is Sort.BLOCKS else p.look.malloc_bytes for p in points]
            held = np.array([np.nan if value is None else value for value in read])
            if np.isnan(held).any():
                continue
            noise = max(alone, each * self._requests(work, events))
            kept = kept_at_idle(held, work, noise, 2.0 * noise)
            if kept is not None:
                name = "python_blocks" if sort is Sort.BLOCKS else "malloc_in_use_bytes"
                seen = tuple(held.tolist())
                sure = kept.steady and kept.rounds >= _ROUNDS_UNNAMED
                sure = sure and kept.driver.events > WINDOW
                doubt = Doubt.NONE if sure or kept.slows else Doubt.PACE
                if sure and not self._collected:
                    sure, doubt = False, Doubt.GARBAGE
                elif sure and not self._rose_since_full(held, kept, work):
                    sure, doubt = False, Doubt.CACHE
                elif sure and not (self._is_steady or until_s - since_s >= LEAK_WITHOUT_STEADY_S):
                    sure, doubt = False, Doubt.UNNAMED
                kind = GrowthKind.KEPT if sure else GrowthKind.OPEN
                yield Growing(
                    self.heap,
                    sort,
                    name,
                    kept,
                    GrowthKind.FILLS if kept.slows else kind,
                    since_s,
                    until_s,
                    at_idle=seen,
                    collected=self._collected,
                    last=seen[-1],
                    doubt=doubt,
                )

    def _handles(self) -> Iterator[Growing]:
        """Yield growth in open files, threads and processes, which the kernel counts."""
        for name in HANDLES:
            # A process has no count of zombies before its first one.
            points = [point for point in self._points if name in point.look.handles]
            held = np.array([point.look.handles[name] for point in points])
            if len(points) <= FEWEST_ROUNDS:
                continue
            kept = kept_at_idle(held, self._work_of(points), _FEW, _LEAST_OF_ROUND)
            if kept is not None:
                seen = tuple(held.tolist())
                yield Growing(
                    *(self.heap, Sort.HANDLES, name, kept, GrowthKind.OPEN, *_span(points)),
                    at_idle=seen,
                    collected=False,
                    last=seen[-1],
                )

    def _rose_since_full(self, held: FloatArray, kept: Kept, work: Work) -> bool:
        """Whether ``held`` at the idle points kept growing after the KV cache was full."""
        after = [p.look.t_s >= self._fills_until_s for p in self._points]
        if after.count(True) < FEWEST_ROUNDS or kept.driver.counter not in work.names:
            return False
        events = work.columns[:, work.names.index(kept.driver.counter)][after]
        expected = kept.driver.per_event * float(events[-1] - events[0])
        rose = held[after]
        return bool(rose[-1] - rose[0] >= _STAYS * expected)

    def _requests(self, work: Work, otherwise: float) -> float:
        """The largest number of events in one round, by the most informative counter."""
        known = [n for n in work.names if n in work.telling]
        if not known:
            return otherwise
        best = min(known, key=lambda name: work.rank(name, whole=False))
        return float(np.diff(work.columns[:, work.names.index(best)]).max())

    def _growing(
        self,
        sort: Sort,
        counts: Counts,
        at: int,
        kept: Kept,
        ends: tuple[float, float],
    ) -> Growing:
        name, heap = counts.names[at], self.heap
        entries, last = sort is Sort.ENTRIES, float(counts.value[at, -1])
        limit = heap.limits.get(name) if entries else None
        expires = limit is not None and limit >= NOT_A_NUMBER
        limit = None if expires else limit
        # A number such as ``max_size`` may limit something else, such as bytes of a message.
        near = limit is not None and last >= _NEAR * limit
        return Growing(
            heap,
            sort,
            name,
            kept,
            GrowthKind.OPEN,
            *ends,
            last=last,
            one=not entries or self._is_one(name, counts.value[at]),
            bound=limit if near else heap.bounds.get(name) if entries else None,
            limit=None if near else limit,
            expires=expires,
        )

    def _is_one(self, path: str, entries: FloatArray) -> bool:
        """Whether the entries came without new containers."""
        containers = self.heap.containers.of(path)
        if containers is None:
            return True
        came, grown = self._came(path), _gained(entries[None, :], self.heap.first)[0]
        # If the containers multiplied, their holder keeps them, however many entries each has.
        most = float(np.median(containers[: containers.size // 2]))
        multiplied = came >= FEWEST_KEPT and containers[-1] >= _MULTIPLIED * max(most, 1.0)
        length = float(entries[-1]) / max(float(containers[-1]), 1.0)
        by_number = came > _FEW and came * length >= _BY_NUMBER * grown
        return bool(came <= max(_OWN * grown, _FEW)) and not multiplied and not by_number

    def _came(self, path: str) -> float:
        """The number of containers by which the path gained."""
        containers = self.heap.containers.of(path)
        return (
            0.0 if containers is None else float(_gained(containers[None, :], self.heap.first)[0])
        )

    def _gone_at_idle(self, traffic: Growing) -> bool:
        """Whether idle points that should show the growth do not."""
        points = [point for point in self._points if point.census is not None]
        counts = self.heap.entries if traffic.sort is Sort.ENTRIES else self.heap.types
        held = counts.of(traffic.name)
        if len(points) < FEWEST_ROUNDS or held is None:
            return False
        first, last = points[0], points[-1]
        driver = traffic.kept.driver
        if driver.counter == TIME:
            events = last.look.t_s - first.look.t_s
        else:
            events = last.counts.get(driver.counter, 0.0) - first.counts.get(driver.counter, 0.0)
        assert first.census is not None
        assert last.census is not None
        grown = float(held[last.census] - held[first.census])
        return events > 0 and grown < _STAYS * driver.per_event * events

    def _work_at(self, t_s: FloatArray) -> Work:
        names = _events(self._counters)
        columns = [self._counters.at(name, t_s) for name in names]
        return Work((*names, TIME), np.column_stack([*columns, t_s]), self._telling, self._main)

    def _work_of(self, points: Sequence[IdlePoint]) -> Work:
        # A per-outcome counter does not exist before the first event with that outcome.
        names = [
            name
            for name in _events(self._counters)
            if all(name in p.counts or name.rpartition(".")[0] in p.counts for p in points)
        ]
        t_s = [point.look.t_s for point in points]
        columns = [[point.counts.get(name, 0.0) for point in points] for name in names]
        work = Work((*names, TIME), np.array([*columns, t_s]).T, self._telling, self._main)
        return work.rows(np.ones(len(points), dtype=np.bool_))


def _span(points: Sequence[IdlePoint]) -> tuple[float, float]:
    return points[0].look.t_s, points[-1].look.t_s


def _gained(values: FloatArray, first: NDArray[np.bool_]) -> FloatArray:
    """[names]: the total gain within stretches."""
    gained: FloatArray = np.where(first[1:], 0.0, np.diff(values, axis=1)).sum(axis=1)
    return gained


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
