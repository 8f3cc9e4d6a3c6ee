"""Take samples in the parent: worker metrics, process metrics, and the cost of sampling."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.metrics import declared
from hybridbench.sampling.cadence import Beat
from hybridbench.sampling.process import (
    ProcessGoneError,
    count_open_fds,
    read_busy_s,
    read_children,
    read_cpu_s,
    read_cpu_wait_s,
    read_family_cpu_s,
    read_process_memory,
    read_pss_bytes,
    read_steal_s,
)


class Source(Protocol):
    """Something that can be read from outside the worker."""

    def read(self) -> Mapping[str, float]:
        """Return declared metrics; empty if nothing can be read."""
        ...


class ProcessSource:
    """Memory, threads and descriptors of one process, in under a millisecond.

    Attributes:
        shared_bytes: shared memory at the last reading; not a metric of our own workers.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self.shared_bytes = 0

    def read(self) -> Mapping[str, float]:
        try:
            memory = read_process_memory(self._pid, self._proc)
            open_fds = count_open_fds(self._pid, self._proc)
        except ProcessGoneError:
            return {}
        self.shared_bytes = memory.shared_bytes
        values: dict[str, float] = {
            "rss_bytes": memory.rss_bytes,
            "rss_anon_swap_bytes": memory.anon_swap_bytes,
            "swap_bytes": memory.swap_bytes,
            "threads": memory.threads,
        }
        if open_fds is not None:
            values["open_fds"] = open_fds
        return values


class ChildrenSource:
    """Child processes of our worker, without those of heap scans; a healthy worker has none."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._had_any = False

    def read(self) -> Mapping[str, float]:
        live, ended = read_children(self._pid)
        self._had_any |= live + ended > 0
        return {"children": live, "zombies": ended} if self._had_any else {}


class StarvationSource:
    """A process's CPU time, its time waiting for a CPU, and the time the hypervisor stole.

    A parked process does not wait, so time stolen while it was parked is excluded.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._parked_at_s: float | None = None
        self._left_out_s = 0.0

    def park(self) -> None:
        """Mark the process as parked; steal time from now on does not affect it."""
        self._parked_at_s = read_steal_s()

    def unpark(self) -> None:
        """Mark the process as running again."""
        steal_s = read_steal_s()
        if steal_s is not None and self._parked_at_s is not None:
            self._left_out_s += steal_s - self._parked_at_s
        self._parked_at_s = None

    def read(self) -> Mapping[str, float]:
        steal_s = read_steal_s()
        if steal_s is not None:
            steal_s -= self._left_out_s
        found = {
            "worker_cpu_s": read_cpu_s(self._pid, self._proc),
            "worker_cpu_wait_s": read_cpu_wait_s(self._pid, self._proc),
            "host_steal_s": steal_s,
        }
        return {name: value for name, value in found.items() if value is not None}


class StealSource:
    """CPU time that the hypervisor took from all processes."""

    def read(self) -> Mapping[str, float]:
        steal_s = read_steal_s()
        return {} if steal_s is None else {"host_steal_s": steal_s}


class OthersSource:
    """CPU time of all programs other than the run's own processes and those that it watches.

    A process that ended without being waited for by its parent counts among the others.
    """

    def __init__(self, watched_pid: int | None) -> None:
        self._roots = (os.getpid(), *(() if watched_pid is None else (watched_pid,)))
        self._others_s = 0.0

    def read(self) -> Mapping[str, float]:
        busy_s = read_busy_s()
        if busy_s is None:
            return {}
        # A process that has ended is missing until it is waited for.
        self._others_s = max(self._others_s, busy_s - read_family_cpu_s(self._roots))
        return {"others_cpu_s": self._others_s / (os.cpu_count() or 1)}


class PssSource:
    """Proportional set size of one process: too slow for each sample."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def read(self) -> Mapping[str, float]:
        try:
            pss_bytes = read_pss_bytes(self._pid)
        except ProcessGoneError:
            return {}
        return {} if pss_bytes is None else {"pss_bytes": pss_bytes}


class HarnessSource:
    """Memory of this process, because growth of the bench could be blamed on the target."""

    def read(self) -> Mapping[str, float]:
        return {"harness_rss_bytes": read_process_memory(os.getpid()).rss_bytes}


@dataclass(frozen=True)
class TimedSource:
    """A source and its own beat; without a beat it is read at every sample."""

    source: Source
    beat: Beat | None = None


class Sampler:
    """Takes a sample in two halves, because the worker answers when it can.

    ``begin`` returns whether one is due, ``finish`` assembles it.  In between, the loop continues.
    """

    def __init__(self, sources: list[TimedSource], beat: Beat, clock: Clock) -> None:
        self._sources = sources
        self._beat = beat
        self._clock = clock
        self._late_s = 0.0

    @property
    def next_s(self) -> float:
        """When the next sample is due, in monotonic time."""
        return self._beat.next_s

    @property
    def interval_s(self) -> float:
        """Seconds between samples."""
        return self._beat.interval_s

    def restart(self, now_s: float) -> None:
        """Make the next sample due now, with no lateness."""
        self._beat.restart(now_s)

    def begin(self) -> bool:
        """Return whether a sample is due now; if so, begin it."""
        late_s = self._beat.take(self._clock.monotonic_s())
        if late_s is None:
            return False
        self._late_s = late_s
        return True

    def read_now(self, name: str) -> float | None:
        """Read one metric out of turn, from the sources that are read at every sample."""
        for timed in self._sources:
            value = timed.source.read().get(name) if timed.beat is None else None
            if value is not None:
                return value
        return None

    def finish(self, from_worker: Mapping[str, float]) -> dict[str, float]:
        """Return the sample: the values ``from_worker``, and everything read from outside now.

        Raises:
            KeyError: a metric is undeclared.
        """
        started_s = self._clock.monotonic_s()
        values = dict(from_worker)
        for timed in self._sources:
            if timed.beat is None or timed.beat.take(started_s) is not None:
                values.update(timed.source.read())
        values["sampler_late_s"] = self._late_s
        for name in values:
            declared(name)
        values["sampler_cost_s"] = self._clock.monotonic_s() - started_s
        return values
