"""How a request is meant to end: by itself, aborted at a stage, or left by its client."""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import Final

from hybridbench.workload.settings import Aborts

# The reasons of an end that is an answer; any other is that of an abort.
ANSWERED: Final = frozenset({"length", "stop"})


class Ending(StrEnum):
    """What the workload will do to a request."""

    NATURAL = "natural"
    ABORT_QUEUED = "abort_queued"
    ABORT_PREFILL = "abort_prefill"
    ABORT_DECODE = "abort_decode"
    DISCONNECT = "disconnect"

    @property
    def in_decode(self) -> bool:
        """Whether it happens after the first token, and so wants a long answer."""
        return self in (Ending.ABORT_DECODE, Ending.DISCONNECT)


class EndingPlan:
    """Draws endings by the shares of a profile, and the token after which a decode is cut."""

    def __init__(self, aborts: Aborts, random: Random) -> None:
        """``random`` is used by this plan alone."""
        self._random = random
        self._shares = (
            (Ending.ABORT_QUEUED, aborts.queued),
            (Ending.ABORT_PREFILL, aborts.prefill),
            (Ending.ABORT_DECODE, aborts.decode),
            (Ending.DISCONNECT, aborts.disconnect),
        )

    def draw(self) -> Ending:
        """The ending of the next request."""
        left = self._random.random()
        for ending, share in self._shares:
            if left < share:
                return ending
            left -= share
        return Ending.NATURAL

    def tokens_before_cut(self, max_new_tokens: int) -> int:
        """Tokens after the first one that a request may still put out: less than half of them."""
        return self._random.randrange(max(1, max_new_tokens // 2))


class TokenPace:
    """A running mean of the time between two tokens, from requests that finished."""

    def __init__(self, weight: float = 0.1) -> None:
        """``weight`` is that of the newest request."""
        self._weight = weight
        self._interval_s = 0.0

    def learn(self, duration_s: float, intervals: int) -> None:
        """A request took ``duration_s`` from its first to its last token."""
        if intervals > 0:
            self._interval_s += self._weight * (duration_s / intervals - self._interval_s)

    def expected_s(self, tokens: int) -> float:
        """How long ``tokens`` more tokens take."""
        return tokens * self._interval_s
