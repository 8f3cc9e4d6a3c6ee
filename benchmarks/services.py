"""Labelled memory of simulated services: a held-out set to evaluate the analysis, not to tune it.

The fourth trace generator, with its own parts (``services_parts``), leaks, noise colours and
sampler faults.  If the analysis is ever changed because of misses here, a new held-out generator is
needed.
Sizes in MB, times in seconds, rates in MB/h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise, product

import numpy as np

from benchmarks.corpus import LabelledTrace
from benchmarks.corpus_noise import record_noise
from benchmarks.services_parts import PARTS, RANDOM
from benchmarks.simulated import (
    RESOLVABLE_Z,
    TICKS,
    LeakEvents,
    density_at_zero,
    going_rate,
    judged,
    least_error,
    matters,
    mean_rate,
    traffic,
)
from benchmarks.simulated_parts import Clock, Random, arrivals, poisson_times
from hybridbench.analysis.record import FloatArray

_PAGES = (4096e-6, 65536e-6, 2.097152)
_OCTAVES = 5


def per_connection(rng: Random, clock: Clock) -> FloatArray:
    """A buffer for each of hundreds or thousands of connections."""
    ends = poisson_times(rng, clock, int(rng.integers(300, 5000)))
    return np.bincount(ends, minlength=clock.t_s.size).cumsum().astype(np.float64)


def per_error(rng: Random, clock: Clock) -> FloatArray:
    """Bytes for each error; errors are clustered."""
    spell, spells = False, np.empty(clock.t_s.size)
    for i, draw in enumerate(rng.random(clock.t_s.size).tolist()):
        spell = draw > 0.04 if spell else draw < 0.02
        spells[i] = 1.0 if spell else 0.1
    return np.cumsum(clock.requests * spells)


def by_cron(rng: Random, clock: Clock) -> FloatArray:
    """A job at fixed times that never frees what it loaded."""
    jobs = int(rng.integers(40, 200))
    return np.floor(clock.t_s / clock.duration_s * jobs)


def in_slabs(rng: Random, clock: Clock) -> FloatArray:
    """Bytes per request, visible only when a slab of a fixed size is full."""
    return np.floor(clock.done * rng.integers(30, 300))


def after_release(rng: Random, clock: Clock) -> FloatArray:
    """Linear in time, after a job starts in the first third of the run."""
    x = clock.t_s / clock.duration_s
    return np.maximum(0.0, x - rng.uniform(0.0, 0.35))


LEAKS: Mapping[str, LeakEvents] = {
    "per connection": per_connection,
    "per error": per_error,
    "by cron": by_cron,
    "in slabs": in_slabs,
    "after release": after_release,
}
_BY_TIME = ("by cron", "after release")
_BY_CHANCE = ("per connection", "per error")

LEAK_KINDS = tuple(f"{leak}, {part}" for leak, part in product(LEAKS, PARTS))
CLEAN_KINDS = tuple(f"{a}, {b}" for a, b in product(PARTS, PARTS) if a <= b)


def clean_trace(kind: str, seed: int) -> LabelledTrace:
    """Return a healthy service with the two parts in ``kind``, or one part if both are the same."""
    rng = np.random.default_rng([seed, 23, *kind.encode()])
    return _trace(rng, kind, list(dict.fromkeys(kind.split(", "))), None)


def leaking_trace(kind: str, seed: int) -> LabelledTrace:
    """Return a service with the leak and the part in ``kind``, losing 1 MB/h to 5 GB/h."""
    rng = np.random.default_rng([seed, 29, *kind.encode()])
    leak, part = kind.split(", ")
    return _trace(rng, kind, [part], leak)


def _trace(rng: Random, kind: str, parts: list[str], leak: str | None) -> LabelledTrace:
    base = float(np.exp(rng.uniform(np.log(300.0), np.log(30_000.0))))
    hours = float(np.exp(rng.uniform(np.log(1.0), np.log(12.0))))
    clock = arrivals(rng, hours * 3600.0, TICKS)
    held = [PARTS[name](rng, clock) * base for name in parts]
    rate, lost, chance = 0.0, np.zeros(TICKS), 0.0
    if leak is not None:
        rate = float(np.exp(rng.uniform(0.0, np.log(5_000.0))))
        events = LEAKS[leak](rng, clock)
        lost = rate * hours * (events - events[0]) / (events[-1] - events[0])
        chance = _chance(clock, lost) if leak in _BY_CHANCE else 0.0
    t = _sample_times(rng, clock.duration_s)
    noise, density = _noise(rng, t, base, clock)
    page = float(rng.choice(_PAGES))
    value = np.interp(t, clock.t_s, base + lost + sum(held)) + noise
    value = np.ceil(value / page) * page
    density += sum(
        density_at_zero(clock, part)
        for name, part in zip(parts, held, strict=True)
        if name in RANDOM
    )
    known = [part for name, part in zip(parts, held, strict=True) if name not in RANDOM]
    resolvable = False
    if leak is not None:
        error = float(np.hypot(chance, least_error(clock, lost, known, density)))
        resolvable = matters(rate, base) and judged(clock, lost) > RESOLVABLE_Z * error
    work, load = traffic(clock, t)
    growing = going_rate(clock, lost, by_time=leak in _BY_TIME)
    if leak in _BY_CHANCE:
        growing = mean_rate(clock, lost)
    return LabelledTrace(kind, base, t, value, rate, growing, resolvable, work, load)


def _chance(clock: Clock, lost: FloatArray) -> float:
    """Estimate the total loss's standard deviation from the losses of equal shares of requests."""
    each = np.diff(np.interp(np.linspace(0.0, 1.0, 41), clock.done, lost))
    return float(np.std(each, ddof=1) * np.sqrt(each.size))


def _noise(rng: Random, t: FloatArray, base: float, clock: Clock) -> tuple[FloatArray, float]:
    """Noise of one of four colours, and its density at frequency zero in MB^2 s."""
    sd = base * float(np.exp(rng.uniform(np.log(0.0002), np.log(0.003))))
    tau_s = float(np.exp(rng.uniform(np.log(2.0), np.log(90.0))))
    colour: Callable[..., tuple[FloatArray, float]] = _COLOURS[int(rng.integers(len(_COLOURS)))]
    return colour(rng, t, sd, tau_s, clock)


def _pink(
    rng: Random, t: FloatArray, sd: float, tau_s: float, clock: Clock
) -> tuple[FloatArray, float]:
    """Pink noise: equal power per octave, from seconds to a fiftieth of the run."""
    longest = max(clock.duration_s / 50.0, 4.0)
    taus = np.exp(np.linspace(np.log(2.0), np.log(longest), _OCTAVES))
    each = sd / np.sqrt(_OCTAVES)
    noise: FloatArray = each * np.sum([record_noise(rng, t, tau) for tau in taus.tolist()], axis=0)
    return noise, float(np.sum(2.0 * taus * each**2))


def _telegraph(
    rng: Random, t: FloatArray, sd: float, tau_s: float, clock: Clock
) -> tuple[FloatArray, float]:
    """Random telegraph noise: a buffer that is allocated and freed at random."""
    gaps = np.diff(t, prepend=t[0])
    flips = rng.random(t.size) < 0.5 * (1.0 - np.exp(-gaps / tau_s))
    side = np.where(np.cumsum(flips) % 2 == 0, 1.0, -1.0)
    noise: FloatArray = sd * side + 0.1 * sd * rng.normal(size=t.size)
    return noise, 2.0 * tau_s * sd * sd


def _as_busy(
    rng: Random, t: FloatArray, sd: float, tau_s: float, clock: Clock
) -> tuple[FloatArray, float]:
    """Noise that grows with traffic."""
    level = np.interp(t, clock.t_s, clock.requests / max(float(clock.requests.mean()), 1e-9))
    noise: FloatArray = sd * np.sqrt(level + 0.1) * record_noise(rng, t, tau_s)
    return noise, 2.2 * tau_s * sd * sd


def _one_sided(
    rng: Random, t: FloatArray, sd: float, tau_s: float, clock: Clock
) -> tuple[FloatArray, float]:
    """One-sided noise: buffers on top of a floor."""
    noise: FloatArray = sd * np.abs(record_noise(rng, t, tau_s, heavy=True))
    return noise, 2.0 * tau_s * sd * sd


_COLOURS = (_pink, _telegraph, _as_busy, _one_sided)


def _sample_times(rng: Random, duration_s: float) -> FloatArray:
    """Sample times of a sampler that restarts up to twice with another interval, with gaps."""
    edges = np.sort(rng.uniform(0.0, duration_s, int(rng.integers(0, 3))))
    edges = np.concatenate([[0.0], edges, [duration_s]])
    parts = []
    for start, end in pairwise(edges.tolist()):
        interval_s = float(rng.choice([2.0, 5.0, 10.0, 15.0]))
        blind = float(rng.choice([0.0, 0.0, rng.uniform(20.0, 900.0)]))
        parts.append(np.arange(start + min(blind, 0.3 * (end - start)), end, interval_s))
    t = np.concatenate(parts)
    kept: FloatArray = t[rng.random(t.size) > rng.choice([0.0, 0.02, 0.1])]
    return kept
