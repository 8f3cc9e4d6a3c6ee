"""What can be put under soak: a process behind the wire, and what it declares that it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from hybridbench.records.messages import FromWorker, ToWorker


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


# What a reader misses when a target lacks a capability that shows something.
NOT_SHOWN: Mapping[Capability, str] = {
    Capability.MALLOC: "what the C allocator holds",
    Capability.EVENT_COUNTERS: "engine events, so growth is reported per hour and per request only",
    Capability.POOLS: "pool counts: lost slots show only when a pool runs dry",
    Capability.WAITING_HELD: "what waiting requests hold",
    Capability.LOCKS: "locks that are held when nothing runs",
    Capability.CONTAINERS: "lengths of the engine's own tables",
    Capability.INVARIANTS: "the engine's own checks",
    Capability.GC_COUNTERS: "the collector's pauses",
    Capability.HEAP_SCAN: "uncollected garbage",
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


class Target(Protocol):
    """One process (or group of them) under soak, as the soak loop sees it.

    The loop posts messages and exchanges them; it never reaches into the process.
    """

    @property
    def pid(self) -> int:
        """The process whose memory is the engine's."""
        ...

    def post(self, message: ToWorker) -> None:
        """Queue a message; it leaves with the next ``exchange``."""
        ...

    def exchange(self, timeout_s: float) -> list[FromWorker]:
        """Send what is queued and wait up to ``timeout_s`` for messages.

        Raises:
            WireClosedError: the process is gone.
        """
        ...

    def exit_status(self) -> ExitStatus | None:
        """How the process ended, or None while it lives."""
        ...

    def could_run_s(self) -> float:
        """Seconds since its start in which the process could have run.

        What it waited for a processor, or was stopped, is not its fault and does not count.
        """
        ...

    def dump_stack(self) -> None:
        """Ask the process to write the stacks of its threads to its stderr."""
        ...

    def stderr_tail(self) -> list[str]:
        """The last lines it wrote."""
        ...

    def limit_stderr(self) -> None:
        """Keep what it wrote from growing without bound; called now and then."""
        ...

    def stop(self, patience_s: float) -> ExitStatus | None:
        """Wait for the end that Shutdown asked for; kill the whole group when it does not come.

        Returns:
            How it ended; None for a process that not even a kill has ended yet.
        """
        ...

    def kill(self) -> bool:
        """End the whole group at once; whether its end was seen, which may take the kernel long."""
        ...
