"""The state of a run for a user watching it: filled by the loop, drawn by a view."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hybridbench.analysis.findings.requests import SERVING
from hybridbench.analysis.findings.words import times
from hybridbench.foundation.metrics import MEMORY
from hybridbench.foundation.units import format_duration
from hybridbench.records.messages import CheckpointReply, HeapScanReply
from hybridbench.records.processes import ProcessSample
from hybridbench.runs.memory_slope import MemorySlope

_HISTORY = 64
# In so long, even a busy machine serves a request.
_STALLED_S = 60.0
_POOL_PARTS = ("total", "available", "evictable", "protected", "in_flight")


@dataclass
class PoolLevel:
    """The distribution of one pool's slots."""

    total: float = 0.0
    available: float = 0.0
    evictable: float = 0.0
    protected: float = 0.0
    in_flight: float = 0.0


@dataclass
class RunStatus:
    """The numbers that a view shows, of constant size however long the run is."""

    title: str
    duration_s: float
    phase: str = "boot"
    elapsed_s: float = 0.0  # since the run began
    traffic_s: float = 0.0  # since the first request
    private_bytes: float = 0.0
    private_history: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    slope: MemorySlope = field(default_factory=MemorySlope)  # of private memory since the warm-up
    pools: dict[str, PoolLevel] = field(default_factory=dict)
    tokens_per_s: float = 0.0
    requests_per_s: float = 0.0
    ttft_ms: tuple[float, float] | None = None  # p50 and p99 of the last interval with requests
    running: int = 0
    waiting: int = 0
    finished: int = 0
    rejected: int = 0
    aborted: int = 0
    heap_scans: int = 0
    checkpoints: int = 0
    collectible_bytes: float = 0.0
    probe_share: float = 0.0
    suspicion: str = ""
    waits_for: str = ""  # why a server is not ready yet
    observed: bool = False  # its requests are not ours, so they are not counted one by one
    roles: Mapping[str, float] = field(default_factory=dict)  # private memory of each process
    _served: float = 0.0
    _served_at_s: float = 0.0  # when it last changed, or there was no request

    @property
    def remaining_s(self) -> float:
        """Seconds of planned traffic that remain."""
        return max(0.0, self.duration_s - self.traffic_s)

    @property
    def progress(self) -> float:
        """Share of the planned traffic that has been served."""
        return min(1.0, self.traffic_s / self.duration_s) if self.duration_s else 1.0

    @property
    def so_far(self) -> str:
        """The result of the exact checks up to now; trends are judged at the end."""
        if self.suspicion:
            return f"possible leak: {self.suspicion}"
        if self.waits_for:
            return f"waiting until it serves: {self.waits_for}"
        idle_s = self.elapsed_s - self._served_at_s
        if self._served and idle_s >= _STALLED_S:
            inside = times(self.running + self.waiting, "request")
            return f"no request served for {format_duration(idle_s)}, with {inside} in the engine"
        return "nothing found so far" if self.heap_scans else "too early to say"

    def saw_sample(self, values: Mapping[str, float]) -> None:
        """Update from a sample."""
        if MEMORY in values:
            self._saw_memory(values[MEMORY])
        if "ttft_ms_p50" in values and "ttft_ms_p99" in values:
            self.ttft_ms = (values["ttft_ms_p50"], values["ttft_ms_p99"])
        if "probe_stop_s" in values and self.traffic_s:
            stopped_s = values["probe_stop_s"] - values.get("probe_wait_s", 0.0)
            self.probe_share = stopped_s / max(1.0, self.traffic_s)
        self.tokens_per_s = values.get("throughput_tokens_per_s", self.tokens_per_s)
        self.requests_per_s = values.get("requests_per_s", self.requests_per_s)
        self.running = int(values.get("running_requests", self.running))
        self.waiting = int(values.get("waiting_requests", self.waiting))
        served = sum(values.get(name, 0.0) for name in SERVING)
        if served not in (0.0, self._served) or not (self.running or self.waiting):
            self._served, self._served_at_s = served or self._served, self.elapsed_s
        for name, value in values.items():
            scope, _, rest = name.partition(".")
            if scope == "pool":
                pool, _, part = rest.partition(".")
                self._saw_pool(pool, part, value)

    def saw_processes(self, processes: Sequence[ProcessSample]) -> None:
        """Update from the memory of all processes with a role."""
        self.roles = {one.role: one.m[MEMORY] for one in processes if MEMORY in one.m}
        if processes:
            self._saw_memory(sum(self.roles.values()))

    def saw_heap_scan(self, heap_scan: HeapScanReply) -> None:
        """Update from a heap scan."""
        if heap_scan.error:
            return
        self.heap_scans += 1
        self.collectible_bytes = heap_scan.collectible_bytes
        for name, count in heap_scan.instances.items():
            if count.stray > 0:
                are = "s are" if count.stray > 1 else " is"
                self.suspicion = f"{count.stray} removed {name} object{are} still alive"

    def saw_checkpoint(self, checkpoint: CheckpointReply) -> None:
        """Update from a checkpoint."""
        self.checkpoints += 1
        self.saw_heap_scan(checkpoint.heap_scan)
        if checkpoint.violations:
            self.suspicion = checkpoint.violations[0].message

    def _saw_memory(self, private_bytes: float) -> None:
        self.private_bytes = private_bytes
        self.private_history.append(private_bytes)
        if self.phase in ("steady", "observe"):
            self.slope.add(self.elapsed_s, private_bytes)

    def _saw_pool(self, pool: str, part: str, value: float) -> None:
        level = self.pools.setdefault(pool, PoolLevel())
        if part in _POOL_PARTS:
            setattr(level, part, value)
        elif part == "waiting_held" and value:
            slots = times(value, "slot")
            self.suspicion = f"waiting requests hold {slots} of the {pool} pool"


class View:
    """Shows a run in progress; this base class shows nothing."""

    def update(self, status: RunStatus) -> None:
        """Called several times a second; draws when a redraw is due."""

    def note(self, text: str) -> None:
        """Print one line, once."""

    def close(self) -> None:
        """Called when the run is over."""
