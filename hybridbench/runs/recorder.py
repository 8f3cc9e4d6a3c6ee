"""From messages to the run directory: samples, censuses, checkpoints, events in the run's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from hybridbench.clock import Clock
from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import CensusReply, CheckpointReply, Violation
from hybridbench.rundir.layout import NOTE

_TICK_S = 1e-4
_TYPES_RECORDED = 12


class Sink(Protocol):
    """Where a run is written; a RunWriter."""

    def sample(self, t_s: float, phase: str, metrics: Mapping[str, float]) -> None:
        """Append one sample."""
        ...

    def event(self, t_s: float, kind: str, data: Mapping[str, JsonValue] | None = None) -> None:
        """Append something rare."""
        ...


class Recorder:
    """Knows the run's zero and its phase; times of samples rise, and so do those of heap scans.

    A scan has the time of its fork, though it arrives after later samples: what it counted is set
    against the events before that moment.

    Worker and parent stamp with the same monotonic clock, so a stamp of either becomes a time of
    the run by subtracting the start.
    """

    def __init__(self, sink: Sink, clock: Clock, start_s: float) -> None:
        self._sink = sink
        self._clock = clock
        self._start_s = start_s
        self._last_sample_s = self._last_census_s = 0.0
        self._counted: tuple[float, float, float] | None = None  # time, tokens, requests
        self.phase = ""

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._clock.monotonic_s() - self._start_s

    def leave_out(self, parked_s: float) -> None:
        """The ``parked_s`` seconds up to now are no time of this run: nothing was asked of it."""
        self._start_s += parked_s

    def enter(self, phase: str) -> None:
        """The run is in ``phase`` from now on."""
        self.phase = phase
        # Readers of the analysis look for `name`, those of the run directory for `phase`.
        self.event("phase", {"name": phase, "phase": phase})

    def event(self, kind: str, data: Mapping[str, JsonValue] | None = None) -> None:
        """Something rare happened now."""
        self._sink.event(self.now_s, kind, data)

    def note(self, text: str) -> None:
        """Something that a reader of the report must know."""
        self.event(NOTE, {"text": text})

    def sample(self, stamp_s: float, values: Mapping[str, float]) -> dict[str, float]:
        """Store a sample of the monotonic time ``stamp_s``; return it with its rates."""
        complete = {**values, **self._rates(stamp_s - self._start_s, values)}
        self._last_sample_s = max(stamp_s - self._start_s, self._last_sample_s + _TICK_S)
        self._sink.sample(self._last_sample_s, self.phase, complete)
        return complete

    def census(self, reply: CensusReply) -> None:
        """Store what a census counted, as a sample of its own moment."""
        if reply.error:
            self.note(f"a heap scan failed: {reply.error}")
            return
        values: dict[str, float] = {
            "gc_collectible_bytes": reply.collectible_bytes,
            "gc_collectible_objects": reply.collectible_objects,
            "gc_tracked_objects": reply.tracked_objects,
        }
        for name, count in reply.instances.items():
            parts = {**msgspec.structs.asdict(count), "stray": count.live - count.expected}
            values.update({f"instances.{name}.{part}": n for part, n in parts.items()})
        self._last_census_s = max(reply.t_s - self._start_s, self._last_census_s + _TICK_S)
        self._sink.sample(self._last_census_s, self.phase, values)

    def checkpoint(self, reply: CheckpointReply) -> None:
        """Store a checkpoint: as an event, as a census, and what the engine's checks said."""
        self.census(reply.census)
        data: dict[str, JsonValue] = {
            "index": reply.index,
            "idle": reply.idle,
            "pools": {name: dict(parts) for name, parts in reply.pools.items()},
            "locks": dict(reply.locks),
            "containers": dict(reply.containers),
            "running": reply.running,
            "waiting": reply.waiting,
            "counters": dict(reply.counters),
            "collectible": garbage_by_type(reply.census),
        }
        if not reply.census.error:
            data["instances"] = msgspec.to_builtins(
                {name: msgspec.structs.asdict(n) for name, n in reply.census.instances.items()}
            )
        self.at(reply.t_s, "checkpoint", data)
        for record in reply.violations:
            found = msgspec.structs.asdict(record)
            self.at(reply.t_s, "engine_violation", {**found, "checkpoint": reply.index})

    def violation(self, message: Violation) -> None:
        """Store that the engine's own check objected."""
        found = msgspec.structs.asdict(message.violation)
        self.at(message.t_s, "engine_violation", {**found, "step": message.step})

    def at(self, stamp_s: float, kind: str, data: Mapping[str, JsonValue]) -> None:
        """Something rare happened at the monotonic time ``stamp_s``."""
        self._sink.event(stamp_s - self._start_s, kind, data)

    def _rates(self, t_s: float, values: Mapping[str, float]) -> dict[str, float]:
        """Throughput since the last sample with counters; empty for the first."""
        if "events.output_tokens" not in values:
            return {}
        tokens = values["events.output_tokens"] + values["events.prompt_tokens"]
        requests = values["events.finishes"]
        last, self._counted = self._counted, (t_s, tokens, requests)
        if last is None or t_s <= last[0]:
            return {}
        elapsed_s = t_s - last[0]
        return {
            "throughput_tokens_per_s": (tokens - last[1]) / elapsed_s,
            "requests_per_s": (requests - last[2]) / elapsed_s,
        }


def garbage_by_type(census: CensusReply) -> list[JsonValue]:
    """The types that hold most of uncollected garbage."""
    return [
        {"type": row.type_name, "count": row.count, "bytes": row.size_bytes}
        for row in census.types[:_TYPES_RECORDED]
    ]
