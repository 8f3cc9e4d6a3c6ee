"""Decide when requests arrive: closed loop or Poisson, each with optional bursts and a ramp.

Times are seconds of traffic: the caller subtracts pauses.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from random import Random
from typing import Protocol

from hybridbench.workload.settings import Arrival, Bursts, Ramp


class Arrivals(Protocol):
    """An arrival process."""

    dropped: int
    arrived_s: float  # when the latest request arrived

    def due(self, time_s: float, in_flight: int) -> bool:
        """Return whether a request arrives now; True counts as that request's arrival."""
        ...

    def next_s(self, time_s: float, in_flight: int) -> float | None:
        """Return when to call ``due`` again at the latest; None if not before a request ends."""
        ...


def build_arrivals(arrival: Arrival, random: Random) -> Arrivals:
    """Return the process that a checked profile specifies."""
    if arrival.process == "closed":
        assert arrival.concurrency is not None, "check_consistency lets no such profile pass"
        closed = ClosedLoop(arrival.concurrency, arrival.bursts, arrival.ramp)
        return Thinking(closed, arrival.think_s, random) if arrival.think_s else closed
    assert arrival.rate_per_s is not None, "check_consistency lets no such profile pass"
    return Poisson(arrival, random)


class ClosedLoop:
    """``concurrency`` requests in flight at all times, multiplied by ``factor`` in a burst."""

    def __init__(
        self, concurrency: int, bursts: Bursts | None = None, ramp: Ramp | None = None
    ) -> None:
        self.dropped = 0  # a closed loop waits instead
        self.arrived_s = 0.0
        self._concurrency = concurrency
        self._bursts = bursts
        self._ramp = ramp

    def limit(self, time_s: float) -> int:
        """Return the maximum number of requests in flight, at least one."""
        share = _share(self._ramp, time_s)
        return max(1, math.floor(self._concurrency * share * _factor(self._bursts, time_s)))

    def due(self, time_s: float, in_flight: int) -> bool:
        self.arrived_s = time_s
        return in_flight < self.limit(time_s)

    def next_s(self, time_s: float, in_flight: int) -> float | None:
        if in_flight < self.limit(time_s):
            return time_s
        changes = []
        if self._bursts is not None:
            changes.append(_next_change_s(self._bursts, time_s))
        if self._ramp is not None and time_s < self._ramp.over_s:
            # The limit rises continuously; a hundred checks are enough.
            changes.append(time_s + self._ramp.over_s / 100)
        return min(changes, default=None)


class Thinking:
    """A closed loop whose clients think for ``think_s`` on average after each answer."""

    def __init__(self, closed: ClosedLoop, think_s: float, random: Random) -> None:
        self.dropped = 0
        self.arrived_s = 0.0
        self._closed = closed
        self._think_s = think_s
        self._random = random
        self._in_flight = 0  # at the last call
        self._ends_s: list[float] = []  # when each thinking client is done, earliest first

    def due(self, time_s: float, in_flight: int) -> bool:
        self._look(time_s, in_flight)
        self.arrived_s = time_s
        is_due = self._closed.due(time_s, in_flight + len(self._ends_s))
        self._in_flight += is_due
        return is_due

    def next_s(self, time_s: float, in_flight: int) -> float | None:
        self._look(time_s, in_flight)
        next_s = self._closed.next_s(time_s, in_flight + len(self._ends_s))
        times_s = [*self._ends_s[:1], *([] if next_s is None else [next_s])]
        return min(times_s, default=None)

    def _look(self, time_s: float, in_flight: int) -> None:
        while self._ends_s and self._ends_s[0] <= time_s:
            heappop(self._ends_s)
        for _ in range(self._in_flight - in_flight):
            heappush(self._ends_s, time_s + self._think_s * (0.5 + self._random.random()))
        self._in_flight = in_flight


class Poisson:
    """Independent arrivals at ``rate_per_s``, multiplied by ``factor`` in a burst.

    Arrivals while ``max_in_flight`` requests are unfinished are dropped and counted: on a machine
    that is too slow, an open loop would otherwise queue without bound.
    """

    def __init__(self, arrival: Arrival, random: Random) -> None:
        assert arrival.rate_per_s is not None
        self.dropped = 0
        self.arrived_s = 0.0
        self._rate_per_s = arrival.rate_per_s
        self._bursts = arrival.bursts
        self._ramp = arrival.ramp
        self._max_in_flight = arrival.max_in_flight
        self._random = random
        self._arrival_s = self._next_after(0.0)

    def due(self, time_s: float, in_flight: int) -> bool:
        while self._arrival_s <= time_s:
            self.arrived_s = self._arrival_s
            self._arrival_s = self._next_after(self._arrival_s)
            if in_flight < self._max_in_flight:
                return True
            self.dropped += 1
        return False

    def next_s(self, time_s: float, in_flight: int) -> float | None:
        del time_s, in_flight
        return self._arrival_s

    def _next_after(self, start_s: float) -> float:
        # Thinning: keep the share of full-load arrivals that the ramp has reached by then.
        here_s = self._after(start_s)
        while self._ramp is not None and self._random.random() >= _share(self._ramp, here_s):
            here_s = self._after(here_s)
        return here_s

    def _after(self, start_s: float) -> float:
        # A unit exponential is consumed at the rate of each segment it passes through.
        left = self._random.expovariate(1.0)
        if self._bursts is None:
            return start_s + left / self._rate_per_s
        here_s = start_s
        while True:
            rate = self._rate_per_s * _factor(self._bursts, here_s)
            change_s = _next_change_s(self._bursts, here_s)
            if left <= rate * (change_s - here_s):
                return here_s + left / rate
            left -= rate * (change_s - here_s)
            here_s = change_s


def _factor(bursts: Bursts | None, time_s: float) -> float:
    if bursts is None or time_s % bursts.every_s >= bursts.length_s:
        return 1.0
    return bursts.factor


def _share(ramp: Ramp | None, time_s: float) -> float:
    if ramp is None or time_s >= ramp.over_s:
        return 1.0
    return ramp.start + (1.0 - ramp.start) * time_s / ramp.over_s


def _next_change_s(bursts: Bursts, time_s: float) -> float:
    period = math.floor(time_s / bursts.every_s)
    end_s = period * bursts.every_s + bursts.length_s
    # Rounding may put a change at or before now; time must advance.
    change_s = end_s if time_s < end_s else (period + 1) * bursts.every_s
    return max(change_s, math.nextafter(time_s, math.inf))
