"""Time as an argument: code that waits or takes timestamps gets a Clock, so tests never sleep."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The time functions that the soak loop, the sampler and the arrival processes need."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences are meaningful."""
        ...

    def thread_cpu_s(self) -> float:
        """CPU time of the calling thread in seconds; only differences are meaningful."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch, for timestamps that people read."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Wait for ``duration_s``; return at once if it is not positive."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def thread_cpu_s(self) -> float:
        return time.thread_time()

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, duration_s: float) -> None:
        if duration_s > 0:
            time.sleep(duration_s)


class FakeClock:
    """A clock that moves only by ``advance`` and ``sleep``."""

    def __init__(self, start_s: float = 0.0, epoch_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._epoch_s = epoch_s

    def monotonic_s(self) -> float:
        return self._now_s

    def thread_cpu_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._epoch_s + self._now_s

    def sleep(self, duration_s: float) -> None:
        self.advance(max(0.0, duration_s))

    def advance(self, duration_s: float) -> None:
        """Advance the clock by ``duration_s`` at once.

        Raises:
            ValueError: the duration is negative.
        """
        if duration_s < 0:
            raise ValueError(f"a clock cannot go back by {-duration_s} s")
        self._now_s += duration_s
