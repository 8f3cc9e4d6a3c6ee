"""Memory of the services in ``services``: managed heaps, slabs, tables, sessions.

Each part maps the clock of arrivals to its memory at each tick, as a share of the process's memory.
No part is a curve over time, and none is also in ``simulated_parts``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.simulated_parts import Clock, Part, Random, poisson_times, reverting
from hybridbench.analysis.record import FloatArray

_FULL_BY = 0.55  # share of the run


def paced_heap(rng: Random, clock: Clock) -> FloatArray:
    """A collector that runs when the heap reaches a multiple of the previous live size."""
    live = rng.uniform(0.05, 0.2) * (1.0 + 0.04 * reverting(rng, clock, 0.02))
    growth = rng.uniform(0.3, 1.0)
    garbage = np.cumsum(clock.requests) / float(clock.requests.sum())
    garbage = garbage * rng.uniform(8.0, 120.0) * float(live.mean()) * growth
    out = np.empty(clock.t_s.size)
    start, goal = 0.0, growth * float(live[0])
    for i, made in enumerate(garbage.tolist()):
        if made - start > goal:
            start, goal = made, growth * float(live[i]) * rng.uniform(0.95, 1.05)
        out[i] = live[i] + made - start
    return out


def two_generations(rng: Random, clock: Clock) -> FloatArray:
    """Hundreds of small collections; promoted objects wait for a large one."""
    done = clock.done * rng.uniform(60.0, 400.0)
    young = np.mod(done, 1.0)
    every = int(rng.integers(6, 40))
    old = np.mod(np.floor(done), every) / every
    return rng.uniform(0.02, 0.1) * young + rng.uniform(0.01, 0.1) * old


def hash_table(rng: Random, clock: Clock) -> FloatArray:
    """A table that doubles whenever it is full, for a limited number of keys."""
    seen = 1.0 - np.exp(-clock.done * rng.uniform(6.0, 40.0))
    slots = 2.0 ** np.ceil(np.log2(np.maximum(seen, 1e-4)))
    return rng.uniform(0.02, 0.25) * (0.6 * slots + 0.4 * seen)


def slab_pool(rng: Random, clock: Clock) -> FloatArray:
    """Slabs allocated on demand; empty ones are kept for a while, then freed."""
    wanted = np.ceil(rng.integers(6, 40) * (1.0 + 0.5 * reverting(rng, clock, 0.004)))
    patience = int(rng.integers(20, 300))
    windows = np.lib.stride_tricks.sliding_window_view(
        np.concatenate([np.full(patience - 1, wanted[0]), wanted]), patience
    )
    held: FloatArray = windows.max(axis=1) / wanted.max()
    return rng.uniform(0.005, 0.04) * held


def sessions(rng: Random, clock: Clock) -> FloatArray:
    """Open sessions: none at the start, and an equilibrium once the first ones have ended."""
    life = rng.uniform(0.01, 0.1)
    count = int(rng.integers(200, 3000))
    opened = poisson_times(rng, clock, count)
    ends = opened + np.maximum(rng.exponential(life * clock.t_s.size, count), 1).astype(np.int64)
    moves = np.bincount(opened, minlength=clock.t_s.size + 1).astype(np.float64)
    moves -= np.bincount(np.minimum(ends, clock.t_s.size), minlength=clock.t_s.size + 1)
    still: FloatArray = np.cumsum(moves)[: clock.t_s.size] / (count * life)
    return rng.uniform(0.01, 0.08) * still


def backlog(rng: Random, clock: Clock) -> FloatArray:
    """A queue that grows whenever arrivals exceed the service rate."""
    waits = np.empty(clock.t_s.size)
    now, served = 0.0, float(clock.requests.mean()) * rng.uniform(1.05, 1.6)
    for i, came in enumerate(clock.requests.tolist()):
        now = min(max(0.0, now + came - served), 60.0 * served)
        waits[i] = now
    return rng.uniform(0.002, 0.03) * waits / max(float(waits.max()), 1.0)


def decaying_pages(rng: Random, clock: Clock) -> FloatArray:
    """Freed pages that an allocator returns gradually after each burst."""
    keep = float(np.exp(-1.0 / (rng.uniform(0.003, 0.04) * clock.t_s.size)))
    fresh = np.zeros(clock.t_s.size)
    at = poisson_times(rng, clock, int(rng.integers(5, 80)))
    np.add.at(fresh, at, rng.gamma(2.0, size=at.size))
    out = np.empty(clock.t_s.size)
    now = 0.0
    for i, new in enumerate(fresh.tolist()):
        now = keep * now + new
        out[i] = now
    return rng.uniform(0.003, 0.03) * out / max(float(out.max()), 1.0)


def mapped_file(rng: Random, clock: Clock) -> FloatArray:
    """A file that is read once from start to end and stays in memory."""
    return rng.uniform(0.02, 0.4) * np.minimum(clock.done / rng.uniform(0.05, _FULL_BY), 1.0)


def model_swap(rng: Random, clock: Clock) -> FloatArray:
    """Weights replaced by others of similar size, with both held for some minutes."""
    out = np.zeros(clock.t_s.size)
    for at in rng.uniform(0.05, 0.9, int(rng.integers(1, 4))):
        start, length = int(at * clock.t_s.size), int(rng.uniform(0.003, 0.02) * clock.t_s.size)
        out[start : start + length] += 1.0
        out[start + length :] += rng.normal(0.0, 0.1)
    return rng.uniform(0.01, 0.1) * out


PARTS: Mapping[str, Part] = {
    "paced heap": paced_heap,
    "two generations": two_generations,
    "hash table": hash_table,
    "slab pool": slab_pool,
    "sessions": sessions,
    "backlog": backlog,
    "decaying pages": decaying_pages,
    "mapped file": mapped_file,
    "model swap": model_swap,
}
RANDOM = ("slab pool", "sessions", "backlog", "decaying pages")
