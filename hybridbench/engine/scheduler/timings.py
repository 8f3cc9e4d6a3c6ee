"""Engine time by kind of work: seconds and calls since the engine was built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, thread_time


@dataclass(slots=True)
class EngineTimings:
    """Cumulative seconds on the engine's own clocks, written only by the engine's thread.

    Times are taken where the scheduler calls the cache, so they include everything the cache does
    within a call: a match includes making room for the state that it copies.

    Microsecond calls are measured in processor time.  A preemption within one takes longer than the
    call itself, so in wall time a busy neighbour would look like a degrading engine.

    Attributes:
        now_s: the wall clock; only differences are used.
        cpu_s: processor time of the engine's thread; only differences are used.
        match_s: processor time in prefix matches.
        insert_s: processor time in passing requests' KV and states to the cache.
        evict_s: processor time in evictions that make room for a step.
        schedule_s: processor time in settling aborts, forming batches and settling them, including
            cache calls.
        forward_s: wall time in the model and in choosing tokens; on a CUDA device, which computes
            asynchronously, the time to launch a step and wait for its results.
        forward_cpu_s: processor time for the same work.
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
        """Add the time of a model run that began at these readings of ``now_s`` and ``cpu_s``."""
        self.forward_s += self.now_s() - began_s
        self.forward_cpu_s += self.cpu_s() - began_cpu_s

    def beside_model_s(self) -> float:
        """Return the engine thread's processor time outside the model; use only differences."""
        return self.cpu_s() - self.forward_cpu_s

    def seconds(self) -> dict[str, float]:
        """Return the times by metric name."""
        return {
            "match_s": self.match_s,
            "insert_s": self.insert_s,
            "evict_s": self.evict_s,
            "schedule_s": self.schedule_s,
            "forward_s": self.forward_s,
            "forward_cpu_s": self.forward_cpu_s,
            "check_s": self.check_s,
        }
