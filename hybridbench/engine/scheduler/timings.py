"""Where the time of a step goes: seconds and calls since the engine was built, by kind of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter


@dataclass(slots=True)
class EngineTimings:
    """Cumulative seconds on the engine's own clock, written by the engine's thread alone.

    Measured where the scheduler calls the cache, so that what a cache does within a call belongs to
    that call: making room for the copy of a state is part of the match that wanted it.

    Attributes:
        now_s: the clock; only differences are used.
        match_s: in prefix matches.
        insert_s: in handing requests' KV and states to the cache.
        evict_s: in evictions that make room for a step.
        schedule_s: in settling aborts, forming batches and settling them; cache calls included.
        forward_s: in the model and in choosing tokens.
        match_calls, insert_calls, evict_calls: how often.
    """

    now_s: Callable[[], float] = field(default=perf_counter)
    match_s: float = 0.0
    insert_s: float = 0.0
    evict_s: float = 0.0
    schedule_s: float = 0.0
    forward_s: float = 0.0
    match_calls: int = 0
    insert_calls: int = 0
    evict_calls: int = 0

    def seconds(self) -> dict[str, float]:
        """The times by their metric's name."""
        return {
            "match_s": self.match_s,
            "insert_s": self.insert_s,
            "evict_s": self.evict_s,
            "schedule_s": self.schedule_s,
            "forward_s": self.forward_s,
        }
