"""A server seen only through its interface: it may run on another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridbench.foundation.clock import Clock
from hybridbench.records.processes import ProcessSample
from hybridbench.targets.target import ExitStatus


class RemoteServer:
    """A target without known processes; only a client can tell that it has ended."""

    pid = 0
    not_seen: Sequence[str] = ()

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun_s = clock.monotonic_s()

    def processes(self) -> Sequence[ProcessSample]:
        return ()

    def counters(self) -> Mapping[str, float]:
        return {}

    def exit_of(self, pid: int) -> ExitStatus | None:
        return None

    def exit_status(self) -> ExitStatus | None:
        return None

    def could_run_s(self) -> float:
        return self._clock.monotonic_s() - self._begun_s

    def stderr_tail(self) -> list[str]:
        return []

    def limit_stderr(self) -> None:
        """Do nothing: its output is not visible here."""

    def stop(self, patience_s: float) -> ExitStatus | None:
        """Leave the server running."""
        return ExitStatus(None, None)

    def kill(self) -> bool:
        """Leave the server running."""
        return False
