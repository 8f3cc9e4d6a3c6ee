"""The worker's measurements of itself: pools and events between steps, the heap at any time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

import torch

from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.latency import (
    E2E,
    ITL,
    TTFT,
    LatencyCounts,
    LatencyHistogram,
    add_latencies,
)
from hybridbench.sampling.device_memory import DeviceMemory
from hybridbench.sampling.gc_monitor import GcMonitor
from hybridbench.sampling.malloc import MallocInfo
from hybridbench.sampling.observer import ObserverAccount
from hybridbench.worker.call_watch import CallWatch
from hybridbench.worker.port import ServedEngine
from hybridbench.worker.step_watch import StepWatch

# Metrics of this process; the parent adds what it measures from outside.
DECLARED_FAMILIES: tuple[str, ...] = (
    "malloc_in_use_bytes",
    "malloc_arena_bytes",
    "allocated_blocks",
    "gc_gen2_collections",
    "gc_collected_objects",
    "gc_pause_s",
    "gc_collectible_bytes",
    "gc_collectible_objects",
    "gc_tracked_objects",
    "instances.*",
    "pool.*",
    "container.*",
    "running_requests",
    "waiting_requests",
    "max_running_requests",
    "requests_without_client",
    "oldest_request_s",
    "oldest_silence_s",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "itl_ms_p50",
    "itl_ms_p99",
    "step_s",
    "match_s",
    "insert_s",
    "evict_s",
    "schedule_s",
    "forward_s",
    "forward_cpu_s",
    "check_s",
    "steps_with.*",
    "waiting_taken.*",
    "lost_taken.*",
    "events.*",
    "probe_stop_s",
    "probe_wait_s",
    "probe_child_s",
    "observer_held_bytes",
)

_MS = 1000.0


class ProbeStops:
    """Times the probes that run in the engine's thread, each in a ``with`` block, never nested."""

    def __init__(self) -> None:
        self.stop_s = 0.0
        # The part of ``stop_s`` in which the thread did not compute: it waited for a CPU, or for
        # the interpreter's lock, whose holder may be waiting for a CPU.
        self.wait_s = 0.0
        self._began_s = self._computed_s = 0.0

    def __enter__(self) -> None:
        self._began_s, self._computed_s = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        computed_s = time.thread_time() - self._computed_s
        stop_s = time.perf_counter() - self._began_s
        self.stop_s += stop_s
        self.wait_s += max(0.0, stop_s - computed_s)


class WorkerMetrics:
    """Owns every number that the worker counts in addition to the engine's own.

    The engine's thread writes; only ``heap`` may be called from another thread.
    """

    def __init__(
        self,
        engine: ServedEngine,
        gc_monitor: GcMonitor,
        read_malloc: Callable[[], MallocInfo] | None,
        counted_before: Mapping[str, int],
        forced: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """``counted_before`` are the engine's counters before the run; ``forced`` returns how often
        each path was forced.
        """
        self._engine = engine
        self._gc_monitor = gc_monitor
        self._read_malloc = read_malloc
        self._observer = ObserverAccount(read_malloc)
        self._counted_before = counted_before
        self._forced = forced
        on_device = engine.config.device.startswith("cuda")
        self._driver = DeviceMemory() if on_device else None
        self._timed_before = engine.timings()
        self.steps = StepWatch(engine)
        self.calls = CallWatch(engine)
        self.latencies = {name: LatencyHistogram() for name in (TTFT, ITL, E2E)}
        self.step_s = 0.0
        self.stops = ProbeStops()
        self.probe_child_s = 0.0
        # Written only by the thread that answers counters.
        self.handler_s = 0.0

    @property
    def probe_stop_s(self) -> float:
        """Seconds in which probes kept the engine's thread from its work."""
        return self.stops.stop_s + self.handler_s

    def counters(self) -> dict[str, int]:
        """Return the engine's event counters since the run began."""
        before = self._counted_before
        return {
            name: n - before.get(name, 0) for name, n in self._engine.counters.as_dict().items()
        }

    def answer(self, put: Callable[[dict[str, float], LatencyCounts], None]) -> None:
        """Pass ``put`` everything that is consistent only between steps; start new histograms.

        Memory that this leaves on the heap is charged to the bench.
        """
        # The engine's traffic filled these, so emptying them is not credited to probing.
        percentiles, counts = self._percentiles(), self._take_latencies()
        self._observer.begin()
        values = self.between_steps()
        values.update(percentiles)
        put(values, counts)
        del values
        self._observer.end()

    def between_steps(self) -> dict[str, float]:
        """Return the engine's own numbers, without latencies."""
        engine = self._engine
        values: dict[str, float] = {
            "running_requests": engine.running_requests,
            "waiting_requests": engine.waiting_requests,
            "max_running_requests": engine.max_running_requests_seen,
            "step_s": self.step_s,
            **self._timings(),
        }
        for name, count in (*self.counters().items(), *self._forced().items()):
            values[f"events.{name}"] = count
        for name, length in engine.containers().items():
            values[f"container.{name}.len"] = length
        values.update(self._pool_values())
        values.update(device_memory(engine.config.device, self._driver))
        values.update(graph_memory(engine.config))
        values.update(pinned_memory(engine.config.device))
        values.update(asdict(engine.liveness()))
        values.update(self.steps.metrics())
        return values

    def _timings(self) -> dict[str, float]:
        """Return where the engine's time went since the run began."""
        before = self._timed_before
        return {name: s - before[name] for name, s in self._engine.timings().items()}

    def heap(self) -> dict[str, float]:
        """Read the heap now; safe while the engine's thread is inside a step, or stuck in one."""
        monitor = self._gc_monitor
        values: dict[str, float] = {
            "allocated_blocks": sys.getallocatedblocks(),
            "gc_gen2_collections": monitor.full_collections,
            "gc_collected_objects": monitor.collected_objects,
            "gc_pause_s": monitor.pause_s,
            "probe_stop_s": self.probe_stop_s,
            "probe_wait_s": self.stops.wait_s,
            "probe_child_s": self.probe_child_s,
            "observer_held_bytes": self._observer.held_bytes,
        }
        if self._read_malloc is not None:
            info = self._read_malloc()
            values["malloc_in_use_bytes"] = info.in_use_bytes
            values["malloc_arena_bytes"] = info.arena_bytes
        return values

    def _pool_values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        pools = self._engine.pool_stats()
        self.steps.saw_pools(pools)
        for pool, stats in pools.items():
            values.update({f"pool.{pool}.{part}": n for part, n in stats.as_dict().items()})
            # Slots may be taken and freed between two samples.
            highest = max(stats.waiting_held, self.steps.take_waiting_highest(pool))
            values[f"pool.{pool}.waiting_held"] = highest
        return values

    def _percentiles(self) -> dict[str, float]:
        values = {}
        for name in (TTFT, ITL):
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                quantile_s = self.latencies[name].quantile_s(share)
                if quantile_s is not None:
                    values[f"{name}_ms_{label}"] = quantile_s * _MS
        return values

    def _take_latencies(self) -> LatencyCounts:
        counts = {name: one.counts() for name, one in self.latencies.items() if len(one)}
        for histogram in self.latencies.values():
            histogram.clear()
        return counts


def device_memory(device: str, driver: DeviceMemory | None = None) -> dict[str, int]:
    """Return what tensors use on ``device``, what PyTorch has reserved there, and how much of that
    is free between tensors; empty for a CPU.

    If ``driver`` accounts for this process, also return what the process holds there outside
    PyTorch's allocator.
    """
    if not device.startswith("cuda"):
        return {}
    stats = torch.cuda.memory_stats(device)
    values = {
        "device_allocated_bytes": stats["allocated_bytes.all.current"],
        "device_reserved_bytes": stats["reserved_bytes.all.current"],
        "device_inactive_split_bytes": stats["inactive_split_bytes.all.current"],
    }
    used_bytes = driver.read().get(os.getpid()) if driver is not None else None
    if used_bytes is not None:
        values["device_driver_bytes"] = used_bytes - values["device_reserved_bytes"]
    return values


def graph_memory(config: EngineConfig) -> dict[str, int]:
    """Return what PyTorch has reserved for CUDA graphs; empty for a CPU."""
    if not config.device.startswith("cuda"):
        return {}
    # Reading all segments takes milliseconds; an engine without graphs has none of these.
    segments = torch.cuda.memory_snapshot() if config.cuda_graph_max_bs else []  # type: ignore[no-untyped-call]
    private = [each for each in segments if tuple(each["segment_pool_id"]) != (0, 0)]
    return {"device_graph_bytes": sum(each["total_size"] for each in private)}


def pinned_memory(device: str) -> dict[str, int]:
    """Return the pinned host memory in use and what PyTorch has reserved; empty for a CPU, and for
    a PyTorch that does not count it.
    """
    if not device.startswith("cuda") or "host_memory_stats" not in vars(torch.cuda):
        return {}
    stats = torch.cuda.host_memory_stats()
    if "active_bytes.current" not in stats:
        return {}
    return {
        "pinned_allocated_bytes": stats["active_bytes.current"],
        "pinned_reserved_bytes": stats["allocated_bytes.current"],
    }


def usable_device_bytes(device: str) -> int:
    """Return the memory of ``device`` that this process has or could have; 0 for a CPU."""
    if not device.startswith("cuda"):
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


class Snapshot:
    """Values read between two steps, passed from the engine's thread to the wire reader's."""

    def __init__(self) -> None:
        self._wanted = False
        self._taken = threading.Event()
        self._values: dict[str, float] = {}
        self._latencies: dict[str, dict[int, int]] = {}
        self._t_s = time.monotonic()

    @property
    def wanted(self) -> bool:
        """Whether a reader is waiting; checked by the engine's thread between steps."""
        return self._wanted

    def put(self, values: dict[str, float], latencies: LatencyCounts) -> None:
        """Provide the requested values."""
        self._t_s, self._values = time.monotonic(), values
        # Latencies that came too late for one reply go into the next.
        add_latencies(self._latencies, latencies)
        self._wanted = False
        self._taken.set()

    def want(self) -> None:
        """Request fresh values."""
        self._taken.clear()
        self._wanted = True

    def get(self, patience_s: float) -> tuple[bool, float, dict[str, float]]:
        """Return whether fresh values came within ``patience_s``; their time; the latest values."""
        fresh = self._taken.wait(patience_s)
        return fresh, self._t_s, self._values

    def take_latencies(self) -> dict[str, dict[int, int]]:
        """Return all counts since the last call; use only after ``get`` returned fresh values."""
        latencies, self._latencies = self._latencies, {}
        return latencies
