"""One of a run's processes: what identifies it, and what was read from it."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import msgspec

from hybridbench.foundation.foreign import INT_MAX
from hybridbench.foundation.labels import of_process


class ProcessSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was read from one process at the time of a sample.

    ``role``, ``host`` and ``rank`` stay the same when the process is restarted; ``pid`` and
    ``started``, in seconds after the machine's boot, change.
    """

    role: str
    pid: int
    started: float
    m: dict[str, float]
    host: str = ""
    rank: str = ""

    def __post_init__(self) -> None:
        if not self.role or not 0 < self.pid <= INT_MAX:
            raise ValueError("a process has a role and a pid")

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of its series."""
        return of_process(self.role, self.host, self.rank)

    @property
    def incarnation(self) -> tuple[int, float]:
        """What distinguishes a restarted process from its predecessor."""
        return self.pid, self.started


def signal_name(number: int) -> str:
    """``SIGKILL``; ``signal 35`` for one without a name, as most real-time signals."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
