"""Why a growing count may not be a leak: a cache that fills, a window, garbage, an expiry."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from hybridbench.analysis.drivers.at_idle import FEWEST_ROUNDS
from hybridbench.analysis.drivers.growing import Doubt, Growing, Sort
from hybridbench.analysis.drivers.heap_view import FEW, HeapView
from hybridbench.analysis.drivers.kept import FEWEST_KEPT, Kept, Work
from hybridbench.analysis.facts.window import LEAK_WITHOUT_STEADY_S
from hybridbench.analysis.record import FloatArray

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
STAYS: Final = 0.5  # share of the growth under traffic that must remain when idle


def doubt_of(view: HeapView, one: Growing, *, at_idle: bool) -> Doubt:
    """Return why ``one`` is not called kept; ``at_idle`` if idle points show it."""
    kept = one.kept
    if not kept.steady:
        return Doubt.PACE
    if not (at_idle and view.collected):
        if one.sort is Sort.OBJECTS:
            return Doubt.GARBAGE
        if one.sort is Sort.ENTRIES and not one.one:
            return Doubt.MANY
    span_s = one.until_s - one.since_s
    if span_s < LEAST_TIMED_S and kept.timed and _traffic_may_have_risen(view, one):
        return Doubt.CLOCK
    is_counted = kept.whole or (kept.counted and one.last > WINDOW)
    if not is_counted and span_s < LEAST_S:
        return Doubt.PARTS
    if _may_be_window(view, one):
        return Doubt.WINDOW
    return _limited(view, one) or _stopped(view, one)


def doubt_about_unnamed(
    view: HeapView, held: FloatArray, kept: Kept, work: Work, span_s: float
) -> Doubt:
    """Return why growth of blocks or bytes, ``held`` at the idle points, is not called kept."""
    if not kept.steady or kept.rounds < _ROUNDS_UNNAMED or kept.driver.events <= WINDOW:
        return Doubt.PACE
    if not view.collected:
        return Doubt.GARBAGE
    if not _rose_since_full(view, held, kept, work):
        return Doubt.CACHE
    if not view.is_steady and span_s < LEAK_WITHOUT_STEADY_S:
        return Doubt.UNNAMED
    return Doubt.NONE


def _limited(view: HeapView, one: Growing) -> Doubt:
    """Check for a limit that the count has not reached: its own, an expiry, the KV cache's."""
    if one.limit is not None:
        return Doubt.LIMIT
    if one.expires and one.until_s - one.since_s < LEAK_WITHOUT_STEADY_S:
        return Doubt.EXPIRY
    return Doubt.CACHE if _may_be_cache(view, one) else Doubt.NONE


def _traffic_may_have_risen(view: HeapView, one: Growing) -> bool:
    """Whether no counter of work and no processor time shows that traffic did not rise."""
    if view.main or view.cpu is None or len(view.cpu) < 2:
        return not view.main
    times = np.linspace(one.since_s, one.until_s, 3)
    early_s, late_s = np.diff(np.interp(times, view.cpu.t_s, view.cpu.value)).tolist()
    # Processor time falls where a process was started anew.
    return not 0.0 <= late_s <= _AS_BUSY * early_s


def _may_be_window(view: HeapView, one: Growing) -> bool:
    """Whether the count may be a window of the most recent requests that is not full yet."""
    driver = one.kept.driver
    if one.kept.timed:  # each entry may be that of an event
        return one.last <= WINDOW and one.name != "zombies"
    few = one.last <= WINDOW * max(driver.per_event, 1.0)
    return few and driver.counter in view.main and driver.upper >= 1.0


def _may_be_cache(view: HeapView, one: Growing) -> bool:
    """Whether the count may be growing only because the KV cache is not full yet.

    It may if it is within what the cache can hold, unless it kept growing with its event after
    the cache was full.
    """
    if view.cache is None or one.sort is Sort.HANDLES or one.last > view.cache.most:
        return False
    since = int(np.searchsorted(view.heap.t_s, view.fills_until_s))
    last = view.heap.t_s.size - 1
    return since >= last or _went_on(view, one, since, last) is not True


def _stopped(view: HeapView, one: Growing) -> Doubt:
    """Check whether scans outside the comparison show that the growth stops.

    These are the scans after the last idle point, and those of earlier processes of this role:
    a process younger than its entries' lifetime appears to keep them forever.
    """
    starts = np.flatnonzero(view.heap.first)
    earlier = pairwise(starts.tolist())
    if any(_went_on(view, one, (a + b) // 2, b - 1) is False for a, b in earlier):
        return Doubt.EARLIER
    idle = [p.census for p in view.points if p.census is not None]
    last = view.heap.t_s.size - 1
    stopped = bool(idle) and _went_on(view, one, idle[-1], last) is False
    return Doubt.STOPPED if stopped else Doubt.NONE


def _went_on(view: HeapView, one: Growing, start: int, last: int) -> bool | None:
    """Whether the count grew with its event between two scans; None with too few events."""
    heap, driver = view.heap, one.kept.driver
    held = (heap.entries if one.sort is Sort.ENTRIES else heap.types).of(one.name)
    if held is None or driver.counter not in view.work.names:
        return None
    events = view.work.columns[:, view.work.names.index(driver.counter)]
    expected = driver.per_event * float(events[last] - events[start])
    if expected < FEWEST_KEPT:
        return None
    slack = (1.0 - STAYS) * expected
    if one.kept.whole:  # both are read a moment apart, with requests in flight
        per_s = expected / max(float(heap.t_s[last] - heap.t_s[start]), 1e-9)
        slack = FEW + _APART_S * per_s + _APART * expected
    return expected - float(held[last] - held[start]) <= slack


def _rose_since_full(view: HeapView, held: FloatArray, kept: Kept, work: Work) -> bool:
    """Whether ``held`` at the idle points kept growing after the KV cache was full."""
    after = [p.look.t_s >= view.fills_until_s for p in view.points]
    if after.count(True) < FEWEST_ROUNDS or kept.driver.counter not in work.names:
        return False
    events = work.columns[:, work.names.index(kept.driver.counter)][after]
    expected = kept.driver.per_event * float(events[-1] - events[0])
    rose = held[after]
    return bool(rose[-1] - rose[0] >= STAYS * expected)
