"""The analysis's input: a run's manifest, series and rare events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridbench.foundation.latency import BUCKETS, LatencyHistogram
from hybridbench.foundation.metrics import MetricSpec
from hybridbench.records.events import Event
from hybridbench.records.manifest import Manifest

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
_Event = TypeVar("_Event", bound=Event)


@dataclass(frozen=True)
class Series:
    """One metric over time; samples may be irregular, and each metric has its own times."""

    name: str
    t_s: FloatArray  # seconds since the run started, strictly rising
    value: FloatArray

    def __post_init__(self) -> None:
        if self.t_s.shape != self.value.shape or self.t_s.ndim != 1:
            raise ValueError(
                f"{self.name}: times {self.t_s.shape} and values {self.value.shape} do not pair up"
            )

    def __len__(self) -> int:
        return int(self.t_s.size)

    def between(self, start_s: float, end_s: float) -> Series:
        """The samples with ``start_s <= t <= end_s``."""
        keep = (self.t_s >= start_s) & (self.t_s <= end_s)
        return Series(self.name, self.t_s[keep], self.value[keep])

    def around(self, t_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the last value at or before each time, and the first at or after it."""
        last = len(self) - 1
        before = np.clip(np.searchsorted(self.t_s, t_s, side="right") - 1, 0, last)
        after = np.clip(np.searchsorted(self.t_s, t_s, side="left"), 0, last)
        return self.value[before], self.value[after]


@dataclass(frozen=True)
class LatencySeries:
    """One latency over time, as histograms of successive intervals.

    In the interval that ends at ``t_s``, ``count`` durations fell into ``bucket`` of a
    ``LatencyHistogram``.  An interval has one entry per bucket that is not empty.
    """

    t_s: FloatArray  # non-decreasing
    bucket: IntArray
    count: IntArray

    def where(self, keep: NDArray[np.bool_]) -> LatencySeries:
        """Select the entries that ``keep`` marks."""
        return LatencySeries(self.t_s[keep], self.bucket[keep], self.count[keep])

    def histogram(self) -> LatencyHistogram:
        """Combine all intervals."""
        histogram = LatencyHistogram()
        counts = np.bincount(self.bucket, self.count, BUCKETS)
        histogram.add_counts({int(b): int(counts[b]) for b in np.flatnonzero(counts)})
        return histogram


@dataclass(frozen=True)
class Drivers:
    """The series of a target that measure its work and its load.

    Args:
        works: cumulative counters of work, the most informative first.
        requests: the counter for rates per request; empty if none counts requests.
        loads: requests in flight, which move most levels.
    """

    works: tuple[str, ...] = ()
    requests: str = ""
    loads: tuple[str, ...] = ()


# Prefix of counters that the target itself reports.
SCRAPED: Final = "scraped."
# Counters of the exporter and its interpreter, after the prefix: they always move.
OF_EXPORTER: Final = ("process_", "python_")

# Drivers of the bundled engine, and of engines with the same wire protocol.
BUNDLED_DRIVERS: Final = Drivers(
    works=("events.finishes", "events.output_tokens", "events.prompt_tokens"),
    requests="events.finishes",
    loads=("running_requests", "waiting_requests"),
)


# Substrings of the names of a target's counters that measure its work, most informative first.
_TELLING: Final = ("finish", "success", "complet", "request", "token")


def observed_drivers(names: Iterable[str]) -> Drivers:
    """Return the drivers of a target that is not the bundled engine.

    They are our load client's counters, if it sends the traffic, and the target's own counters,
    ranked by name.
    """
    names = list(names)
    ranked = sorted(
        (min((_TELLING.index(word) for word in _TELLING if word in name), default=9), name)
        for name in names
        if name.startswith(SCRAPED)
    )
    works = tuple(name for _, name in ranked)
    if BUNDLED_DRIVERS.requests in names:
        ours = tuple(name for name in BUNDLED_DRIVERS.works if name in names)
        return Drivers((*ours, *works), BUNDLED_DRIVERS.requests, BUNDLED_DRIVERS.loads)
    first = works[0] if works and ranked[0][0] < _TELLING.index("token") else ""
    return Drivers(works, first, BUNDLED_DRIVERS.loads)


@dataclass(frozen=True)
class Gate:
    """How one series is judged: direction, unit and floors come from its ``spec``.

    ``limit_per_hour`` is the largest tolerated worsening; None for the usual tolerance.
    ``collected`` means that a garbage collector empties the level.
    """

    spec: MetricSpec
    limit_per_hour: float | None = None
    collected: bool = False


@dataclass(frozen=True)
class RunRecord:
    """Everything recorded about a stored run.

    ``gates`` is set for undeclared series, by name; then only these series are judged.
    """

    manifest: Manifest
    series: Mapping[str, Series]
    events: Sequence[Event]
    latencies: Mapping[str, LatencySeries] = field(default_factory=dict)
    drivers: Drivers = BUNDLED_DRIVERS
    gates: Mapping[str, Gate] | None = None

    @property
    def span_s(self) -> tuple[float, float]:
        """Times of the first and the last sample; zeros if there is none."""
        sampled = [one.t_s for one in self.series.values() if len(one)]
        if not sampled:
            return 0.0, 0.0
        return min(float(t_s[0]) for t_s in sampled), max(float(t_s[-1]) for t_s in sampled)

    @property
    def last_moment_s(self) -> float:
        """Time of the last sample or event."""
        return max([self.span_s[1], *(event.t_s for event in self.events)])

    def until(self, end_s: float) -> RunRecord:
        """Return the record as it was at ``end_s``."""
        series = {name: s.between(0.0, end_s) for name, s in self.series.items()}
        events = tuple(event for event in self.events if event.t_s <= end_s)
        counted = {name: one.where(one.t_s <= end_s) for name, one in self.latencies.items()}
        kept = {name: one for name, one in series.items() if len(one)}
        return replace(self, series=kept, events=events, latencies=counted)

    def last_event(self, kind: type[_Event]) -> _Event | None:
        """Return the latest event of ``kind``, or None."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)

    def all_events(self, kind: type[_Event]) -> list[_Event]:
        """Return all events of ``kind``, oldest first."""
        return [event for event in self.events if isinstance(event, kind)]
