"""Where the time of a step goes: seconds and calls since the engine was built, by kind of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, thread_time


@dataclass(slots=True)
class EngineTimings:
    """Cumulative seconds on the engine's own clocks, written by the engine's thread alone.

    Measured where the scheduler calls the cache, so that what a cache does within a call belongs to
    that call: making room for the copy of a state is part of the match that wanted it.

    Calls of microseconds are measured in processor time: one preemption within them is longer than
    they are, and a busy neighbour would look like an engine that decays.

    Attributes:
        now_s: the clock on the wall; only differences are used.
        cpu_s: processor time of the engine's thread; only differences are used.
        match_s: processor time in prefix matches.
        insert_s: processor time in handing requests' KV and states to the cache.
        evict_s: processor time in evictions that make room for a step.
        schedule_s: processor time in settling aborts, forming batches and settling them; cache
            calls included.
        forward_s: time in the model and in choosing tokens.
        forward_cpu_s: processor time of that.
        check_s: processor time in the engine's own checks after its steps.
        match_calls, insert_calls, evict_calls: how often.
    """

    now_s: Callable[[], float] = field(default=perf_counter)
    cpu_s: Callable[[], float] = field(default=thread_time)
    match_s: float = 0.0
    insert_s: float = 0.0
    evict_s: float = 0.0
    schedule_s: float = 0.0
    forward_s: float = 0.0
    forward_cpu_s: float = 0.0
    check_s: float = 0.0
    match_calls: int = 0
    insert_calls: int = 0
    evict_calls: int = 0

    def count_forward(self, began_s: float, began_cpu_s: float) -> None:
        """The model ran since these readings of ``now_s`` and ``cpu_s``."""
        self.forward_s += self.now_s() - began_s
        self.forward_cpu_s += self.cpu_s() - began_cpu_s

    def beside_model_s(self) -> float:
        """Processor time of the engine's thread outside the model; only differences are used."""
        return self.cpu_s() - self.forward_cpu_s

    def seconds(self) -> dict[str, float]:
        """The times by their metric's name."""
        return {
            "match_s": self.match_s,
            "insert_s": self.insert_s,
            "evict_s": self.evict_s,
            "schedule_s": self.schedule_s,
            "forward_s": self.forward_s,
            "forward_cpu_s": self.forward_cpu_s,
            "check_s": self.check_s,
        }
