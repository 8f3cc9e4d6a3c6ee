"""How long until a leak uses up what the process may take."""

from __future__ import annotations

from dataclasses import dataclass

from hybridbench.analysis.findings import Rate
from hybridbench.units import format_duration


@dataclass(frozen=True)
class Exhaustion:
    """Seconds from now at the estimated rate, and at the two ends of its interval."""

    expected_s: float
    soonest_s: float
    latest_s: float | None  # None where the interval's lower end does not grow

    def __str__(self) -> str:
        latest = format_duration(self.latest_s) if self.latest_s is not None else "never"
        return f"{format_duration(self.expected_s)} [{format_duration(self.soonest_s)}, {latest}]"


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
