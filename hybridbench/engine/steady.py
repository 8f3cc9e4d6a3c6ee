"""Detect when an engine has warmed up, by the work done rather than by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The shape of one step; every field takes O(1) to compute.

    ``used`` has the allocated slots of each pool; ``evictions`` and ``finished`` are cumulative.
    """

    mode: Literal["extend", "decode", "verify", "idle"]
    tokens: int
    requests: int
    used: tuple[int, ...]
    evictions: int
    finished: int


class SteadyDetector:
    """Latches ``is_steady`` once the engine is no longer expected to grow by warming up.

    A *new maximum* occurs when the used slots of a pool exceed the recorded maximum by more than
    ``tolerance`` of the pool's size (only then is the record updated, so slow growth adds up), or
    when a step has more requests than any before.  A *new shape* is a mode, a number of tokens and
    a number of requests, both rounded down to powers of two, that no earlier step had together.

    The engine becomes steady at the first step at which one of these holds:

    * *evicting*: since the last new maximum at least ``quiet_requests`` requests have finished and
      at least ``quiet_evictions`` tree nodes or states were evicted;
    * *unfilled*: since the last new maximum and the last new shape at least
      ``unfilled_factor * quiet_requests`` requests have finished.  This is for pools that the
      traffic never fills, where evictions would never occur.

    It stays steady after a flush: whatever grows again then has been that large before.
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
        """Record one step; return True on the step at which the engine becomes steady."""
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
