"""A growing count in the heap of a process, and why it may not be a leak."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hybridbench.analysis.drivers.kept import Kept
from hybridbench.analysis.drivers.search import TIME
from hybridbench.analysis.facts.censuses import Heap
from hybridbench.records.events import BYTES


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
    since_s: float
    until_s: float
    kind: GrowthKind = GrowthKind.OPEN
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
