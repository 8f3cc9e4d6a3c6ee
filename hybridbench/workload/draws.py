"""Draw a request's properties: how it ends, its payload, priority and sampling parameters.

Each is drawn by the shares of the profile, from a separate random stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Final

from msgspec.structs import asdict

from hybridbench.records.messages import ALL_TOKENS, Sampling, Submit
from hybridbench.workload.actions import Malformed, ServerSubmit
from hybridbench.workload.settings import (
    Aborts,
    BadInput,
    PriorityShare,
    Prompts,
    RequestOptions,
    SamplingSettings,
)

# Finish reasons of complete answers; all others are aborts.
ANSWERED: Final = frozenset({"length", "stop"})
REPEATED_PAYLOADS: Final = 8  # number of distinct payloads that are sent repeatedly
_SEEDS: Final = 2**31
_LIKELIEST: Final = 4  # most probable tokens at each place, for a request with logprobs
_NEWEST_WEIGHT: Final = 0.1  # weight of the newest value in a running mean


class Ending(StrEnum):
    """How a request will end, unless the engine ends it earlier."""

    NATURAL = "natural"
    ABORT_QUEUED = "abort_queued"
    ABORT_PREFILL = "abort_prefill"
    ABORT_DECODE = "abort_decode"
    DISCONNECT = "disconnect"

    @property
    def in_decode(self) -> bool:
        """Whether the request is cut after its first token, and so needs a long answer."""
        return self in (Ending.ABORT_DECODE, Ending.DISCONNECT)


class EndingPlan:
    """Draws endings by the shares of a profile, and the token at which a decode is cut."""

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
        """Return the ending of the next request."""
        left = self._random.random()
        for ending, share in self._shares:
            if left < share:
                return ending
            left -= share
        return Ending.NATURAL

    def tokens_before_cut(self, max_new_tokens: int) -> int:
        """Return how many tokens may follow the first one: less than half of the maximum."""
        return self._random.randrange(max(1, max_new_tokens // 2))


class TokenPace:
    """A running mean of the time between two tokens, from finished requests."""

    def __init__(self) -> None:
        self._interval_s = 0.0

    def learn(self, duration_s: float, intervals: int) -> None:
        """Process a request that took ``duration_s`` from its first to its last token."""
        if intervals > 0:
            self._interval_s += _NEWEST_WEIGHT * (duration_s / intervals - self._interval_s)

    def expected_s(self, tokens: int) -> float:
        """Return how long ``tokens`` more tokens are expected to take."""
        return tokens * self._interval_s


class PayloadDraws:
    """Draws payloads, as size and seed; equal seeds give equal payloads."""

    def __init__(self, prompts: Prompts, random: Random) -> None:
        """``random`` is used by these draws alone."""
        self._size_bytes = prompts.payload_bytes
        self._repeat = prompts.payload_repeat
        self._random = random
        # Lower seeds are reserved for the repeated payloads.
        self._next_seed = REPEATED_PAYLOADS

    def draw(self) -> tuple[int, int]:
        """Return size in bytes and seed of the next request's payload; (0, 0) without payloads."""
        if not self._size_bytes:
            return 0, 0
        if self._random.random() < self._repeat:
            return self._size_bytes, self._random.randrange(REPEATED_PAYLOADS)
        self._next_seed += 1
        return self._size_bytes, self._next_seed - 1


class PriorityDraws:
    """Draws priorities by share; requests outside all shares have none."""

    def __init__(self, shares: Sequence[PriorityShare], random: Random) -> None:
        """``random`` is used by these draws alone."""
        self._shares = tuple(shares)
        self._random = random

    def draw(self) -> int | None:
        """Return the next request's priority, or None."""
        if not self._shares:
            return None
        left = self._random.random()
        for entry in self._shares:
            left -= entry.share
            if left < 0:
                return entry.value
        return None


class SamplingDraws:
    """Draws sampling parameters by the shares of a profile."""

    def __init__(self, settings: SamplingSettings, vocab_size: int, random: Random) -> None:
        """``random`` is used by these draws alone."""
        self._settings = settings
        self._vocab_size = vocab_size
        self._random = random

    def draw(self, max_new_tokens: int) -> Sampling:
        """Return the parameters of one request."""
        settings = self._settings
        greedy = self._random.random() < settings.greedy
        stop_ids: tuple[int, ...] = ()
        if self._random.random() < settings.stop:
            count = min(settings.stop_ids, self._vocab_size)
            stop_ids = tuple(sorted(self._random.sample(range(self._vocab_size), count)))
        seed = self._random.randrange(_SEEDS)
        # Profiles without logprobs draw nothing for them, so their traffic stays the same.
        wants_logprobs = bool(settings.logprobs) and self._random.random() < settings.logprobs
        return Sampling(
            max_new_tokens=max_new_tokens,
            temperature=0.0 if greedy else settings.temperature,
            top_k=ALL_TOKENS if settings.top_k is None else settings.top_k,
            top_p=settings.top_p,
            seed=seed,
            ignore_eos=not stop_ids,
            stop_token_ids=stop_ids,
            logprobs=_LIKELIEST if wants_logprobs else None,
        )


class OptionDraws:
    """Draws which requests have options, and how many."""

    def __init__(self, settings: RequestOptions, random: Random) -> None:
        """``random`` is used by these draws alone."""
        self._settings = settings
        self._random = random

    def add(self, request: Submit) -> Submit:
        """Return ``request`` with or without options."""
        settings = self._settings
        if not settings.share or self._random.random() >= settings.share:
            return request
        count = self._random.randint(1, settings.most)
        return ServerSubmit(**asdict(request), options=count, draw=self._random.randrange(_SEEDS))


def spoiled(request: Submit, settings: BadInput, random: Random) -> ServerSubmit:
    """Return ``request`` with a fault drawn from ``random``; all kinds are equally likely."""
    kinds = [kind for kind in Malformed if kind not in settings.without]
    return ServerSubmit(
        **asdict(request),
        malformed=random.choice(kinds),
        large=random.random() < settings.large,
        draw=random.randrange(_SEEDS),
    )
