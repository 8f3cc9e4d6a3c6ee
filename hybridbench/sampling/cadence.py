"""When the next sample is due, with its lateness, and the next heap scan, within its cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

STOP_SHARE_MAX = 0.006
CHILD_SHARE_MAX = 0.4


@dataclass
class Beat:
    """Due every ``interval_s`` from ``start_s`` on; a missed beat is skipped, not made up for."""

    interval_s: float
    start_s: float
    next_s: float = field(init=False)

    def __post_init__(self) -> None:
        if self.interval_s <= 0:
            raise ValueError(f"a beat every {self.interval_s} s; the interval must be above 0")
        self.next_s = self.start_s

    def restart(self, now_s: float) -> None:
        """Due now, and from now on by this grid: what was missed before is nobody's lateness."""
        self.next_s = now_s

    def take(self, now_s: float) -> float | None:
        """If a beat is due, take it and return how late it is in seconds; otherwise None."""
        late_s = now_s - self.next_s
        if late_s < 0:
            return None
        # The next beat of the same grid that lies ahead: lateness must not add up.
        self.next_s += self.interval_s * (math.floor(late_s / self.interval_s) + 1)
        return late_s


@dataclass
class ScanPace:
    """When the next heap scan is due: as planned, or more seldom where each one is felt.

    A stop grows with the heap (a fork copies page tables), and so does the child's work.  The
    interval stretches so that stops stay below ``STOP_SHARE_MAX`` of a processor and children below
    ``CHILD_SHARE_MAX`` of one.  Both are counted in processor time: on a machine with other work a
    fork waits for its turn several times as long as it runs, as any step of the engine does, and
    scans that were spaced by that would become too few to judge by.
    """

    planned_s: float
    next_s: float
    stall_max_s: float | None = None  # what one scan may hold the loop; None is no limit
    given_up: bool = field(default=False, init=False)
    _last_stop_s: float | None = field(default=None, init=False)
    _asked_s: float = field(default=0.0, init=False)
    _stop_cpu_s: float = field(default=0.0, init=False)
    _child_s: float = field(default=0.0, init=False)

    @property
    def interval_s(self) -> float:
        """Seconds from one scan to the next."""
        return max(
            self.planned_s, self._stop_cpu_s / STOP_SHARE_MAX, self._child_s / CHILD_SHARE_MAX
        )

    def due(self, now_s: float) -> bool:
        """Whether to ask for a scan now."""
        return not self.given_up and now_s >= self.next_s

    def asked(self, now_s: float) -> None:
        """A scan was asked for."""
        self._asked_s = now_s
        self.next_s = now_s + self.interval_s

    def learn(self, stop_s: float, child_s: float, stop_cpu_s: float | None = None) -> None:
        """What a scan took.

        Args:
            stop_s: for so long it held the loop.
            child_s: processor time of its child.
            stop_cpu_s: processor time of the stop; None if unknown, then all of ``stop_s``.
        """
        if self.stall_max_s is not None and self._last_stop_s is not None:
            self.given_up |= min(stop_s, self._last_stop_s) > self.stall_max_s
        self._last_stop_s = stop_s
        stop_cpu_s = stop_s if stop_cpu_s is None else stop_cpu_s
        self._stop_cpu_s = _smoothed(self._stop_cpu_s, stop_cpu_s)
        self._child_s = _smoothed(self._child_s, child_s)
        self.next_s = max(self.next_s, self._asked_s + self.interval_s)


def _smoothed(before: float, seen: float) -> float:
    """One outlier counts for a third."""
    return seen if before == 0.0 else 0.7 * before + 0.3 * seen
