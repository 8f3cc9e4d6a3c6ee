"""Traffic time: the driver's clock without the pauses, starting at 0 with the first reading."""

from __future__ import annotations

import math


class TrafficClock:
    """Stops while paused, so that nothing accumulates and becomes due at once afterwards."""

    def __init__(self) -> None:
        self._zero_s: float | None = None
        self._paused_at_s: float | None = None

    @property
    def paused(self) -> bool:
        return self._paused_at_s is not None

    def at(self, now_s: float) -> float:
        """Return traffic time at ``now_s``; the first call sets the zero."""
        if self._zero_s is None:
            self._zero_s = now_s
        here_s = now_s if self._paused_at_s is None else self._paused_at_s
        return here_s - self._zero_s

    def moment_s(self, time_s: float) -> float:
        """Convert traffic time ``time_s`` to the driver's clock."""
        return time_s + (self._zero_s or 0.0)

    def wake_s(self, time_s: float, now_s: float) -> float:
        """Convert traffic time ``time_s`` to the driver's clock, strictly later than ``now_s``."""
        # Rounding could give exactly now, and a driver that waits for now would never advance.
        return max(self.moment_s(time_s), math.nextafter(now_s, math.inf))

    def pause(self, now_s: float) -> None:
        """Stop; a second pause has no effect."""
        if self._paused_at_s is None:
            self.at(now_s)
            self._paused_at_s = now_s

    def resume(self, now_s: float) -> None:
        """Continue; no effect without a pause."""
        if self._paused_at_s is not None and self._zero_s is not None:
            self._zero_s += now_s - self._paused_at_s
            self._paused_at_s = None
