"""Labelled memory traces for comparing detectors, generated from a seed.

Independent of ``tests/unit/analysis/traces.py``, with other shapes, noise and sampling.  The
estimator was also improved on misses here: a fresh seed gives unseen traces but no unseen kinds,
so figures measured here are optimistic.  Sizes in MB, times in seconds, rates in MB/h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.corpus_noise import Noise, draw_noise, noise_at, record_noise
from hybridbench.analysis.record import FloatArray

Random = np.random.Generator
Shape = Callable[[Random, FloatArray], FloatArray]

# Every detector skips this share of a run without a ``steady`` event.
WARMUP = 0.1

_RESOLVABLE_Z = 8.0
_LEAST_RATE, _LEAST_SHARE = 1.0, 0.0004  # MB/h, and share of the base per hour
_CRAMER_RAO_POINTS = 120


@dataclass(frozen=True)
class LabelledTrace:
    """One series with its true growth."""

    kind: str
    base: float
    t_s: FloatArray
    value: FloatArray
    rate: float  # the leak's rate, 0 for a healthy process
    # Rate over the last quarter, including healthy growth; over the whole run for lumps and work.
    growing: float
    resolvable: bool  # whether the best possible estimator would see the leak at 8 standard errors
    work: FloatArray | None = None
    load: FloatArray | None = None


@dataclass(frozen=True)
class _Run:
    """The process and the run for which a shape is drawn."""

    base: float
    duration_s: float
    noise: Noise
    t_s: FloatArray

    @property
    def x(self) -> FloatArray:
        return self.t_s / self.duration_s

    @property
    def hours(self) -> float:
        return self.duration_s / 3600.0


def clean_trace(kind: str, seed: int) -> LabelledTrace:
    """Return a healthy process of ``kind``, one of ``CLEAN_KINDS``."""
    rng = np.random.default_rng([seed, 11, *kind.encode()])
    run = _draw_run(rng, kind)
    if kind in ("load known", "load ramps up"):
        load = _load(rng, run.x, ramp=kind == "load ramps up")
        value = run.base * (1.0 + rng.uniform(0.01, 0.08) * load / load.max())
        value = value + noise_at(rng, run.t_s, run.noise)
        return LabelledTrace(kind, run.base, run.t_s, value, 0, 0, False, _work(run, load), load)
    if kind in _PAGES:
        value = _in_pages(run.base + noise_at(rng, run.t_s, run.noise), _PAGES[kind])
        return LabelledTrace(kind, run.base, run.t_s, value, 0.0, 0.0, False)
    shape = CLEAN[kind](rng, run.x) * run.base
    value = run.base + shape + noise_at(rng, run.t_s, run.noise)
    growing = _last_quarter(run, shape) if kind in _SMOOTH else 0.0
    return LabelledTrace(kind, run.base, run.t_s, value, 0.0, growing, False)


def leaking_trace(kind: str, seed: int) -> LabelledTrace:
    """Return a process with a leak of ``kind`` (in ``LEAK_KINDS``), at 1 MB/h to 10 GB/h."""
    rng = np.random.default_rng([seed, 13, *kind.encode()])
    run = _draw_run(rng, kind)
    rate = float(np.exp(rng.uniform(0.0, np.log(10_000.0))))
    progress, work, load = _progress(kind, rng, run)
    beside = BESIDE[kind](rng, run.x) * run.base if kind in BESIDE else np.zeros_like(run.x)
    if kind == "garbage grows too":
        beside = beside * (1.0 + rate * run.hours / run.base * run.x)
    grown = rate * run.hours * progress
    value = run.base + grown + beside + noise_at(rng, run.t_s, run.noise)
    if kind in _PAGES:
        value = _in_pages(value, _PAGES[kind])
    growing = _last_quarter(run, grown if kind not in _SMOOTH else grown + beside)
    if kind in _LUMPY or work is not None:
        growing = _run_average(run, grown)
    error = _least_error(run, progress, beside)
    if kind in _LUMPY:
        # The lumps are random, so they add to the error of their own rate.
        lumps = np.diff(progress)[np.diff(progress) > 0]
        error = float(np.hypot(error, rate * run.hours * np.linalg.norm(lumps)))
    z = rate * run.hours / error
    matters = rate >= max(_LEAST_RATE, _LEAST_SHARE * run.base)
    return LabelledTrace(
        kind, run.base, run.t_s, value, rate, growing, z > _RESOLVABLE_Z and matters, work, load
    )


def _draw_run(rng: Random, kind: str) -> _Run:
    base = float(np.exp(rng.uniform(np.log(500.0), np.log(40_000.0))))
    duration_s = float(np.exp(rng.uniform(np.log(1.0), np.log(12.0)))) * 3600.0
    interval_s = float(rng.choice([1.0, 2.0, 5.0, 10.0, 15.0]))
    t = np.arange(0.0, duration_s, interval_s)
    t = np.maximum(t + rng.uniform(-0.2, 0.2, t.size) * interval_s, 0.0)
    keep = rng.random(t.size) > rng.choice([0.0, 0.005, 0.05])
    if kind in _WITH_HOLES:
        for start in rng.uniform(0.05, 0.85, int(rng.integers(1, 4))):
            length = rng.uniform(0.02, 0.12)
            keep &= (t < start * duration_s) | (t > (start + length) * duration_s)
    noise = draw_noise(rng, base, duration_s)
    if kind in _WANDERING:
        slow_sd, tau_s = base * rng.uniform(0.001, 0.006), duration_s * rng.uniform(0.02, 0.08)
        noise = replace(noise, slow_sd=slow_sd, slow_tau_s=tau_s)
    return _Run(base, duration_s, noise, t[keep])


def _load(rng: Random, x: FloatArray, *, ramp: bool) -> FloatArray:
    """Return the requests in flight, random around a level that ramps up or swings."""
    if ramp:
        level = 4.0 + 28.0 * np.minimum(1.0, x / rng.uniform(0.3, 0.9))
    else:
        level = 16.0 + 12.0 * np.sin(2 * np.pi * (x * rng.uniform(1.5, 6.0) + rng.uniform()))
    return rng.poisson(level).astype(np.float64)


def _work(run: _Run, load: FloatArray) -> FloatArray:
    return np.cumsum(load * np.diff(run.t_s, prepend=0.0))


def _in_pages(value: FloatArray, page: float) -> FloatArray:
    return np.ceil(value / page) * page


def _last_quarter(run: _Run, shape: FloatArray) -> float:
    return _growth(run, shape, WARMUP + 0.75 * (1.0 - WARMUP))


def _run_average(run: _Run, shape: FloatArray) -> float:
    return _growth(run, shape, WARMUP)


def _growth(run: _Run, shape: FloatArray, start: float) -> float:
    grown = np.interp([start, 1.0], run.x, shape)
    return float(grown[1] - grown[0]) / (1.0 - start) / run.hours


def _least_error(run: _Run, progress: FloatArray, beside: FloatArray) -> float:
    """Return the smallest possible standard error of the growth, given the other memory's shape.

    The points are too far apart to be correlated, so of the noise only its spectral density at zero
    is used.
    """
    at = np.linspace(0.0, 1.0, _CRAMER_RAO_POINTS)
    design = [np.ones_like(at), np.interp(at, run.x, progress)]
    if np.ptp(beside):
        design.append(np.interp(at, run.x, beside) / np.ptp(beside))
    columns = np.column_stack(design)
    variance = run.noise.density_at_zero * _CRAMER_RAO_POINTS / run.duration_s
    inverse = np.linalg.pinv(columns.T @ columns)
    return float(np.sqrt(variance * inverse[1, 1]))


def _progress(
    kind: str, rng: Random, run: _Run
) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
    """Return the leak's progress from 0 to 1, and the work and load that drive it."""
    x = run.x
    if kind in ("per request, swinging", "per request, bursts"):
        load = _load(rng, x, ramp=False)
        if kind == "per request, bursts":
            load = load * (np.mod(x * rng.uniform(5.0, 30.0), 1.0) < rng.uniform(0.3, 0.8)) + 0.2
        work = _work(run, load)
        return (work - work[0]) / (work[-1] - work[0]), work, load
    if kind == "sets in late":
        return np.maximum(0.0, x - rng.uniform(0.15, 0.55)), None, None
    if kind == "ever faster":
        power = rng.uniform(1.2, 1.8)
        return x**power / power, None, None
    if kind in _LUMPY:
        count = int(rng.integers(70, 200))
        sizes = rng.pareto(3.0, count) + 0.5 if kind == "odd lumps" else np.ones(count)
        at = np.sort(rng.uniform(0.0, 1.0, count))
        lumps = np.concatenate([[0.0], np.cumsum(sizes)]) / sizes.sum()
        return lumps[np.searchsorted(at, x)], None, None
    return x, None, None


# Shapes of healthy memory, as a share of the base, for x from 0 to 1.


def two_processes(rng: Random, x: FloatArray) -> FloatArray:
    """A second program in the same container."""
    return 0.003 * record_noise(rng, x, rng.uniform(0.002, 0.02))


def capped_power(rng: Random, x: FloatArray) -> FloatArray:
    """A fill by a power of time (a root, or slightly faster) that ends when the cache is full."""
    full = rng.uniform(0.1, 0.45)
    return rng.uniform(0.05, 0.6) * np.minimum(x / full, 1.0) ** rng.uniform(0.4, 1.3)


def gompertz(rng: Random, x: FloatArray) -> FloatArray:
    """A fill that starts slowly and ends even more slowly."""
    start = rng.uniform(3.0, 8.0)
    return rng.uniform(0.05, 0.4) * np.exp(-start * np.exp(-x / rng.uniform(0.03, 0.1)))


def stretched(rng: Random, x: FloatArray) -> FloatArray:
    """Fragmentation that settles more and more slowly."""
    return rng.uniform(0.01, 0.2) * (
        1.0 - np.exp(-((x / rng.uniform(0.01, 0.08)) ** rng.uniform(0.5, 0.8)))
    )


def hyperbolic(rng: Random, x: FloatArray) -> FloatArray:
    """The distinct items seen so far, out of a limited number."""
    return rng.uniform(0.01, 0.15) * x / (x + rng.uniform(0.01, 0.1))


def random_cache(rng: Random, x: FloatArray) -> FloatArray:
    """Entries of random size, added until the cache is full, then replaced."""
    size = rng.lognormal(0.0, 1.0, x.size)
    filled = np.cumsum(size) / size.sum()
    full = rng.uniform(0.1, 0.4)
    churn = 0.004 * record_noise(rng, x, 0.01) * (filled >= full)
    held: FloatArray = np.minimum(filled, full) + churn
    return rng.uniform(0.1, 0.6) * held


def collections(rng: Random, x: FloatArray) -> FloatArray:
    """Garbage collected at irregular times."""
    ends = np.cumsum(rng.gamma(8.0, 1.0, 400)) / 8.0 / rng.uniform(8.0, 120.0)
    edges = np.concatenate([[0.0], ends])
    at = np.searchsorted(edges, x, side="right") - 1
    phase: FloatArray = (x - edges[at]) / float(np.mean(np.diff(edges)))
    return rng.uniform(0.01, 0.12) * phase


def generations(rng: Random, x: FloatArray) -> FloatArray:
    """A small sawtooth on a large one."""
    slow, fast = rng.uniform(5.0, 14.0), rng.uniform(60.0, 200.0)
    large = np.mod(x * slow + rng.uniform(), 1.0)
    return rng.uniform(0.02, 0.1) * large + rng.uniform(0.002, 0.01) * np.mod(x * fast, 1.0)


def retained_bursts(rng: Random, x: FloatArray) -> FloatArray:
    """Bursts whose high-water mark the allocator keeps: each raises it only by the excess."""
    out = np.zeros_like(x)
    for start in rng.uniform(0.0, 0.7, int(rng.integers(3, 10))):
        out = np.maximum(out, rng.beta(2.0, 2.0) * (x > start))
    return rng.uniform(0.01, 0.15) * out


def maintenance(rng: Random, x: FloatArray) -> FloatArray:
    """Jobs at fixed times that allocate memory and free it within minutes."""
    since = np.mod(x * rng.uniform(3.0, 24.0) + rng.uniform(), 1.0)
    return rng.uniform(0.01, 0.1) * np.exp(-since / rng.uniform(0.02, 0.15))


def compilations(rng: Random, x: FloatArray) -> FloatArray:
    """A step for each newly compiled shape; new shapes become rarer."""
    out = np.zeros_like(x)
    for at in np.exp(rng.uniform(np.log(1e-3), np.log(0.8), int(rng.integers(6, 25)))):
        out += rng.uniform(0.001, 0.01) * (x > at)
    return out


def spell(rng: Random, x: FloatArray) -> FloatArray:
    """Linear growth for a while, which ends well before the run does."""
    start, length = rng.uniform(0.05, 0.25), rng.uniform(0.1, 0.3)
    return rng.uniform(0.02, 0.3) * np.clip((x - start) / length, 0.0, 1.0)


def restarts(rng: Random, x: FloatArray) -> FloatArray:
    """A helper thread that dies, restarts, and refills its buffers."""
    out = np.ones_like(x)
    for at in rng.uniform(0.1, 0.7, int(rng.integers(1, 4))):
        out -= np.exp(-np.maximum(x - at, 0.0) / rng.uniform(0.01, 0.06)) * (x > at)
    return rng.uniform(0.01, 0.1) * out


def swings(rng: Random, x: FloatArray) -> FloatArray:
    """Unrecorded load."""
    return rng.uniform(0.005, 0.05) * np.sin(2 * np.pi * (x * rng.uniform(2, 9) + rng.uniform()))


def outliers(rng: Random, x: FloatArray) -> FloatArray:
    """Single outlying samples."""
    return 0.002 * np.clip(rng.standard_t(3.0, x.size), -60, 60)


def release(rng: Random, x: FloatArray) -> FloatArray:
    """Something large is unloaded."""
    size = rng.uniform(0.01, 0.2)
    return np.where(x > rng.uniform(0.1, 0.9), -size, 0.0)


def nothing(rng: Random, x: FloatArray) -> FloatArray:
    """Only noise."""
    return np.zeros_like(x)


CLEAN: Mapping[str, Shape] = {
    "flat": nothing,
    "slow wander": nothing,
    "missing stretches": nothing,
    "two processes": two_processes,
    "capped power fill": capped_power,
    "gompertz fill": gompertz,
    "stretched settling": stretched,
    "hyperbolic settling": hyperbolic,
    "random cache": random_cache,
    "collections": collections,
    "generations": generations,
    "retained bursts": retained_bursts,
    "maintenance": maintenance,
    "compilations": compilations,
    "spell of growth": spell,
    "restarts": restarts,
    "swings": swings,
    "outliers": outliers,
    "release": release,
}
_PAGES = {"small pages": 4096e-6, "huge pages": 2.097152, "huge pages, growing": 2.097152}
CLEAN_KINDS = (*CLEAN, "load known", "load ramps up", "small pages", "huge pages")

# Healthy shapes that accompany a leak.
BESIDE: Mapping[str, Shape] = {
    "under collections": collections,
    "garbage grows too": collections,
    "under generations": generations,
    "with a capped fill": capped_power,
    "with settling": stretched,
    "with outliers": outliers,
    "with compilations": compilations,
    "with restarts": restarts,
    "with maintenance": maintenance,
}
_WITH_HOLES = ("missing stretches", "with missing stretches")
_WANDERING = ("slow wander", "with wander")
_LUMPY = ("even lumps", "odd lumps")
LEAK_KINDS = (
    "linear", "with missing stretches", "per request, swinging", "per request, bursts",
    "sets in late", "ever faster", "with wander", "huge pages, growing", *_LUMPY, *BESIDE,
)  # fmt: skip
# Noise-free shapes that still grow in the last quarter.
_SMOOTH = ("gompertz fill", "stretched settling", "hyperbolic settling", "with settling")
