"""When the next sample is due and how late it is, and when the next heap scan is affordable."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

STOP_SHARE_MAX = 0.006
CHILD_SHARE_MAX = 0.4


@dataclass
class Beat:
    """A beat every ``interval_s`` from ``start_s`` on; missed beats are skipped, not caught up."""

    interval_s: float
    start_s: float
    next_s: float = field(init=False)

    def __post_init__(self) -> None:
        if self.interval_s <= 0:
            raise ValueError(f"a beat every {self.interval_s} s; the interval must be above 0")
        self.next_s = self.start_s

    def restart(self, now_s: float) -> None:
        """Restart the grid, due now; beats missed before do not count as lateness."""
        self.next_s = now_s

    def take(self, now_s: float) -> float | None:
        """If a beat is due, take it and return its lateness in seconds; otherwise None."""
        late_s = now_s - self.next_s
        if late_s < 0:
            return None
        # Stay on the same grid, so that lateness does not accumulate.
        self.next_s += self.interval_s * (math.floor(late_s / self.interval_s) + 1)
        return late_s


@dataclass
class ScanPace:
    """When the next heap scan is due: as planned, or less often if scans are expensive.

    A larger heap makes the stop longer (a fork copies page tables) and gives the child more work.
    The interval stretches so that stops stay below ``STOP_SHARE_MAX`` of a CPU and children below
    ``CHILD_SHARE_MAX`` of one.  Both are measured in CPU time: on a busy machine a fork, like any
    step of the engine, waits for a CPU several times as long as it runs, and spacing scans by wall
    time would leave too few for a verdict.
    """

    planned_s: float
    next_s: float
    stall_max_s: float | None = None  # longest time one scan may stop the loop; None for no limit
    given_up: bool = field(default=False, init=False)
    _last_stop_s: float | None = field(default=None, init=False)
    _asked_s: float = field(default=0.0, init=False)
    _stop_cpu_s: float = field(default=0.0, init=False)
    _child_s: float = field(default=0.0, init=False)

    @property
    def interval_s(self) -> float:
        """Seconds between scans."""
        return max(
            self.planned_s, self._stop_cpu_s / STOP_SHARE_MAX, self._child_s / CHILD_SHARE_MAX
        )

    def due(self, now_s: float) -> bool:
        """Whether to request a scan now."""
        return not self.given_up and now_s >= self.next_s

    def asked(self, now_s: float) -> None:
        """Record that a scan was requested."""
        self._asked_s = now_s
        self.next_s = now_s + self.interval_s

    def learn(self, stop_s: float, child_s: float, stop_cpu_s: float | None = None) -> None:
        """Update the pace from the cost of a scan.

        Args:
            stop_s: how long it stopped the loop.
            child_s: CPU time of its child.
            stop_cpu_s: CPU time of the stop; None if unknown, then ``stop_s`` is used.
        """
        if self.stall_max_s is not None and self._last_stop_s is not None:
            self.given_up |= min(stop_s, self._last_stop_s) > self.stall_max_s
        self._last_stop_s = stop_s
        stop_cpu_s = stop_s if stop_cpu_s is None else stop_cpu_s
        self._stop_cpu_s = _smoothed(self._stop_cpu_s, stop_cpu_s)
        self._child_s = _smoothed(self._child_s, child_s)
        self.next_s = max(self.next_s, self._asked_s + self.interval_s)


def _smoothed(before: float, seen: float) -> float:
    """Exponential smoothing, in which one value counts for a third."""
    return seen if before == 0.0 else 0.7 * before + 0.3 * seen
