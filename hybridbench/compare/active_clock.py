"""The time of a block that is served in slices: what passes while a version stands still is not
its own.
"""

from __future__ import annotations


class ActiveClock:
    """Adds up the stops of one block.  Stamps are of the monotonic clock."""

    def __init__(self) -> None:
        self._stops: list[tuple[float, float]] = []
        self._frozen_at_s: float | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether it stands still."""
        return self._frozen_at_s is not None

    def freeze(self, now_s: float) -> None:
        """From now on it stands still."""
        self._frozen_at_s = now_s

    def thaw(self, now_s: float) -> float:
        """It goes on; returns how long it stood still, 0 if it did not."""
        if self._frozen_at_s is None:
            return 0.0
        stop = (self._frozen_at_s, now_s)
        self._stops.append(stop)
        self._frozen_at_s = None
        return stop[1] - stop[0]

    def between(self, start_s: float, end_s: float) -> float:
        """What of the time from ``start_s`` to ``end_s`` was its own."""
        stopped_s = sum(
            max(0.0, min(end_s, thawed_s) - max(start_s, frozen_s))
            for frozen_s, thawed_s in self._stops
        )
        return end_s - start_s - stopped_s
