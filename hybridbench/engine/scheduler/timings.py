"""The time of a step by kind of work: seconds and calls since the engine was built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, thread_time


@dataclass(slots=True)
class EngineTimings:
    """Cumulative seconds on the engine's own clocks, written only by the engine's thread.

    Measured where the scheduler calls the cache, so that everything a cache does within a call
    counts for that call: making room for a copied state is part of the match that needs it.

    Calls of microseconds are measured in processor time: a preemption within one takes longer than
    the call itself, and a busy neighbour would look like an engine that degrades.

    Attributes:
        now_s: the wall clock; only differences are used.
        cpu_s: processor time of the engine's thread; only differences are used.
        match_s: processor time in prefix matches.
        insert_s: processor time in passing requests' KV and states to the cache.
        evict_s: processor time in evictions that make room for a step.
        schedule_s: processor time in settling aborts, forming batches and settling them; cache
            calls included.
        forward_s: time in the model and in choosing tokens; on a CUDA device, which computes on its
            own, launching a step and waiting for its results.
        forward_cpu_s: processor time of the same.
        check_s: processor time in the engine's own checks after its steps.
        match_calls, insert_calls, evict_calls: numbers of calls.
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
        """Add the time since these readings of ``now_s`` and ``cpu_s``, when the model ran."""
        self.forward_s += self.now_s() - began_s
        self.forward_cpu_s += self.cpu_s() - began_cpu_s

    def beside_model_s(self) -> float:
        """Processor time of the engine's thread outside the model; only differences are used."""
        return self.cpu_s() - self.forward_cpu_s

    def seconds(self) -> dict[str, float]:
        """The times by metric name."""
        return {
            "match_s": self.match_s,
            "insert_s": self.insert_s,
            "evict_s": self.evict_s,
            "schedule_s": self.schedule_s,
            "forward_s": self.forward_s,
            "forward_cpu_s": self.forward_cpu_s,
            "check_s": self.check_s,
        }
