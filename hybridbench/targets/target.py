"""The three interfaces of a target, and the capabilities that it declares.

Every target can be observed.  A driven one gets its traffic from the run.  A controlled one can be
asked to drain, to give memory back and to report what it holds.  A run selects its steps and
sources by the target's capabilities, and the report lists what could not be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from hybridbench.records.messages import FromWorker, ToWorker
from hybridbench.records.processes import ProcessSample


class Capability(StrEnum):
    """What a target accepts and what it shows; a report lists the missing ones."""

    TRAFFIC = "traffic"
    ABORT = "abort"
    DISCONNECT = "disconnect"
    SESSIONS = "sessions"
    DRAIN = "drain"
    FLUSH = "flush"
    PROCESS_MEMORY = "process_memory"
    MALLOC = "malloc"
    EVENT_COUNTERS = "event_counters"
    POOLS = "pools"
    WAITING_HELD = "waiting_held"
    LOCKS = "locks"
    CONTAINERS = "containers"
    INVARIANTS = "invariants"
    GC_COUNTERS = "gc_counters"
    HEAP_SCAN = "gc_census"
    INSTANCES = "instances"
    ANSWERS = "answers"


# What a reader misses when a target lacks the capability.
NOT_SHOWN: Mapping[Capability, str] = {
    Capability.TRAFFIC: "traffic: how many requests were answered, and how fast",
    Capability.PROCESS_MEMORY: "memory, threads, open files and processor time of its processes",
    Capability.DRAIN: (
        "the target when idle: without idle checkpoints, growth is judged by trends alone"
    ),
    Capability.MALLOC: "what the C allocator holds",
    Capability.EVENT_COUNTERS: "engine events: growth is reported per hour or per request",
    Capability.POOLS: "pool counts: lost slots show only when a pool runs dry",
    Capability.WAITING_HELD: "what waiting requests hold",
    Capability.LOCKS: "locks that are held when nothing runs",
    Capability.CONTAINERS: "lengths of the engine's own tables",
    Capability.INVARIANTS: "the engine's own checks",
    Capability.GC_COUNTERS: "the collector's pauses",
    Capability.HEAP_SCAN: "uncollected garbage",
    Capability.ANSWERS: "whether answers are correct: nothing recomputes them",
    Capability.INSTANCES: "objects that should have died by reference count",
}


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended: an exit code, or the signal that killed it."""

    code: int | None
    signal: int | None

    @classmethod
    def from_returncode(cls, returncode: int) -> ExitStatus:
        """Convert the value that ``subprocess`` gives: negative for a signal."""
        return cls(None, -returncode) if returncode < 0 else cls(returncode, None)

    @property
    def text(self) -> str:
        """``exit code 3``, ``signal 15``, or that the code is unknown."""
        if self.signal is not None:
            return f"signal {self.signal}"
        return "exit code unknown" if self.code is None else f"exit code {self.code}"


class Observe(Protocol):
    """Outside observation of one or more processes; every target has this interface.

    The loop never reaches into a process.
    """

    @property
    def pid(self) -> int:
        """The main process; its end is the target's end."""
        ...

    def processes(self) -> Sequence[ProcessSample]:
        """Read the current values of each process with a role.

        Empty for a single process, which is sampled under its metrics' own names.
        """
        ...

    def counters(self) -> Mapping[str, float]:
        """Return the metrics that the target itself reports, such as the family ``scraped.*``.

        Empty for a target on the wire, which reports them there.
        """
        ...

    def exit_of(self, pid: int) -> ExitStatus | None:
        """Return how a process of the target ended, if known."""
        ...

    def exit_status(self) -> ExitStatus | None:
        """Return how the process ``pid`` ended, or None while it lives."""
        ...

    def could_run_s(self) -> float:
        """Return the seconds since its start in which the process could have run.

        Time that it waited for a processor, or was stopped, does not count.
        """
        ...

    def stderr_tail(self) -> list[str]:
        """Return the last lines that it wrote."""
        ...

    def limit_stderr(self) -> None:
        """Keep its output from growing without bound; called regularly."""
        ...

    def stop(self, patience_s: float) -> ExitStatus | None:
        """End the process, or wait for its end; kill the whole group if that takes too long.

        Returns:
            How it ended; None if not even a kill has ended it yet.
        """
        ...

    def kill(self) -> bool:
        """Kill the whole group; return whether it has ended, which the kernel may delay."""
        ...


class Drive(Protocol):
    """The interface of a target whose traffic comes from the run, here over the wire."""

    def post(self, message: ToWorker) -> None:
        """Queue a message; the next ``exchange`` sends it."""
        ...

    def exchange(self, timeout_s: float) -> list[FromWorker]:
        """Send the queue and wait up to ``timeout_s`` for messages.

        Raises:
            WireClosedError: the process is gone.
        """
        ...


class WireTarget(Observe, Drive, Protocol):
    """A target behind the wire, which carries its traffic and all requests to it."""

    def dump_stack(self) -> None:
        """Ask the process to write its threads' stacks to its stderr."""
        ...


class Pending(Protocol):
    """A pending request; ``answer`` is None until it has arrived."""

    @property
    def answer(self) -> object | None: ...


class Control(Protocol):
    """The interface of a target that can be asked to drain and to report what it holds.

    A request fails if the target does not answer within ``patience_s`` of its runnable time.
    """

    heap_scans_wanted: bool  # whether the heap is scanned under traffic

    def drain(self, patience_s: float) -> bool:
        """Stop traffic; return whether the target became idle."""
        ...

    def resume(self) -> None:
        """Resume traffic."""
        ...

    def flush(self, patience_s: float) -> bool:
        """Empty the cache; return whether that was done."""
        ...

    def no_scan_open(self) -> bool:
        """Return whether every requested heap scan has been answered."""
        ...

    def sample_rest(self) -> None:
        """Store the current private memory, while the target is idle."""
        ...

    def post_checkpoint(self, index: int, *, audit: bool) -> Pending:
        """Request a checkpoint of everything held; with ``audit``, slot by slot."""
        ...

    def reclaim(self, patience_s: float) -> None:
        """Record how much memory the target can give back; this changes the target."""
        ...

    def leave(self, patience_s: float) -> None:
        """Let the target shut down in order."""
        ...
