"""How long until a leak uses up what the process may take, and what it is that sets the limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridbench.analysis.reading import mapping, number, text
from hybridbench.analysis.record import RunRecord
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Rate
from hybridbench.units import format_duration

# What the manifest's word for the source of a memory limit means to a reader.
_SOURCES: Mapping[str, str] = {
    "cgroup": "the control group's memory limit",
    "MemAvailable": "what the machine had available at the start",
}
# Memory that the worker's own limit ends; a limit of the machine ends all of them.
_MEMORY = ("rss_anon_swap_bytes", "gc_collectible_bytes")


@dataclass(frozen=True)
class Limit:
    """The most that a metric can reach, in its unit, and in words what says so."""

    size: float
    said: str


@dataclass(frozen=True)
class Exhaustion:
    """Seconds from now at the estimated rate, and at the two ends of its interval."""

    expected_s: float
    soonest_s: float
    latest_s: float | None  # None where the interval's lower end does not grow

    def __str__(self) -> str:
        latest = format_duration(self.latest_s) if self.latest_s is not None else "never"
        return f"{format_duration(self.expected_s)} [{format_duration(self.soonest_s)}, {latest}]"

    def as_data(self, limit: Limit) -> dict[str, JsonValue]:
        """For a finding's ``data``: what the rule for stopping early reads."""
        return {
            "expected_s": self.expected_s,
            "soonest_s": self.soonest_s,
            "latest_s": self.latest_s,
            "limit": limit.size,
            "limit_is": limit.said,
        }


def limit_of(record: RunRecord, metric: str) -> Limit | None:
    """The limit that the run's manifest knows for ``metric``; None if it knows none."""
    limits = mapping(record.manifest, "limits")
    if metric in _MEMORY:
        source = text(limits, "memory_source")
        return _known(number(limits, "memory_bytes"), _SOURCES.get(source, "the limit"))
    if metric == "open_fds":
        return _known(number(limits, "open_files"), "the process's limit of open files")
    family, _, rest = metric.partition(".")
    pool = rest.partition(".")[0]
    if family == "pool" and pool:
        size = number(mapping(record.manifest, "pools"), pool)
        return _known(size, f"the size of the {pool} pool")
    return None


def _known(size: float, said: str) -> Limit | None:
    return Limit(size, said) if size > 0 else None


def time_to_exhaustion(limit: float, now: float, rate_per_hour: Rate) -> Exhaustion | None:
    """When ``now`` reaches ``limit`` at ``rate_per_hour``; None if it does not grow or there is no
    limit.

    Already past the limit is zero seconds away.
    """
    if limit <= 0 or rate_per_hour.value <= 0:
        return None
    room = max(0.0, limit - now) * 3600.0
    latest = room / rate_per_hour.lower if rate_per_hour.lower > 0 else None
    return Exhaustion(room / rate_per_hour.value, room / rate_per_hour.upper, latest)
