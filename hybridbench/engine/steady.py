"""Detect that an engine has warmed up, measured in work done, never in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The shape of one step; every field takes O(1) to compute.

    ``used`` are the allocated slots of each pool, ``evictions`` and ``finished`` cumulative counts.
    """

    mode: Literal["extend", "decode", "verify", "idle"]
    tokens: int
    requests: int
    used: tuple[int, ...]
    evictions: int
    finished: int


class SteadyDetector:
    """Latches ``is_steady`` once a longer run would show nothing new about the engine's size.

    A *new maximum* is a pool whose used slots exceed the highest recorded count by more than
    ``tolerance`` of its size (slow growth adds up, since the recorded count moves only then), or a
    higher number of requests in one step.  A *new shape* is a step whose mode, tokens and requests,
    the latter two rounded up to powers of two, were not seen before.

    Steady is the first step at which one of these holds:

    * *evicting*: since the last new maximum at least ``quiet_requests`` requests have finished and
      at least ``quiet_evictions`` tree nodes or states were evicted;
    * *unfilled*: since the last new maximum and the last new shape at least
      ``unfilled_factor * quiet_requests`` requests have finished.  This is for pools that the
      traffic never fills, where evictions would never occur.

    It stays steady after a flush: anything that grows again has been that large before.
    """

    def __init__(
        self,
        pool_sizes: tuple[int, ...],
        *,
        quiet_requests: int = 200,
        quiet_evictions: int = 100,
        unfilled_factor: int = 5,
        tolerance: float = 0.01,
    ) -> None:
        self._margins = tuple(tolerance * size for size in pool_sizes)
        self._quiet_requests = quiet_requests
        self._quiet_evictions = quiet_evictions
        self._unfilled_requests = unfilled_factor * quiet_requests
        self._noted_used = [0] * len(pool_sizes)
        self._noted_requests = 0
        self._shapes: set[tuple[str, int, int]] = set()
        self._maximum_at_finished = 0
        self._maximum_at_evictions = 0
        self._shape_at_finished = 0
        self.reason: Literal["", "evicting", "unfilled"] = ""

    @property
    def is_steady(self) -> bool:
        """Whether the warm-up is over."""
        return self.reason != ""

    @property
    def shapes_seen(self) -> int:
        """Number of distinct step shapes so far."""
        return len(self._shapes)

    def observe(self, load: StepLoad) -> bool:
        """Record one step; True on the step that made the engine steady."""
        if self.is_steady:
            return False
        if self._is_new_maximum(load):
            self._maximum_at_finished = load.finished
            self._maximum_at_evictions = load.evictions
        shape = (load.mode, load.tokens.bit_length(), load.requests.bit_length())
        if shape not in self._shapes:
            self._shapes.add(shape)
            self._shape_at_finished = load.finished
        quiet = load.finished - self._maximum_at_finished
        evicted = load.evictions - self._maximum_at_evictions
        if quiet >= self._quiet_requests and evicted >= self._quiet_evictions:
            self.reason = "evicting"
        elif min(quiet, load.finished - self._shape_at_finished) >= self._unfilled_requests:
            self.reason = "unfilled"
        return self.is_steady

    def _is_new_maximum(self, load: StepLoad) -> bool:
        is_new = load.requests > self._noted_requests
        self._noted_requests = max(self._noted_requests, load.requests)
        for i, (used, margin) in enumerate(zip(load.used, self._margins, strict=True)):
            if used > self._noted_used[i] + margin:
                self._noted_used[i] = used
                is_new = True
        return is_new
