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
    """A random stream for one purpose alone, so that one more draw here moves nothing there."""
    return Random(_derived(seed, *purpose))


def token_block(seed: int, vocab_size: int, length: int, *name: str | int) -> list[int]:
    """``length`` token ids that depend on ``seed`` and ``name`` alone, uniform in the vocabulary.

    A shorter block of the same name is a prefix of a longer one.
    """
    # PCG64 fed with one word a token: lengths then agree on their common prefix.
    bits = np.random.PCG64(_derived(seed, *name))
    words = bits.random_raw(length)
    return [int(word) for word in (words >> np.uint64(11)) % np.uint64(vocab_size)]


class TokenSource:
    """Fresh random tokens, never the same twice: what users type."""

    def __init__(self, seed: int, vocab_size: int, *purpose: str | int) -> None:
        """Tokens 0 to ``vocab_size - 1`` from the stream named by ``seed`` and ``purpose``."""
        self._generator = np.random.Generator(np.random.PCG64(_derived(seed, *purpose)))
        self._vocab_size = vocab_size

    def take(self, length: int) -> list[int]:
        """The next ``length`` tokens."""
        tokens: list[int] = self._generator.integers(0, self._vocab_size, length).tolist()
        return tokens


class Zipf:
    """Ranks 0 to ``size - 1``, rank k weighs 1 / (k + 1) ** exponent; exponent 0 is uniform."""

    def __init__(self, size: int, exponent: float) -> None:
        """Prepare the cumulative weights: memory grows with ``size``."""
        weights = (float((k + 1.0) ** -exponent) for k in range(size))
        self._cumulative: list[float] = list(accumulate(weights))

    def draw(self, random: Random) -> int:
        """One rank."""
        return bisect_left(self._cumulative, random.random() * self._cumulative[-1])


def draw_tokens(random: Random, tokens: TokenRange) -> int:
    """A count from the range, both ends included."""
    return random.randint(tokens.low, tokens.high)


def _derived(seed: int, *purpose: str | int) -> int:
    # A hash keeps streams apart whatever the names are, and is the same on every machine.
    name = repr((seed, *purpose)).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=_SEED_BYTES).digest(), "big")
