"""A client's side of streaming sessions: which conversations have one, and when it is closed.

Times are seconds of traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from hybridbench.workload.rng_streams import stream
from hybridbench.workload.settings import Sessions

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ClientSession:
    """One session from the client's point of view.

    ``is_open`` is true from the first turn until the client has closed the session or has learned
    that it no longer exists; ``close_busy`` and ``abandoned`` say how it will end.
    """

    session_id: str
    close_busy: bool = False
    abandoned: bool = False
    is_open: bool = False


class SessionPlan:
    """Draws a profile's sessions, from a separate random stream."""

    def __init__(self, settings: Sessions, seed: int) -> None:
        """With a share of zero nothing is ever drawn."""
        self._settings = settings
        self._random = stream(seed, "sessions")
        self._drawn = 0

    def draw(self) -> ClientSession | None:
        """Return the session of a new conversation, not yet open; None if it has no session."""
        settings = self._settings
        if not settings.share or self._random.random() >= settings.share:
            return None
        self._drawn += 1
        end = self._random.random()
        return ClientSession(
            f"s{self._drawn}",
            close_busy=end < settings.close_busy,
            abandoned=settings.close_busy <= end < settings.close_busy + settings.abandon,
        )

    def think_s(self) -> float:
        """Return how long the client thinks before its next turn."""
        return self._settings.think_s * self._around_one()

    def hold_s(self) -> float:
        """Return how long the session stays open after its last turn."""
        return self._settings.hold_s * self._around_one()

    def _around_one(self) -> float:
        return 0.5 + self._random.random()


class Waiting(Generic[T]):
    """Items ordered by due time, earliest first; equal times keep their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float | None:
        """When the first item is due."""
        return self._heap[0][0] if self._heap else None

    def add(self, due_s: float, item: T) -> None:
        """Add ``item``, due at ``due_s``."""
        self._added += 1
        heappush(self._heap, (due_s, self._added, item))

    def due(self, time_s: float | None) -> list[T]:
        """Remove and return the items due by ``time_s``; all of them for None."""
        taken = []
        while self._heap and (time_s is None or self._heap[0][0] <= time_s):
            taken.append(heappop(self._heap)[2])
        return taken
