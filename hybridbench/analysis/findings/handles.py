"""What to say about open files, threads, child processes and zombies that only increase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from hybridbench.analysis.findings.words import for_each
from hybridbench.records.finding import Finding


class Handle(NamedTuple):
    """The cause of such growth, and how to find it; ``find`` has a place for the event."""

    cause: str
    find: str

    def advice(self, found: Finding) -> str:
        """Return how to find what opens them, with the event that drives ``found``."""
        return self.find.format(event=for_each(found))


HANDLES: Final[Mapping[str, Handle]] = {
    "open_fds": Handle(
        "files, pipes or sockets are opened and never closed",
        "Find what is opened{event} (ls -l /proc/PID/fd) and which exit path does not close it.",
    ),
    "threads": Handle(
        "threads are started and never end",
        "Find which threads are started{event} and what they wait for (py-spy dump, gdb).",
    ),
    "children": Handle(
        "child processes are started and never end",
        "Find which processes are started{event} (ps --ppid PID) and what should end them.",
    ),
    "zombies": Handle(
        "child processes end, and the process never waits for them",
        "Wait for each child that is started{event}, or ignore SIGCHLD if no status is needed.",
    ),
}
