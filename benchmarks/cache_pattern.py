"""The turns on which caches are timed: keys that grow turn by turn, and the recorded times.

Standard library only, because the process that times a released engine also imports this file.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

CacheKind: TypeAlias = Literal["full", "states", "windows"]
"""Contents of a cache: KV only, KV and recurrent states, or KV and sliding-window KV."""


@dataclass(frozen=True)
class CachePattern:
    """Conversations that grow turn by turn over a few shared system prompts."""

    system_prompts: int = 8
    system_tokens: int = 256
    turn_tokens: int = 192
    turns_min: int = 8
    turns_max: int = 14
    conversations: int = 48
    kv_tokens: int = 120_000
    mamba_slots: int = 200
    swa_tokens: int = 40_000
    sliding_window: int = 128
    vocab_size: int = 32_000
    seed: int = 0


class Conversations:
    """A sequence of keys, each one the next turn of a random open conversation."""

    def __init__(self, pattern: CachePattern) -> None:
        self._pattern = pattern
        self._random = random.Random(pattern.seed)
        self._prompts = [self._tokens(pattern.system_tokens) for _ in range(pattern.system_prompts)]
        self._open = [self._begin() for _ in range(pattern.conversations)]

    def next_key(self) -> array[int]:
        """Return all tokens of a random conversation after its next turn."""
        place = self._random.randrange(len(self._open))
        tokens, turns_left = self._open[place]
        if turns_left == 0:
            tokens, turns_left = self._begin()
        tokens = tokens + self._tokens(self._pattern.turn_tokens)
        self._open[place] = (tokens, turns_left - 1)
        return tokens

    def _begin(self) -> tuple[array[int], int]:
        pattern = self._pattern
        turns = self._random.randint(pattern.turns_min, pattern.turns_max)
        return self._random.choice(self._prompts), turns

    def _tokens(self, count: int) -> array[int]:
        draw = self._random.random
        vocab_size = self._pattern.vocab_size
        return array("q", [int(draw() * vocab_size) for _ in range(count)])


@dataclass
class Block:
    """Times and counts of a block of turns on one cache.

    Attributes:
        calls_ns: nanoseconds of each call, by kind: match, insert, evict, lock.
        turn_ns: nanoseconds inside cache calls, per turn.
        wall_ns: wall time of the whole block, including allocation and keys.
        hit_tokens: how many of the ``key_tokens`` were reused.
    """

    calls_ns: dict[str, list[int]] = field(default_factory=dict)
    turn_ns: list[int] = field(default_factory=list)
    wall_ns: int = 0
    key_tokens: int = 0
    hit_tokens: int = 0
    nodes_evicted: int = 0
    states_evicted: int = 0

    def record(self, kind: str, start_ns: int) -> None:
        """Record a call of ``kind`` that began at ``start_ns`` and has just ended."""
        self.calls_ns.setdefault(kind, []).append(time.perf_counter_ns() - start_ns)

    @property
    def in_cache_ns(self) -> int:
        """Nanoseconds inside cache calls."""
        return sum(map(sum, self.calls_ns.values()))


def block_from(plain: Mapping[str, object]) -> Block:
    """Return a block from a JSON object with its fields."""
    return Block(**plain)  # type: ignore[arg-type]
