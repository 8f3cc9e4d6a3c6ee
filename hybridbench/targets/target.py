"""What can be put under soak, by three ports, and what a target declares that it can do.

Every target can be observed; one that is driven gets its traffic from the run; one that is
controlled can be asked to rest, to give back and to account for itself.  Steps and sources of a run
are chosen by what its target offers, and the report lists what could not be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from hybridbench.records.messages import FromWorker, ToWorker
from hybridbench.records.processes import ProcessSample


class Capability(StrEnum):
    """What a target takes and what it shows; a report lists those that are missing."""

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


# What a reader misses when a target lacks a capability that shows something.
NOT_SHOWN: Mapping[Capability, str] = {
    Capability.TRAFFIC: "traffic: how many requests were answered, and how fast",
    Capability.PROCESS_MEMORY: "memory, threads, open files and processor time of its processes",
    Capability.DRAIN: "the target when idle: without idle checkpoints growth rests on trends alone",
    Capability.MALLOC: "what the C allocator holds",
    Capability.EVENT_COUNTERS: "engine events, so growth is reported per hour and per request only",
    Capability.POOLS: "pool counts: lost slots show only when a pool runs dry",
    Capability.WAITING_HELD: "what waiting requests hold",
    Capability.LOCKS: "locks that are held when nothing runs",
    Capability.CONTAINERS: "lengths of the engine's own tables",
    Capability.INVARIANTS: "the engine's own checks",
    Capability.GC_COUNTERS: "the collector's pauses",
    Capability.HEAP_SCAN: "uncollected garbage",
    Capability.ANSWERS: "whether answers are right: nothing computes them anew",
    Capability.INSTANCES: "objects that should have died by reference count",
}


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended: an exit code, or the signal that killed it."""

    code: int | None
    signal: int | None

    @classmethod
    def from_returncode(cls, returncode: int) -> ExitStatus:
        """From the value that ``subprocess`` gives: negative for a signal."""
        return cls(None, -returncode) if returncode < 0 else cls(returncode, None)

    @property
    def text(self) -> str:
        """``exit code 3``, ``signal 15``, or that nothing is known."""
        if self.signal is not None:
            return f"signal {self.signal}"
        return "exit code unknown" if self.code is None else f"exit code {self.code}"


class Observe(Protocol):
    """What can be seen of one process, or of several, from outside; every target has this port.

    The loop never reaches into a process.
    """

    @property
    def pid(self) -> int:
        """The process that the others belong to, and whose end is the target's."""
        ...

    def processes(self) -> Sequence[ProcessSample]:
        """What can be read now of each process with a role; empty where there is but one, which is
        sampled under its metrics' own names.
        """
        ...

    def counters(self) -> Mapping[str, float]:
        """What the target reports of its work now: declared metrics, such as of the family
        ``scraped.*``.  One on the wire is asked for them there.
        """
        ...

    def exit_of(self, pid: int) -> ExitStatus | None:
        """How a process of the target ended, where that is known."""
        ...

    def exit_status(self) -> ExitStatus | None:
        """How the process ``pid`` ended, or None while it lives."""
        ...

    def could_run_s(self) -> float:
        """Seconds since its start in which the process could have run.

        What it waited for a processor, or was stopped, is not its fault and does not count.
        """
        ...

    def stderr_tail(self) -> list[str]:
        """The last lines it wrote."""
        ...

    def limit_stderr(self) -> None:
        """Keep what it wrote from growing without bound; called now and then."""
        ...

    def stop(self, patience_s: float) -> ExitStatus | None:
        """Let it end, or wait for the end that was asked for; kill the whole group when it does not
        come.

        Returns:
            How it ended; None for a process that not even a kill has ended yet.
        """
        ...

    def kill(self) -> bool:
        """End the whole group at once; whether its end was seen, which may take the kernel long."""
        ...


class Drive(Protocol):
    """The port of a target whose traffic comes from the run, here over the wire."""

    def post(self, message: ToWorker) -> None:
        """Queue a message; it leaves with the next ``exchange``."""
        ...

    def exchange(self, timeout_s: float) -> list[FromWorker]:
        """Send what is queued and wait up to ``timeout_s`` for messages.

        Raises:
            WireClosedError: the process is gone.
        """
        ...


class WireTarget(Observe, Drive, Protocol):
    """A target behind the wire, which carries its traffic and all that is asked of it."""

    def dump_stack(self) -> None:
        """Ask the process to write the stacks of its threads to its stderr."""
        ...


class Pending(Protocol):
    """Something that was asked for; ``answer`` is None until it has come."""

    @property
    def answer(self) -> object | None: ...


class Control(Protocol):
    """The port of a target that can be asked to rest and to account for itself.

    Each request is given up once the target could have run for ``patience_s`` without an answer.
    """

    heap_scans_wanted: bool  # whether the heap is scanned under traffic

    def drain(self, patience_s: float) -> bool:
        """Take no more traffic; whether the target became idle."""
        ...

    def resume(self) -> None:
        """Take traffic again."""
        ...

    def flush(self, patience_s: float) -> bool:
        """Empty the cache; whether that was done."""
        ...

    def no_scan_open(self) -> bool:
        """Whether every heap scan that was asked for is answered."""
        ...

    def sample_rest(self) -> None:
        """Store the private memory of this moment, at which the target has nothing to do."""
        ...

    def post_checkpoint(self, index: int, *, audit: bool) -> Pending:
        """Ask what everything holds; with ``audit`` slot by slot."""
        ...

    def reclaim(self, patience_s: float) -> None:
        """Record what can be given back; the target is changed by that."""
        ...

    def leave(self, patience_s: float) -> None:
        """Let the target end in order."""
        ...
