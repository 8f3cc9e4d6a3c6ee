"""Which payload a request brings: one of its own, or one that others brought before."""

from __future__ import annotations

from random import Random
from typing import Final

from hybridbench.workload.settings import Prompts

REPEATED_PAYLOADS: Final = 8  # as many different ones are sent again and again


class PayloadDraws:
    """Payloads by size and seed; equal seeds are equal payloads."""

    def __init__(self, prompts: Prompts, random: Random) -> None:
        """``random`` is used by these draws alone."""
        self._size_bytes = prompts.payload_bytes
        self._repeat = prompts.payload_repeat
        self._random = random
        # Seeds below are those of the repeated ones.
        self._next_seed = REPEATED_PAYLOADS

    def draw(self) -> tuple[int, int]:
        """Size in bytes and seed of the next request's payload; (0, 0) if there are none."""
        if not self._size_bytes:
            return 0, 0
        if self._random.random() < self._repeat:
            return self._size_bytes, self._random.randrange(REPEATED_PAYLOADS)
        self._next_seed += 1
        return self._size_bytes, self._next_seed - 1
