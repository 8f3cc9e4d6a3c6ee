"""Clock of a block served in slices; it excludes the time for which its version is frozen."""

from __future__ import annotations


class ActiveClock:
    """Records the frozen intervals of one block, in times of the monotonic clock."""

    def __init__(self) -> None:
        self._stops: list[tuple[float, float]] = []
        self._frozen_at_s: float | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether the version is frozen."""
        return self._frozen_at_s is not None

    def freeze(self, now_s: float) -> None:
        """Begin a frozen interval."""
        self._frozen_at_s = now_s

    def thaw(self, now_s: float) -> float:
        """End the frozen interval and return its length in seconds; 0 if not frozen."""
        if self._frozen_at_s is None:
            return 0.0
        stop = (self._frozen_at_s, now_s)
        self._stops.append(stop)
        self._frozen_at_s = None
        return stop[1] - stop[0]

    def between(self, start_s: float, end_s: float) -> float:
        """Return the seconds from ``start_s`` to ``end_s`` in which the version was not frozen."""
        stopped_s = sum(
            max(0.0, min(end_s, thawed_s) - max(start_s, frozen_s))
            for frozen_s, thawed_s in self._stops
        )
        return end_s - start_s - stopped_s
