"""Classify growth in each process's heap, name by name: kept, a cache that fills, or open.

Growth alone is not evidence of a leak.  An attribute path is called kept if rounds between idle
points agree on it, or if a driver suggested by the first half of the heap scans is confirmed in the
second, corrected for all names of all processes.  Bounded or slowing growth is a cache that fills.
Objects counted under traffic may be garbage not yet collected, so they stay open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import holm
from hybridbench.analysis.drivers.at_idle import FEWEST_ROUNDS, kept_at_idle, last_start
from hybridbench.analysis.drivers.doubts import STAYS, doubt_about_unnamed, doubt_of
from hybridbench.analysis.drivers.growing import Doubt, Growing, GrowthKind, Sort
from hybridbench.analysis.drivers.heap_view import FEW, HeapView
from hybridbench.analysis.drivers.kept import ALPHA, FEWEST_KEPT, Kept, Work, of_bytes
from hybridbench.analysis.drivers.search import TIME
from hybridbench.analysis.drivers.under_traffic import kept_under_traffic
from hybridbench.analysis.facts.censuses import Counts, Heap, IdlePoint, heaps_of
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.kv_cache import kv_caches
from hybridbench.analysis.facts.window import LEAK_WITHOUT_STEADY_S
from hybridbench.analysis.record import FloatArray
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import HANDLES
from hybridbench.records.events import NOT_A_NUMBER

_LEAST_OF_ROUND: Final = 5.0
# Blocks and bytes by which a healthy process varies between two idle points: per event, and the
# minimum if there are few events.
_BLOCKS_PER_EVENT: Final = 0.5
_BLOCKS: Final = 100.0
_BYTES_PER_EVENT: Final = 64.0
_BYTES: Final = 2.0**18
_MULTIPLIED: Final = 1.5  # factor over the usual number of containers in the first half
_BY_NUMBER: Final = 0.5  # share of the entries that new containers of the usual length explain
_NEAR: Final = 0.5  # share of a limit that a cache must reach for the limit to be believed
# Timers that have yet to run, and the share by which there may be fewer of them than entries.
_TIMERS: Final = frozenset({"asyncio.events.TimerHandle", "threading.Timer"})
_FEWER_TIMERS: Final = 0.1
_OWN: Final = 0.2  # new containers per new entry; above it, each object has its own container


def growing_heaps(facts: Facts) -> list[Growing]:
    """Return the growing counts of all processes with a probe."""
    heaps = heaps_of(facts.record, facts.counters)
    caches = kv_caches(facts.record)
    views = [HeapView(facts, heap, caches.get(labelled("", heap.labels))) for heap in heaps]
    suspects = [one for view in views for one in _under_traffic(view)]
    odds = holm([one.kept.odds for one in suspects])
    shown = [one for one, adjusted in zip(suspects, odds, strict=True) if adjusted <= ALPHA]
    found = []
    for view in views:
        at_idle = {(one.sort, one.name): one for one in _at_idle(view)}
        traffic = {(one.sort, one.name): one for one in shown if one.heap is view.heap}
        judged = [_judged(view, at_idle.get(k), traffic.get(k)) for k in {**at_idle, **traffic}]
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


def _under_traffic(view: HeapView) -> Iterator[Growing]:
    """Yield growth suggested by the first half of the scans, with the second half's odds."""
    heap = view.heap
    for sort, counts in ((Sort.ENTRIES, heap.entries), (Sort.OBJECTS, heap.types)):
        whole = np.array([not heap.comparable(v).all() for v in counts.value], dtype=np.bool_)
        for rows, keep in ((~whole, view.keep), (whole, view.keep & heap.whole)):
            names = np.flatnonzero(rows)
            if names.size == 0 or not keep.any():
                continue
            first = np.diff(np.cumsum(heap.first)[keep], prepend=-1) > 0
            values = counts.value[np.ix_(names, keep)]
            rising = np.flatnonzero(_gained(values, first) >= FEWEST_KEPT)
            work, load = view.work.rows(keep), view.load[keep]
            found = kept_under_traffic(values[rising], first, work, load)
            for at, kept in zip(names[rising].tolist(), found, strict=True):
                if kept is not None:
                    span = heap.t_s[keep]
                    ends = float(span[0]), float(span[-1])
                    one = _growing(heap, sort, counts, at, kept, ends)
                    yield replace(one, censuses=int(keep.sum()))


def _at_idle(view: HeapView) -> Iterator[Growing]:
    """Yield the growth that rounds between idle points agree on."""
    heap = view.heap
    points = [point for point in view.points if point.census is not None]
    places = [point.census for point in points if point.census is not None]
    if len(places) > FEWEST_ROUNDS:
        work = view.work_of(points)
        for sort, counts in ((Sort.ENTRIES, heap.entries), (Sort.OBJECTS, heap.types)):
            held = counts.value[:, places]
            late = np.diff(held[:, last_start(len(places)) :], axis=1)
            ample = np.count_nonzero(late >= _LEAST_OF_ROUND, axis=1)
            for at in np.flatnonzero((late.min(axis=1) >= 0) & (ample >= FEWEST_ROUNDS)):
                named = sort is Sort.ENTRIES and _is_one(heap, counts.names[at], counts.value[at])
                kept = kept_at_idle(held[at], work, FEW, _LEAST_OF_ROUND, named=named)
                if kept is not None:
                    one = _growing(heap, sort, counts, int(at), kept, _span(points))
                    seen = tuple(held[at].tolist())
                    yield replace(one, at_idle=seen, collected=view.collected)
    yield from _allocators(view)
    yield from _handles(view)


def _judged(view: HeapView, idle: Growing | None, traffic: Growing | None) -> Growing | None:
    """Combine both views of a name; None for growth under traffic that is gone when idle."""
    one = idle or traffic
    if one is None or (idle is None and traffic is not None and _gone_at_idle(view, traffic)):
        return None
    # A few new containers are as little evidence as a few new objects, however long they are.
    if not one.one and _came(view.heap, one.name) < FEWEST_KEPT:
        return None
    if idle is not None and traffic is not None:
        one = _combined(idle, traffic)
    if one.bound is not None:
        full = one.last >= one.bound
        return replace(one, kind=GrowthKind.FULL if full else GrowthKind.FILLS)
    if one.kept.slows:
        return replace(one, kind=GrowthKind.FILLS)
    doubt = one.doubt or doubt_of(view, one, at_idle=idle is not None)
    return replace(one, kind=GrowthKind.OPEN if doubt else GrowthKind.KEPT, doubt=doubt)


def _combined(idle: Growing, traffic: Growing) -> Growing:
    """Return ``idle``, with what the scans under traffic add to it.

    Idle points show how much is kept and for which event; the scans under traffic show whether it
    slows down.
    """
    # A fit does not override an exact count at every idle point.
    slows = idle.kept.slows or (traffic.kept.slows and not idle.kept.driver.exact)
    # Uneven rounds alone do not show that the growth continues.
    shown = idle.kept.steady or (traffic.kept.steady and not idle.kept.alike)
    # Idle points of a program that is never idle are off by a few entries.
    same = idle.kept.driver.counter == traffic.kept.driver.counter
    whole = idle.kept.whole or (traffic.kept.whole and same)
    own = replace(idle.kept, slows=slows, steady=shown and not slows, whole=whole)
    return replace(idle, censuses=traffic.censuses, kept=own)


def _allocators(view: HeapView) -> Iterator[Growing]:
    """Yield growth in blocks and bytes; they have no names, so more rounds must agree."""
    points = view.points
    if len(points) <= FEWEST_ROUNDS:
        return
    since_s, until_s = _span(points)
    work = view.work_of(points)
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
        noise = max(alone, each * _requests(work, events))
        kept = kept_at_idle(held, work, noise, 2.0 * noise)
        if kept is not None:
            name = "python_blocks" if sort is Sort.BLOCKS else "malloc_in_use_bytes"
            doubt = Doubt.NONE
            if not kept.slows:
                doubt = doubt_about_unnamed(view, held, kept, work, until_s - since_s)
            seen = tuple(held.tolist())
            yield Growing(
                *(view.heap, sort, name, kept, since_s, until_s),
                at_idle=seen,
                collected=view.collected,
                last=seen[-1],
                doubt=doubt,
            )


def _handles(view: HeapView) -> Iterator[Growing]:
    """Yield growth in open files, threads and processes, which the kernel counts."""
    for name in HANDLES:
        # A process has no count of zombies before its first one.
        points = [point for point in view.points if name in point.look.handles]
        held = np.array([point.look.handles[name] for point in points])
        if len(points) <= FEWEST_ROUNDS:
            continue
        kept = kept_at_idle(held, view.work_of(points), FEW, _LEAST_OF_ROUND)
        if kept is not None:
            seen = tuple(held.tolist())
            yield Growing(
                *(view.heap, Sort.HANDLES, name, kept, *_span(points)),
                at_idle=seen,
                collected=False,
                last=seen[-1],
            )


def _requests(work: Work, otherwise: float) -> float:
    """The largest number of events in one round, by the most informative counter."""
    known = [n for n in work.names if n in work.telling]
    if not known:
        return otherwise
    best = min(known, key=lambda name: work.rank(name, whole=False))
    return float(np.diff(work.columns[:, work.names.index(best)]).max())


def _growing(
    heap: Heap, sort: Sort, counts: Counts, at: int, kept: Kept, ends: tuple[float, float]
) -> Growing:
    name = counts.names[at]
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
        *ends,
        last=last,
        one=not entries or _is_one(heap, name, counts.value[at]),
        bound=limit if near else heap.bounds.get(name) if entries else None,
        limit=None if near else limit,
        expires=expires,
    )


def _is_one(heap: Heap, path: str, entries: FloatArray) -> bool:
    """Whether the entries came without new containers."""
    containers = heap.containers.of(path)
    if containers is None:
        return True
    came, grown = _came(heap, path), _gained(entries[None, :], heap.first)[0]
    # If the containers multiplied, their holder keeps them, however many entries each has.
    most = float(np.median(containers[: containers.size // 2]))
    multiplied = came >= FEWEST_KEPT and containers[-1] >= _MULTIPLIED * max(most, 1.0)
    # New containers explain the entries that they had when they came, not what was added later.
    steps = np.where(heap.first[1:], 0.0, np.diff(containers))
    with_them = float(np.sum(steps * entries[1:] / np.maximum(containers[1:], 1.0)))
    by_number = came > FEW and with_them >= _BY_NUMBER * grown
    return bool(came <= max(_OWN * grown, FEW)) and not multiplied and not by_number


def _came(heap: Heap, path: str) -> float:
    """The number of containers by which the path gained."""
    containers = heap.containers.of(path)
    return 0.0 if containers is None else float(_gained(containers[None, :], heap.first)[0])


def _gone_at_idle(view: HeapView, traffic: Growing) -> bool:
    """Whether idle points that should show the growth do not."""
    points = [point for point in view.points if point.census is not None]
    counts = view.heap.entries if traffic.sort is Sort.ENTRIES else view.heap.types
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
    return events > 0 and grown < STAYS * driver.per_event * events


def _span(points: Sequence[IdlePoint]) -> tuple[float, float]:
    return points[0].look.t_s, points[-1].look.t_s


def _gained(values: FloatArray, first: NDArray[np.bool_]) -> FloatArray:
    """[names]: the total gain within stretches."""
    gained: FloatArray = np.where(first[1:], 0.0, np.diff(values, axis=1)).sum(axis=1)
    return gained
