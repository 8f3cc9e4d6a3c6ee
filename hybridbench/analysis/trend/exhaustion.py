"""When a growing metric reaches the limit given in the run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.metrics import DEVICE_MEMORY, GRAPH_MEMORY, Unit
from hybridbench.foundation.units import format_bytes, format_count, format_duration
from hybridbench.records.finding import Rate

# Descriptions of the manifest's sources of a memory limit.
_LIMIT_SOURCES: Mapping[str, str] = {
    "cgroup": "the control group's memory limit",
    "MemAvailable": "what the machine had available at the start",
}
# Metrics of process memory, to which the machine's limit applies.
_PROCESS_MEMORY = ("rss_anon_swap_bytes", "gc_collectible_bytes")


@dataclass(frozen=True)
class Limit:
    """The maximum of a metric, in its unit, and its source in words."""

    size: float
    said: str


class Exhaustion(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from now until ``limit`` at the estimated rate, and at the ends of its interval.

    ``limit_is`` describes the limit in words.
    """

    expected_s: float
    soonest_s: float
    latest_s: float | None  # None if the lower end of the interval does not grow
    limit: float
    limit_is: str

    def text(self, unit: str) -> str:
        """Return a sentence part; ``unit`` is the unit of the limit."""
        limit = (format_bytes if unit == Unit.BYTES else format_count)(self.limit)
        latest = "never" if self.latest_s is None else format_duration(self.latest_s)
        return (
            f"at this rate the limit of {limit} is reached in {format_duration(self.expected_s)} "
            f"({format_duration(self.soonest_s)} to {latest}) ({self.limit_is})"
        )


def limit_of(record: RunRecord, metric: str) -> Limit | None:
    """Return the manifest's limit for ``metric``, or None."""
    limits = record.manifest.limits
    if metric in _PROCESS_MEMORY:
        source = limits.memory_source or ""
        return _known_limit(limits.memory_bytes or 0.0, _LIMIT_SOURCES.get(source, "the limit"))
    if metric in (DEVICE_MEMORY, GRAPH_MEMORY):
        return _known_limit(limits.device_bytes or 0.0, "what the device had for the engine")
    if metric == "open_fds":
        return _known_limit(limits.open_files or 0.0, "the process's limit of open files")
    family, _, rest = metric.partition(".")
    pool = rest.partition(".")[0]
    if family == "pool" and pool:
        size = record.manifest.pools.get(pool, 0.0)
        return _known_limit(size, f"the size of the {pool} pool")
    return None


def _known_limit(size: float, said: str) -> Limit | None:
    return Limit(size, said) if size > 0 else None


def time_to_exhaustion(limit: Limit, now: float, rate_per_hour: Rate) -> Exhaustion | None:
    """Return when ``now`` reaches ``limit`` at ``rate_per_hour``; None if there is no growth.

    The times are 0 if ``now`` is already past the limit.
    """
    if rate_per_hour.value <= 0:
        return None
    room = max(0.0, limit.size - now) * 3600.0
    latest = room / rate_per_hour.lower if rate_per_hour.lower > 0 else None
    return Exhaustion(
        expected_s=room / rate_per_hour.value,
        soonest_s=room / rate_per_hour.upper,
        latest_s=latest,
        limit=limit.size,
        limit_is=limit.said,
    )
