"""Write samples, heap scans, checkpoints and events to the run directory, stamped in run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.latency import LatencyCounts
from hybridbench.records.events import (
    Checkpoint,
    EngineViolation,
    Event,
    GarbageOfType,
    Note,
    Phase,
    ProcessEnded,
    ProcessStarted,
)
from hybridbench.records.messages import (
    CheckpointReply,
    HeapScanReply,
    Violation,
    ViolationRecord,
)
from hybridbench.records.processes import ProcessSample
from hybridbench.targets.target import ExitStatus

_TICK_S = 1e-4
_TYPES_RECORDED = 12


class Sink(Protocol):
    """Where a run is written; implemented by RunWriter."""

    def sample(
        self,
        t_s: float,
        phase: str,
        metrics: Mapping[str, float],
        latencies: LatencyCounts | None = None,
        processes: Sequence[ProcessSample] = (),
    ) -> None:
        """Append one sample, with the latencies counted since the previous one, and the readings
        of processes that have a role.
        """
        ...

    def event(self, event: Event) -> None:
        """Append a rare event."""
        ...


class Recorder:
    """Holds the run's start time and phase; keeps sample times and heap scan times increasing.

    A scan has the time of its fork although it arrives after later samples, because its counts are
    compared with the events before that moment.

    Worker and parent use the same monotonic clock, so subtracting the start converts a time stamp
    of either to run time.
    """

    def __init__(self, sink: Sink, clock: Clock, start_s: float) -> None:
        self._sink = sink
        self._clock = clock
        self._start_s = start_s
        self._last_sample_s = self._last_scan_s = 0.0
        self._counted: tuple[float, float, float] | None = None  # time, tokens, requests
        self._alive: dict[tuple[str, ...], ProcessSample] = {}
        self.phase = ""

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._clock.monotonic_s() - self._start_s

    def leave_out(self, parked_s: float) -> None:
        """Exclude the last ``parked_s`` seconds from run time; the run was paused."""
        self._start_s += parked_s

    def enter(self, phase: str) -> None:
        """Record that the run is now in ``phase``."""
        self.phase = phase
        self.event(Phase(phase, phase))

    def event(self, event: Event) -> None:
        """Record a rare event that happens now."""
        self._sink.event(msgspec.structs.replace(event, t_s=self.now_s))

    def note(self, text: str) -> None:
        """Record something that a reader of the report must know."""
        self.event(Note(text))

    def sample(
        self,
        stamp_s: float,
        values: Mapping[str, float],
        latencies: LatencyCounts | None = None,
        processes: Sequence[ProcessSample] = (),
    ) -> dict[str, float]:
        """Store a sample for the monotonic time ``stamp_s``; return it with its rates."""
        complete = {**values, **self._rates(stamp_s - self._start_s, values)}
        self._last_sample_s = max(stamp_s - self._start_s, self._last_sample_s + _TICK_S)
        self._sink.sample(self._last_sample_s, self.phase, complete, latencies, processes)
        return complete

    def processes(
        self, seen: Sequence[ProcessSample], exit_of: Callable[[int], ExitStatus | None]
    ) -> None:
        """Record which processes started and ended since the last call.

        ``exit_of`` returns how a pid ended, if known.
        """
        now = {tuple(process.labels.values()): process for process in seen}
        for key, was in self._alive.items():
            if key not in now or now[key].incarnation != was.incarnation:
                status = exit_of(was.pid) or ExitStatus(None, None)
                ended = ProcessEnded(
                    was.role, was.pid, was.host, was.rank, status.code, status.signal
                )
                self.event(ended)
        for key, process in now.items():
            if key not in self._alive or self._alive[key].incarnation != process.incarnation:
                self.event(ProcessStarted(process.role, process.pid, process.host, process.rank))
        self._alive = now

    def heap_scan(self, reply: HeapScanReply) -> None:
        """Store the counts of a heap scan, as a sample at the time of the scan."""
        if reply.error:
            self.note(f"a heap scan failed: {reply.error}")
            return
        values: dict[str, float] = {
            "gc_collectible_bytes": reply.collectible_bytes,
            "gc_collectible_objects": reply.collectible_objects,
            "gc_tracked_objects": reply.tracked_objects,
        }
        for name, count in reply.instances.items():
            parts = {**msgspec.structs.asdict(count), "stray": count.stray}
            values.update({f"instances.{name}.{part}": n for part, n in parts.items()})
        self._last_scan_s = max(reply.t_s - self._start_s, self._last_scan_s + _TICK_S)
        self._sink.sample(self._last_scan_s, self.phase, values)

    def checkpoint(self, reply: CheckpointReply) -> None:
        """Store a checkpoint: an event, a heap scan, and the results of the engine's checks."""
        self.heap_scan(reply.heap_scan)
        heap_scan = reply.heap_scan
        checkpoint = msgspec.structs.replace(
            msgspec.convert(reply, Checkpoint, from_attributes=True),
            collectible=_garbage_by_type(heap_scan),
            instances=None if heap_scan.error else heap_scan.instances,
        )
        self.at(reply.t_s, checkpoint)
        for record in reply.violations:
            self.at(reply.t_s, _violation(record, checkpoint=reply.index))

    def violation(self, message: Violation) -> None:
        """Store a violation found by the engine's own check."""
        self.at(message.t_s, _violation(message.violation, step=message.step))

    def at(self, stamp_s: float, event: Event) -> None:
        """Record a rare event at the monotonic time ``stamp_s``."""
        self._sink.event(msgspec.structs.replace(event, t_s=stamp_s - self._start_s))

    def _rates(self, t_s: float, values: Mapping[str, float]) -> dict[str, float]:
        """Return throughput since the last sample with counters; empty for the first."""
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


def _violation(
    found: ViolationRecord, step: int | None = None, checkpoint: int | None = None
) -> EngineViolation:
    violation = msgspec.convert(found, EngineViolation, from_attributes=True)
    return msgspec.structs.replace(violation, step=step, checkpoint=checkpoint)


def _garbage_by_type(heap_scan: HeapScanReply) -> tuple[GarbageOfType, ...]:
    """Return the types with most of the uncollected garbage."""
    return tuple(
        GarbageOfType(row.type_name, row.count, row.size_bytes)
        for row in heap_scan.types[:_TYPES_RECORDED]
    )
