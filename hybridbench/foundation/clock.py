"""Time as an argument: everything that waits or stamps takes a Clock, so tests never sleep."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the soak loop, the sampler and the arrival processes need to know of time."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        ...

    def thread_cpu_s(self) -> float:
        """Processor time of the calling thread in seconds; only differences mean anything."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch, for stamps a person reads."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Let ``duration_s`` pass; zero and less return at once."""
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
    """A clock that moves only when told to; ``sleep`` moves it."""

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
        """Let ``duration_s`` pass at once.

        Raises:
            ValueError: for a negative duration; time does not go back.
        """
        if duration_s < 0:
            raise ValueError(f"a clock cannot go back by {-duration_s} s")
        self._now_s += duration_s
