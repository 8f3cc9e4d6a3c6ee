"""Independent random streams by purpose, Zipf ranks, token blocks by name."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from itertools import accumulate
from random import Random
from typing import Final

import numpy as np

from hybridbench.workload.fields import TokenRange

_SEED_BYTES: Final = 16


def stream(seed: int, *purpose: str | int) -> Random:
    """Return a random stream for one purpose, so that extra draws do not affect other streams."""
    return Random(_derived(seed, *purpose))


def token_block(seed: int, vocab_size: int, length: int, *name: str | int) -> list[int]:
    """Return ``length`` token ids that depend only on ``seed`` and ``name``, uniformly distributed.

    A shorter block of the same name is a prefix of a longer one.
    """
    # One PCG64 word per token, so that blocks of different lengths share their prefix.
    bits = np.random.PCG64(_derived(seed, *name))
    words = bits.random_raw(length)
    return [int(word) for word in (words >> np.uint64(11)) % np.uint64(vocab_size)]


class TokenSource:
    """A stream of random tokens that never starts over, for what users type."""

    def __init__(self, seed: int, vocab_size: int, *purpose: str | int) -> None:
        """Tokens 0 to ``vocab_size - 1`` from the stream named by ``seed`` and ``purpose``."""
        self._generator = np.random.Generator(np.random.PCG64(_derived(seed, *purpose)))
        self._vocab_size = vocab_size

    def take(self, length: int) -> list[int]:
        """Return the next ``length`` tokens."""
        tokens: list[int] = self._generator.integers(0, self._vocab_size, length).tolist()
        return tokens


class Zipf:
    """Ranks 0 to ``size - 1``; rank k has weight 1 / (k + 1) ** exponent; exponent 0 is uniform."""

    def __init__(self, size: int, exponent: float) -> None:
        """Prepare the cumulative weights: memory grows with ``size``."""
        weights = (float((k + 1.0) ** -exponent) for k in range(size))
        self._cumulative: list[float] = list(accumulate(weights))

    def draw(self, random: Random) -> int:
        """Draw one rank."""
        return bisect_left(self._cumulative, random.random() * self._cumulative[-1])


def draw_tokens(random: Random, tokens: TokenRange) -> int:
    """Draw a count from the range, both ends included."""
    return random.randint(tokens.low, tokens.high)


def _derived(seed: int, *purpose: str | int) -> int:
    # A hash keeps streams independent whatever the names, and is the same on every machine.
    name = repr((seed, *purpose)).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=_SEED_BYTES).digest(), "big")
