"""A server of which only the interface is seen: it may run on another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridbench.foundation.clock import Clock
from hybridbench.records.processes import ProcessSample
from hybridbench.targets.target import ExitStatus


class RemoteServer:
    """None of its processes is known; that it has ended, only who asks it can tell."""

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
        del pid
        return None

    def exit_status(self) -> ExitStatus | None:
        return None

    def could_run_s(self) -> float:
        return self._clock.monotonic_s() - self._begun_s

    def stderr_tail(self) -> list[str]:
        return []

    def limit_stderr(self) -> None:
        """What it writes is not seen."""

    def stop(self, patience_s: float) -> ExitStatus | None:
        """It goes on; nothing is asked of it."""
        del patience_s
        return ExitStatus(None, None)

    def kill(self) -> bool:
        """It goes on."""
        return False
