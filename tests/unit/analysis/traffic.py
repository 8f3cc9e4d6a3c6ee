"""Sampled counters of an engine under load: bursty, delayed, and all correlated."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.facts.counters import EventCounters
from hybridbench.analysis.record import FloatArray, Series

Counts: TypeAlias = NDArray[np.int64]


def traffic(seed: int, t: FloatArray, requests_per_s: float = 10.0) -> dict[str, FloatArray]:
    """Return cumulative counts at the times ``t``, all driven by the same uneven load."""
    rng = np.random.default_rng(seed)
    dt = np.diff(t, prepend=t[0] - 1.0)
    load = np.exp(0.35 * np.sin(t / 60.0 + rng.uniform(0, 6)) + 0.2 * rng.normal(size=t.size))
    load *= np.where(rng.random(t.size) < 0.08, 2.5, 1.0)
    submitted = rng.poisson(requests_per_s * load * dt)
    rejected = rng.binomial(submitted, 0.06)
    queued = submitted - rejected
    admitted = _served(queued, 1.15 * requests_per_s * dt)
    waiting = np.cumsum(queued - admitted)
    finished = _later(rng, admitted, 3.0)
    aborted = rng.binomial(finished, 0.05)
    refused = rng.poisson(np.minimum(waiting, 12) * 0.25)
    leaves = rng.poisson(1.3 * finished)
    splits = rng.poisson(0.25 * admitted)
    # Busy steps take longer, so a busy second has fewer of them.
    steps = rng.poisson(60.0 * dt / (1.0 + 0.03 * admitted))
    retracts = rng.binomial(refused, 0.15)
    counts = {
        "requests_submitted": submitted,
        "requests_rejected": rejected,
        "admissions": admitted + retracts,
        "refusals": refused,
        "prefix_hits": rng.binomial(admitted, 0.8),
        "prompt_tokens": rng.poisson(40.0 * admitted),
        "cow_copies": rng.binomial(admitted + refused, 0.8),
        "node_splits": splits,
        "tombstones": splits,
        "evict_leaf": leaves,
        "nodes_evicted": leaves + rng.binomial(leaves, 0.05),
        "retracts": retracts,
        "abort_decode": aborted,
        "disconnects": rng.binomial(submitted, 0.03),
        "finishes": finished - aborted,
        "output_tokens": rng.poisson(16.0 * finished),
        "steps": steps,
        "decode_steps": rng.binomial(steps, 0.8),
        "idle_steps": np.zeros_like(steps),
    }
    return {name: np.cumsum(c).astype(np.float64) for name, c in counts.items()}


def as_counters(t: FloatArray, counts: dict[str, FloatArray]) -> EventCounters:
    return EventCounters({n: Series(f"events.{n}", t, c) for n, c in sorted(counts.items())})


def _served(queued: Counts, room: FloatArray) -> Counts:
    """Return what is admitted from a queue with limited room."""
    waiting, out = 0.0, []
    for came, most in zip(queued.tolist(), np.floor(room).tolist(), strict=True):
        waiting += came
        out.append(min(waiting, most))
        waiting -= out[-1]
    return np.array(out, dtype=np.int64)


def _later(rng: np.random.Generator, counts: Counts, mean: float) -> Counts:
    """Return each of the counts delayed by some samples."""
    when = np.repeat(np.arange(counts.size), counts)
    when = when + rng.exponential(mean, when.size).astype(np.int64)
    return np.bincount(when, minlength=counts.size)[: counts.size].astype(np.int64)
