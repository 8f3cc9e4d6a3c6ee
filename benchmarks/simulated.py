"""Labelled memory of simulated processes: mechanisms driven by arrivals, not curves over time.

The third trace generator, besides ``benchmarks/corpus.py`` and that of the tests.  Nothing is drawn
as a curve: a clock of requests drives parts (``benchmarks/simulated_parts.py``) that allocate and
free memory, and a leak loses bytes per event.  Each kind is a pair of mechanisms; half of the pairs
are held out, and the analysis is developed on the others.
Sizes in MB, times in seconds, rates in MB/h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from benchmarks.corpus import WARMUP, LabelledTrace
from benchmarks.corpus_noise import record_noise
from benchmarks.simulated_parts import PARTS, RANDOM, Clock, Random, arrivals, poisson_times
from hybridbench.analysis.record import FloatArray

TICKS = 3000
RESOLVABLE_Z = 8.0
_LEAST_RATE, _LEAST_SHARE = 1.0, 0.0004  # MB/h, and share of the base per hour
_POINTS = 120
_STRETCHES = 16
_PAGES = (4096e-6, 4096e-6, 4096e-6, 2.097152)

LeakEvents = Callable[[Random, Clock], FloatArray]


def per_request(rng: Random, clock: Clock) -> FloatArray:
    """A few bytes for each request."""
    return np.cumsum(clock.requests)


def per_abort(rng: Random, clock: Clock) -> FloatArray:
    """Bytes for one request in a hundred or a thousand."""
    return np.cumsum(rng.binomial(clock.requests.astype(np.int64), rng.uniform(0.001, 0.01)))


def per_session(rng: Random, clock: Clock) -> FloatArray:
    """Large pieces of varied size, lost when long sessions end: 60 to 300 per run."""
    ends = poisson_times(rng, clock, int(rng.integers(60, 300)))
    sizes = rng.gamma(rng.uniform(1.0, 6.0), size=ends.size)
    lost: FloatArray = np.bincount(ends, weights=sizes, minlength=clock.t_s.size).cumsum()
    return lost


def by_timer(rng: Random, clock: Clock) -> FloatArray:
    """A housekeeping thread that leaks at a constant rate, independent of traffic."""
    return clock.t_s.copy()


def after_change(rng: Random, clock: Clock) -> FloatArray:
    """Bytes per request, after a feature is switched on in the first half of the run."""
    on = clock.t_s > rng.uniform(0.1, 0.5) * clock.duration_s
    return np.cumsum(clock.requests * on)


def per_entry(rng: Random, clock: Clock) -> FloatArray:
    """Bytes per entry of a growing list on each walk, so the leak accelerates."""
    done = np.cumsum(clock.requests)
    share = done / done[-1]
    curve = rng.uniform(0.3, 0.7)
    faster: FloatArray = (1.0 - curve) * share + curve * share**2
    return faster


LEAKS: Mapping[str, LeakEvents] = {
    "per request": per_request,
    "per abort": per_abort,
    "per session": per_session,
    "by timer": by_timer,
    "after change": after_change,
    "per entry": per_entry,
}

_BY_CHANCE = ("per abort", "per session")

_PAIRS = list(product(enumerate(LEAKS), enumerate(PARTS)))
_BESIDE = list(product(enumerate(PARTS), enumerate(PARTS)))
# Pairs for developing the analysis, and held-out pairs.
LEAK_KINDS = tuple(f"{a}, {b}" for (i, a), (j, b) in _PAIRS if (i + j) % 2 == 0)
HELD_OUT_LEAK_KINDS = tuple(f"{a}, {b}" for (i, a), (j, b) in _PAIRS if (i + j) % 2 == 1)
CLEAN_KINDS = tuple(f"{a}, {b}" for (i, a), (j, b) in _BESIDE if i <= j and (i + j) % 2 == 0)
HELD_OUT_CLEAN_KINDS = tuple(
    f"{a}, {b}" for (i, a), (j, b) in _BESIDE if i < j and (i + j) % 2 == 1
)


def clean_trace(kind: str, seed: int) -> LabelledTrace:
    """Return a healthy process with the two parts in ``kind``, or one part if both are the same."""
    rng = np.random.default_rng([seed, 17, *kind.encode()])
    names = kind.split(", ")
    return _trace(rng, kind, list(dict.fromkeys(names)), None)


def leaking_trace(kind: str, seed: int) -> LabelledTrace:
    """Return a process with the leak and the part in ``kind``, losing 1 MB/h to 10 GB/h."""
    rng = np.random.default_rng([seed, 19, *kind.encode()])
    leak, part = kind.split(", ")
    return _trace(rng, kind, [part], leak)


def _trace(rng: Random, kind: str, parts: list[str], leak: str | None) -> LabelledTrace:
    base = float(np.exp(rng.uniform(np.log(400.0), np.log(24_000.0))))
    hours = float(rng.uniform(1.0, 9.0))
    clock = arrivals(rng, hours * 3600.0, TICKS)
    held = [PARTS[name](rng, clock) * base for name in parts]
    rate, lost, lumps = 0.0, np.zeros(TICKS), 0.0
    if leak is not None:
        rate = float(np.exp(rng.uniform(0.0, np.log(10_000.0))))
        events = LEAKS[leak](rng, clock)
        lost = rate * hours * (events - events[0]) / (events[-1] - events[0])
        if leak == "per session":
            lumps = float(np.linalg.norm(np.diff(lost)))
    t, interval_s = _sample_times(rng, clock.duration_s)
    sd = base * float(np.exp(rng.uniform(np.log(0.0003), np.log(0.004))))
    tau_s = float(np.exp(rng.uniform(np.log(interval_s), np.log(200.0))))
    noise = sd * record_noise(rng, t, tau_s, heavy=bool(rng.random() < 0.2))
    page = float(rng.choice(_PAGES))
    smooth = lost + sum(held)
    value = np.ceil((base + np.interp(t, clock.t_s, smooth) + noise) / page) * page
    resolvable = False
    if leak is not None:
        density = 2.0 * tau_s * sd * sd
        # A random part cannot be predicted, so it counts as noise when the leak is estimated.
        chance = [h for name, h in zip(parts, held, strict=True) if _by_chance(name, clock)]
        density += sum(density_at_zero(clock, part) for part in chance)
        known = [h for name, h in zip(parts, held, strict=True) if not _by_chance(name, clock)]
        error = float(np.hypot(lumps, least_error(clock, lost, known, density)))
        resolvable = matters(rate, base) and judged(clock, lost) > RESOLVABLE_Z * error
    work, load = traffic(clock, t)
    growing = going_rate(clock, lost, by_time=leak == "by timer")
    if leak in _BY_CHANCE:
        # For random events, use the rate over the whole window, not over its last quarter.
        growing = mean_rate(clock, lost)
    if "unloading" in parts:
        growing += going_rate(clock, held[parts.index("unloading")], by_time=True)
    return LabelledTrace(kind, base, t, value, rate, growing, resolvable, work, load)


def traffic(clock: Clock, t: FloatArray) -> tuple[FloatArray | None, FloatArray | None]:
    """Requests done and in flight at ``t``, if the sampler records them."""
    if not clock.told:
        return None, None
    work = np.interp(t, clock.t_s, np.cumsum(clock.requests))
    return work, np.round(np.interp(t, clock.t_s, clock.in_flight))


def matters(rate: float, base: float) -> bool:
    """Whether a leak of ``rate`` MB/h is worth finding in a process of ``base`` MB."""
    return rate >= max(_LEAST_RATE, _LEAST_SHARE * base)


def judged(clock: Clock, lost: FloatArray) -> float:
    """MB lost in the judged window."""
    return float(lost[-1] - np.interp(WARMUP * clock.duration_s, clock.t_s, lost))


def _by_chance(part: str, clock: Clock) -> bool:
    return part in RANDOM or (part == "load memory" and not clock.told)


def density_at_zero(clock: Clock, part: FloatArray) -> float:
    """Estimate a random part's spectral density at zero, in MB^2 s, from means of sub-windows."""
    late = part[clock.t_s >= WARMUP * clock.duration_s]
    means = np.array([stretch.mean() for stretch in np.array_split(late, _STRETCHES)])
    at = np.arange(_STRETCHES) - 0.5 * (_STRETCHES - 1)
    slope = float(at @ means) / float(at @ at)
    left = means - means.mean() - slope * at
    length_s = clock.duration_s * (1.0 - WARMUP) / _STRETCHES
    return float(left @ left) / (_STRETCHES - 2) * length_s


def going_rate(clock: Clock, lost: FloatArray, *, by_time: bool) -> float:
    """Return the rate in MB/h over the last quarter of the judged window.

    With ``by_time`` the quarter is measured in time, otherwise in requests; their mean rate then
    converts the loss per request to MB/h.
    """
    x = clock.t_s / clock.duration_s
    done = x if by_time else clock.done
    start = x[0] + WARMUP if by_time else float(np.interp(WARMUP, x, done))
    at = np.interp([start + 0.75 * (1.0 - start), 1.0], done, lost)
    hours = (1.0 - WARMUP) * clock.duration_s / 3600.0
    return float(at[1] - at[0]) / 0.25 / hours


def mean_rate(clock: Clock, lost: FloatArray) -> float:
    """MB/h over the judged window."""
    return judged(clock, lost) / ((1.0 - WARMUP) * clock.duration_s / 3600.0)


def _sample_times(rng: Random, duration_s: float) -> tuple[FloatArray, float]:
    """Times and interval of a sampler that is often late, and sometimes by minutes."""
    interval_s = float(rng.choice([1.0, 2.0, 5.0, 10.0, 20.0, 30.0]))
    gaps = interval_s * (1.0 + rng.exponential(rng.choice([0.0, 0.05, 0.3]), int(1e5)))
    late = rng.random(gaps.size) < rng.choice([0.0, 0.002]) * interval_s / 30.0
    gaps[late] += rng.uniform(30.0, 600.0, int(late.sum()))
    t = np.cumsum(gaps)
    return t[t < duration_s], interval_s


def least_error(clock: Clock, lost: FloatArray, held: list[FloatArray], density: float) -> float:
    """Return the smallest standard error of the total loss in the judged window, in MB.

    It is that of an estimator to which the shapes of the leak and of each part are known, but not
    their sizes.
    """
    at = np.linspace(WARMUP, 1.0, _POINTS) * clock.duration_s
    rows = [np.interp(at, clock.t_s, column) for column in (lost, *held)]
    columns = [np.ones(_POINTS)]
    columns += [row / np.ptp(row) for row in rows if np.ptp(row) > 0]
    design = np.column_stack(columns)
    variance = density * _POINTS / (clock.duration_s * (1.0 - WARMUP))
    inverse = np.linalg.pinv(design.T @ design)
    return float(np.sqrt(variance * inverse[1, 1]))
