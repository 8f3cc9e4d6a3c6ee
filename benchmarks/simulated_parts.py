"""Memory of a simulated healthy process: caches, allocators, collectors, workers.

Each part maps a clock of arrivals to its memory at each tick, as a share of the process's memory.
Every fill ends by six tenths of the run: without other evidence, a longer one cannot be
distinguished from a leak, so it would not be a fair test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray

Random = np.random.Generator
_FULL_BY = 0.6  # share of the run


@dataclass(frozen=True)
class Clock:
    """Arrivals at equidistant ticks; ``told`` is whether the sampler records them.

    Usually it does, because a soak drives its own traffic.
    """

    t_s: FloatArray
    requests: FloatArray  # arrivals of each tick
    told: bool

    @property
    def duration_s(self) -> float:
        return float(self.t_s[-1])

    @property
    def done(self) -> FloatArray:
        """Share of the run's requests that have arrived by each tick."""
        total = np.cumsum(self.requests)
        share: FloatArray = total / total[-1]
        return share

    @property
    def in_flight(self) -> FloatArray:
        """Requests being served, if each takes a few ticks."""
        kernel = np.exp(-np.arange(12) / 3.0)
        return np.convolve(self.requests, kernel)[: self.requests.size]


Part = Callable[[Random, Clock], FloatArray]


def arrivals(rng: Random, duration_s: float, ticks: int) -> Clock:
    """Return traffic that is even, follows a daily cycle, comes in shifts, or has levels."""
    x = np.linspace(0.0, 1.0, ticks)
    level = _level(rng, x)
    per_tick = float(np.exp(rng.uniform(np.log(3.0), np.log(200.0))))
    requests = rng.poisson(per_tick * level).astype(np.float64)
    requests[0] = max(requests[0], 1.0)
    return Clock(x * duration_s, requests, bool(rng.random() < 0.7))


def poisson_times(rng: Random, clock: Clock, count: int) -> NDArray[np.int64]:
    """Ticks of ``count`` random events, distributed like the requests."""
    return np.sort(np.searchsorted(clock.done, rng.uniform(0.0, 1.0, count)))


def quiet(rng: Random, clock: Clock) -> FloatArray:
    """No memory besides the process itself."""
    return np.zeros(clock.t_s.size)


def key_cache(rng: Random, clock: Clock) -> FloatArray:
    """A cache that fills up to its capacity or the last key; popular keys come first."""
    keys = 10.0 ** np.linspace(0.0, rng.uniform(2.0, 4.0), 60)
    weight = keys ** -rng.uniform(0.0, 1.2) * np.gradient(keys)
    chance = weight / weight.sum() / np.gradient(keys)
    drawn = clock.done * float(np.exp(rng.uniform(np.log(5.0), np.log(60.0)))) * keys[-1]
    seen = (np.gradient(keys) * (1.0 - np.exp(-chance * drawn[:, None]))).sum(axis=1)
    capacity = rng.uniform(0.3, 0.95) * float(np.interp(_FULL_BY, clock.done, seen))
    filled: FloatArray = np.minimum(seen, capacity) / capacity
    # Once full, evicted entries are replaced by entries of other sizes.
    churn = rng.uniform(0.0, 0.01) * reverting(rng, clock, 0.01) * (filled >= 1.0)
    return rng.uniform(0.02, 0.4) * (filled + churn)


def arenas(rng: Random, clock: Clock) -> FloatArray:
    """A varying number of live objects; an arena is released only when it happens to be empty."""
    live = 1.0 + 0.3 * reverting(rng, clock, rng.uniform(0.005, 0.03))
    held = np.empty_like(live)
    top, returns = live[0], rng.uniform(0.0, 0.02)
    for i, now in enumerate(live.tolist()):
        top = max(now, top - returns * (top - now))
        held[i] = top
    return rng.uniform(0.005, 0.06) * held


def collector(rng: Random, clock: Clock) -> FloatArray:
    """Cycles accumulate up to a quarter of the heap; a full collection frees most of them."""
    heap, pending, survivors = 1.0, 0.0, rng.uniform(0.0, 0.1)
    per_request = rng.uniform(5.0, 90.0) * 0.25 / float(clock.requests.sum())
    out = np.empty(clock.t_s.size)
    limit = 0.25
    for i, new in enumerate(clock.requests.tolist()):
        pending += new * per_request
        if pending > limit * heap:
            # Survivors of one collection are freed by the next.
            pending *= survivors * rng.uniform(0.5, 1.5)
            limit = 0.25 * rng.uniform(0.85, 1.15)
        out[i] = pending
    return rng.uniform(0.04, 0.4) * out


def worker_pool(rng: Random, clock: Clock) -> FloatArray:
    """Workers that warm up and are replaced after some number of requests, at different times."""
    helpers = int(rng.integers(2, 9))
    life = rng.uniform(0.08, 0.5)
    warm = life * rng.uniform(0.03, 0.3)
    out = np.zeros(clock.t_s.size)
    for _ in range(helpers):
        age = np.mod(clock.done + rng.uniform(0.0, life), life)
        out += 1.0 - np.exp(-age / warm)
    return rng.uniform(0.01, 0.15) * out / helpers


def uploads(rng: Random, clock: Clock) -> FloatArray:
    """Request bodies held while they are processed; a few are large, and a few are slow."""
    out = np.zeros(clock.t_s.size)
    for start in poisson_times(rng, clock, int(rng.integers(10, 200))).tolist():
        ticks = int(1 + min(rng.pareto(1.5) * 5.0, 150.0))
        out[start : start + ticks] += min(rng.pareto(1.8), 20.0)
    return rng.uniform(0.0005, 0.003) * out


def log_buffer(rng: Random, clock: Clock) -> FloatArray:
    """A buffer that is flushed whenever it is full."""
    return rng.uniform(0.01, 0.1) * np.mod(clock.done * rng.uniform(6.0, 150.0), 1.0)


def connections(rng: Random, clock: Clock) -> FloatArray:
    """Buffers of connections that stay open, up to the pool's limit."""
    limit = int(rng.integers(10, 300))
    opened = poisson_times(rng, clock, int(limit / rng.uniform(0.15, 0.55)))
    count = np.bincount(opened, minlength=clock.t_s.size).cumsum()
    full: FloatArray = np.minimum(count, limit) / limit
    return rng.uniform(0.01, 0.15) * full


def code_cache(rng: Random, clock: Clock) -> FloatArray:
    """Programs compiled for each new shape; most shapes occur early."""
    shapes = int(rng.integers(5, 60))
    first = rng.exponential(rng.uniform(0.02, 0.15), shapes)
    sizes = rng.gamma(2.0, size=shapes)
    grown = np.array([sizes[first <= done].sum() for done in clock.done])
    held: FloatArray = rng.uniform(0.01, 0.1) * grown / sizes.sum()
    return held


def load_memory(rng: Random, clock: Clock) -> FloatArray:
    """Activations of requests being served."""
    held: FloatArray = rng.uniform(0.005, 0.06) * clock.in_flight / clock.in_flight.max()
    return held


def wandering(rng: Random, clock: Clock) -> FloatArray:
    """Another process in the container, whose memory wanders within limits."""
    walk = np.cumsum(rng.normal(size=clock.t_s.size)) / np.sqrt(clock.t_s.size)
    folded: FloatArray = np.abs(np.mod(walk * rng.uniform(2.0, 8.0), 2.0) - 1.0)
    held: FloatArray = rng.uniform(0.002, 0.02) * folded
    return held


def unloading(rng: Random, clock: Clock) -> FloatArray:
    """Something large that is freed at once or gradually."""
    x = clock.t_s / clock.duration_s
    start, length = rng.uniform(0.05, 0.7), float(rng.choice([1e-3, rng.uniform(0.05, 0.9)]))
    return -rng.uniform(0.01, 0.15) * np.clip((x - start) / length, 0.0, 1.0)


PARTS: Mapping[str, Part] = {
    "quiet": quiet,
    "key cache": key_cache,
    "arenas": arenas,
    "collector": collector,
    "worker pool": worker_pool,
    "uploads": uploads,
    "log buffer": log_buffer,
    "connections": connections,
    "code cache": code_cache,
    "load memory": load_memory,
    "wandering": wandering,
    "unloading": unloading,
}
RANDOM = ("arenas", "uploads", "wandering")  # random, and not explained by any sampled metric


def _level(rng: Random, x: FloatArray) -> FloatArray:
    """Level of traffic over the run, around 1."""
    pattern = rng.choice(["even", "even", "day", "shifts", "levels"])
    if pattern == "day":
        height, cycles = rng.uniform(0.2, 0.9), rng.uniform(1.0, 4.0)
        day: FloatArray = 1.0 + height * np.sin(2 * np.pi * (x * cycles + rng.uniform()))
        return day
    if pattern == "shifts":
        phase = np.mod(x * rng.uniform(4.0, 20.0) + rng.uniform(), 1.0)
        return np.where(phase < rng.uniform(0.4, 0.8), 1.05, 0.05)
    if pattern == "levels":
        edges = np.sort(rng.uniform(0.1, 0.9, int(rng.integers(1, 4))))
        levels: FloatArray = rng.uniform(0.4, 1.6, edges.size + 1)[np.searchsorted(edges, x)]
        return levels
    return np.ones_like(x)


def reverting(rng: Random, clock: Clock, tau: float) -> FloatArray:
    """AR(1) noise of standard deviation 1; ``tau`` is its time constant as a share of the run."""
    keep = float(np.exp(-1.0 / (tau * clock.t_s.size)))
    fresh = rng.normal(size=clock.t_s.size) * np.sqrt(1.0 - keep * keep)
    out = np.empty(clock.t_s.size)
    state = float(rng.normal())
    for i, new in enumerate(fresh.tolist()):
        state = keep * state + new
        out[i] = state
    return out
