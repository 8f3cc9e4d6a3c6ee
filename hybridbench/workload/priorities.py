"""Which priority a request brings: drawn by the shares of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hybridbench.workload.settings import PriorityShare


class PriorityDraws:
    """Priorities by share; what the shares leave over brings none."""

    def __init__(self, shares: Sequence[PriorityShare], random: Random) -> None:
        """``random`` is used by these draws alone."""
        self._shares = tuple(shares)
        self._random = random

    def draw(self) -> int | None:
        """The next request's priority, or None."""
        if not self._shares:
            return None
        left = self._random.random()
        for entry in self._shares:
            left -= entry.share
            if left < 0:
                return entry.value
        return None
