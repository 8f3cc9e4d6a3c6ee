"""Whether the wall clock went its own way: the machine slept, or somebody set its clock."""

from __future__ import annotations

from hybridbench.clock import Clock

# Slewing by a time daemon stays far below this between two samples.
_JUMP_S = 2.0


class ClockWatch:
    """Compares the two clocks whenever it is asked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s = self._offset()

    def jump_s(self) -> float | None:
        """Seconds by which the wall clock jumped since the last call, backwards below zero."""
        offset_s = self._offset()
        jumped_s = offset_s - self._offset_s
        self._offset_s = offset_s
        return jumped_s if abs(jumped_s) > _JUMP_S else None

    def _offset(self) -> float:
        return self._clock.wall_s() - self._clock.monotonic_s()
