"""When the next request may come: closed loop or Poisson, either with bursts.

Times are seconds of traffic: pauses are taken out by the caller.
"""

from __future__ import annotations

import math
from random import Random
from typing import Protocol

from hybridbench.workload.settings import Arrival, Bursts


class Arrivals(Protocol):
    """One arrival process."""

    dropped: int

    def due(self, time_s: float, in_flight: int) -> bool:
        """Whether a request comes now; a True answer counts as that request's arrival."""
        ...

    def next_s(self, time_s: float, in_flight: int) -> float | None:
        """When to ask again, at the latest; None: only when a request has ended."""
        ...


def build_arrivals(arrival: Arrival, random: Random) -> Arrivals:
    """The process a checked profile asks for."""
    if arrival.process == "closed":
        assert arrival.concurrency is not None, "check_consistency lets no such profile pass"
        return ClosedLoop(arrival.concurrency, arrival.bursts)
    assert arrival.rate_per_s is not None, "check_consistency lets no such profile pass"
    return Poisson(arrival.rate_per_s, arrival.bursts, arrival.max_in_flight, random)


class ClosedLoop:
    """``concurrency`` requests in flight at all times, ``factor`` times as many in a burst."""

    def __init__(self, concurrency: int, bursts: Bursts | None = None) -> None:
        self.dropped = 0  # a closed loop waits instead
        self._concurrency = concurrency
        self._bursts = bursts

    def limit(self, time_s: float) -> int:
        """Requests in flight at most."""
        return math.floor(self._concurrency * _factor(self._bursts, time_s))

    def due(self, time_s: float, in_flight: int) -> bool:
        return in_flight < self.limit(time_s)

    def next_s(self, time_s: float, in_flight: int) -> float | None:
        if in_flight < self.limit(time_s):
            return time_s
        return None if self._bursts is None else _next_change_s(self._bursts, time_s)


class Poisson:
    """Independent arrivals at ``rate_per_s``, ``factor`` times as dense in a burst.

    What comes while ``max_in_flight`` requests are unfinished is dropped and counted: an open loop
    over a machine that is too slow would otherwise queue without bound.
    """

    def __init__(
        self, rate_per_s: float, bursts: Bursts | None, max_in_flight: int, random: Random
    ) -> None:
        self.dropped = 0
        self._rate_per_s = rate_per_s
        self._bursts = bursts
        self._max_in_flight = max_in_flight
        self._random = random
        self._arrival_s = self._after(0.0)

    def due(self, time_s: float, in_flight: int) -> bool:
        while self._arrival_s <= time_s:
            self._arrival_s = self._after(self._arrival_s)
            if in_flight < self._max_in_flight:
                return True
            self.dropped += 1
        return False

    def next_s(self, time_s: float, in_flight: int) -> float | None:
        del time_s, in_flight
        return self._arrival_s

    def _after(self, start_s: float) -> float:
        # A unit exponential is used up at the rate of each segment it passes through.
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


def _next_change_s(bursts: Bursts, time_s: float) -> float:
    period = math.floor(time_s / bursts.every_s)
    end_s = period * bursts.every_s + bursts.length_s
    # Rounding may put a change at or before now; time must go on.
    change_s = end_s if time_s < end_s else (period + 1) * bursts.every_s
    return max(change_s, math.nextafter(time_s, math.inf))
