"""Labelled traces of the memory of healthy and of leaking processes, generated from a seed.

Sizes in MB, rates in MB/h.  ``LONG`` traces are runs of hours, including their warm-up, sampled
every five seconds; ``STEADY`` traces are the part after the ``steady`` event of runs of minutes,
sampled every second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hybridbench.analysis.record import FloatArray

Random = np.random.Generator


@dataclass(frozen=True)
class Setting:
    """The process and the run for which a shape is drawn."""

    duration_s: float
    interval_s: float
    base: float
    noise_sd: float
    noise_tau_s: float


@dataclass(frozen=True)
class Trace:
    """One series with its truth; ``rate`` is its permanent growth in MB/h."""

    kind: str
    setting: Setting
    t_s: FloatArray
    value: FloatArray
    rate: float
    last_rate: float  # growth over the last quarter without noise, also of a healthy tail
    work: FloatArray | None = None
    load: FloatArray | None = None
    warm: bool = False  # a leak with a warm-up before it needs more data

    @property
    def resolvable(self) -> bool:
        """Whether the leak matters and the best estimator would see it at 8 standard errors."""
        s = self.setting
        se = s.noise_sd * np.sqrt(24 * s.noise_tau_s / s.duration_s**3) * 3600
        needed = 24 if self.warm else 8
        hours = s.duration_s / 3600
        matters = max(1.0, 0.0004 * s.base, 1.5 * allowance(s.duration_s, s.base) / hours)
        return self.rate > needed * se and self.rate >= matters


def allowance(duration_s: float, base: float) -> float:
    """Return the growth, in MB, that a settling allocator may cause in a window."""
    return max(8.0, 0.01 * base) * min(1.0, (2700 / duration_s) ** 2)


def long_setting(rng: Random) -> Setting:
    base = float(np.exp(rng.uniform(np.log(500), np.log(20_000))))
    sd = base * float(np.exp(rng.uniform(np.log(0.0003), np.log(0.004))))
    tau = float(np.exp(rng.uniform(np.log(5), np.log(200))))
    return Setting(float(rng.uniform(1, 8)) * 3600, 5.0, base, sd, tau)


def steady_setting(rng: Random) -> Setting:
    base = float(np.exp(rng.uniform(np.log(400), np.log(4_000))))
    sd = base * float(np.exp(rng.uniform(np.log(0.0002), np.log(0.002))))
    tau = float(np.exp(rng.uniform(np.log(1.5), np.log(20))))
    return Setting(float(rng.uniform(60, 600)), 1.0, base, sd, tau)


def noise(rng: Random, t_s: FloatArray, setting: Setting) -> FloatArray:
    """AR(1) noise at the setting's times."""
    return ar1(rng, t_s, setting.noise_sd, setting.noise_tau_s)


def ar1(rng: Random, t_s: FloatArray, sd: float, tau_s: float) -> FloatArray:
    phi = np.exp(-np.diff(t_s, prepend=t_s[0] - 1) / tau_s)
    fresh = rng.normal(size=t_s.size) * np.sqrt(1 - phi**2)
    out = np.empty(t_s.size)
    state = float(rng.normal())
    for i, (p, e) in enumerate(zip(phi.tolist(), fresh.tolist(), strict=True)):
        state = p * state + e
        out[i] = state
    return sd * out


def times(rng: Random, setting: Setting) -> FloatArray:
    """Sample times with jitter and 1% dropped."""
    count = int(setting.duration_s / setting.interval_s)
    t = (np.arange(count) + rng.uniform(-0.1, 0.1, count)) * setting.interval_s
    kept: FloatArray = t[rng.random(count) > 0.01]
    return kept


def share(t_s: FloatArray) -> FloatArray:
    x: FloatArray = (t_s - t_s[0]) / (t_s[-1] - t_s[0])
    return x


def tooth(phase: FloatArray) -> FloatArray:
    return phase - np.floor(phase)


# Shapes of healthy processes: each gets (rng, x in [0, 1], t, setting) and returns MB above the
# base.
Shape = Callable[[Random, FloatArray, FloatArray, Setting], FloatArray]


def flat(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return np.zeros_like(x)


def ramp_fill(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return s.base * rng.uniform(0.05, 0.6) * np.minimum(x / rng.uniform(0.05, 0.5), 1)


def saturating(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return s.base * rng.uniform(0.02, 0.5) * (1 - np.exp(-x / rng.uniform(0.03, 0.35)))


def two_speeds(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    fast = 1 - np.exp(-x / rng.uniform(0.01, 0.05))
    slow = 1 - np.exp(-x / rng.uniform(0.1, 0.3))
    return s.base * (rng.uniform(0.05, 0.3) * fast + rng.uniform(0.02, 0.15) * slow)


def logistic(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return (
        s.base
        * rng.uniform(0.05, 0.4)
        / (1 + np.exp(-(x - rng.uniform(0.1, 0.3)) / rng.uniform(0.02, 0.06)))
    )


def short_teeth(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return s.base * rng.uniform(0.005, 0.05) * tooth(x * rng.uniform(90, 300) + rng.uniform())


def long_teeth(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return s.base * rng.uniform(0.02, 0.3) * tooth(x * rng.uniform(3.5, 12) + rng.uniform())


def uneven_teeth(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    periods = np.cumsum(rng.uniform(0.6, 1.4, 60))
    phase = np.interp(x * rng.uniform(6, 40), np.concatenate([[0.0], periods]), np.arange(61.0))
    return s.base * rng.uniform(0.02, 0.15) * tooth(phase + rng.uniform())


def steps(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    out = np.zeros_like(x)
    for _ in range(int(rng.integers(1, 4))):
        out += s.base * rng.uniform(0.01, 0.1) * (x > rng.uniform(0.05, 0.9))
    return out


def late_step(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    after = (x > rng.uniform(0.75, 0.97)).astype(np.float64)
    return s.base * rng.uniform(0.01, 0.2) * after


def heavy_tail(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return s.noise_sd * rng.standard_t(2.1, size=x.size)


def slow_wander(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return ar1(rng, t, 3 * s.noise_sd, rng.uniform(0.03, 0.12) * s.duration_s)


def reflected_walk(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    height = 0.02 * s.base
    walk = np.cumsum(rng.normal(size=x.size)) * height / np.sqrt(x.size) * rng.uniform(1.5, 4)
    folded: FloatArray = np.abs(np.mod(walk, 2 * height) - height)
    return folded


def high_water(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    demand = rng.gamma(rng.uniform(1, 4), size=x.size)
    return s.base * rng.uniform(0.005, 0.02) * np.maximum.accumulate(demand)


def log_growth(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return s.base * rng.uniform(0.005, 0.08) * np.log1p(x / rng.uniform(0.003, 0.1))


def settling(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    """malloc: each new maximum of demand permanently adds memory; fewer and fewer, of any size."""
    out = np.zeros_like(x)
    for _ in range(int(rng.integers(5, 60))):
        out += s.base * 0.01 * rng.pareto(1.5) * 0.2 * (x > rng.exponential(rng.uniform(0.03, 0.2)))
    return out


def settling_under_teeth(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return settling(rng, x, t, s) + short_teeth(rng, x * float(rng.uniform(0.05, 0.5)), t, s)


def spikes(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return s.base * rng.uniform(0.02, 0.2) * (rng.random(x.size) < 0.01).astype(np.float64)


def bursts(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    out = np.zeros_like(x)
    for start in rng.uniform(0, 1, int(rng.integers(1, 6))):
        out = np.maximum(out, ((x > start) & (x < start + rng.uniform(0.02, 0.1))) * 1.0)
    return s.base * rng.uniform(0.02, 0.1) * out


def shrinking(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    return -s.base * rng.uniform(0.01, 0.2) * (x if rng.random() < 0.5 else 1 - np.exp(-x / 0.3))


def late_release(rng: Random, x: FloatArray, t: FloatArray, s: Setting) -> FloatArray:
    """One sawtooth period longer than half the run."""
    return s.base * rng.uniform(0.05, 0.2) * (x - 0.95 * rng.uniform(0.7, 0.85) * (x > 0.85))


HEALTHY: Mapping[str, Shape] = {
    shape.__name__: shape
    for shape in (
        flat, ramp_fill, saturating, two_speeds, logistic, short_teeth, long_teeth, uneven_teeth,
        steps, late_step, heavy_tail, slow_wander, reflected_walk, high_water, log_growth,
        settling, settling_under_teeth, spikes, bursts, shrinking,
    )
}  # fmt: skip

# After ``steady``: no fill of half a window, but the tails of fills, and everything that continues
# indefinitely.
HEALTHY_STEADY: Mapping[str, Shape] = {
    shape.__name__: shape
    for shape in (
        flat, saturating, two_speeds, short_teeth, long_teeth, uneven_teeth, steps, late_step,
        heavy_tail, slow_wander, high_water, log_growth, settling, settling_under_teeth, spikes,
        bursts, shrinking,
    )
}  # fmt: skip

# Noise-free shapes that still change in the last quarter.
SMOOTH = ("ramp_fill", "saturating", "two_speeds", "logistic", "log_growth", "shrinking")

LEAKY = (
    "linear", "late_onset", "with_saturation", "with_step", "under_short_teeth", "under_long_teeth",
    "heavy_tailed", "accelerating", "lumps", "ties", "per_request_on_off", "per_request_diurnal",
)  # fmt: skip


def healthy(kind: str, seed: int, setting: Setting | None = None) -> Trace:
    """A clean trace; ``kind`` may also be ``on_off_load``, ``diurnal_load`` or ``tied``."""
    rng = np.random.default_rng([seed, sum(map(ord, kind))])
    s = setting or long_setting(rng)
    t = times(rng, s)
    if kind.endswith("_load"):
        load = _load(rng, share(t), kind)
        value = s.base + noise(rng, t, s) + s.base * rng.uniform(0.01, 0.1) * load / load.max()
        return Trace(kind, s, t, value, 0.0, 0.0, np.cumsum(load) * s.interval_s, load)
    if kind == "tied":
        quantum = 3 * s.noise_sd
        return Trace(
            kind, s, t, np.round((s.base + noise(rng, t, s)) / quantum) * quantum, 0.0, 0.0
        )
    x = share(t)
    shape = HEALTHY[kind](rng, x, t, s)
    last = _last_rate(x, shape, s) if kind in SMOOTH else 0.0
    return Trace(kind, s, t, s.base + noise(rng, t, s) + shape, 0.0, last)


def leaky(kind: str, seed: int, rate: float, setting: Setting | None = None) -> Trace:
    """Return a trace that leaks ``rate`` MB/h in the manner of ``kind``."""
    rng = np.random.default_rng([seed, sum(map(ord, kind)), 7])
    s = setting or long_setting(rng)
    t = times(rng, s)
    x = share(t)
    hours = s.duration_s / 3600
    trace = Trace(kind, s, t, s.base + noise(rng, t, s), rate, rate)
    if kind.startswith("per_request"):
        load = _load(rng, x, kind.removeprefix("per_request_") + "_load")
        work = np.cumsum(load) * s.interval_s
        grown = rate * hours * (work - work[0]) / (work[-1] - work[0])
        return replace(trace, value=trace.value + grown, work=work, load=load)
    extra, warm = _leak_shape(kind, rng, x, s, rate * hours)
    if kind in ("accelerating", "with_saturation"):
        trace = replace(trace, last_rate=_last_rate(x, extra, s))
    value = trace.value + extra
    if kind == "ties":
        quantum = max(3 * s.noise_sd, rate * hours / 40)
        value = np.round(value / quantum) * quantum
    return replace(trace, value=value, warm=warm)


def _last_rate(x: FloatArray, shape: FloatArray, s: Setting) -> float:
    grown = np.interp([0.75, 1.0], x, shape)
    return float(grown[1] - grown[0]) / 0.25 / (s.duration_s / 3600)


def _leak_shape(
    kind: str, rng: Random, x: FloatArray, s: Setting, total: float
) -> tuple[FloatArray, bool]:
    """Return the leaked MB plus any accompanying shape, and whether the leak needs more data."""
    grown = total * x
    if kind in _BESIDE:
        return grown + _BESIDE[kind](rng, x, x, s), kind != "under_short_teeth"
    if kind == "late_onset":
        return total * np.maximum(0, x - float(rng.uniform(0.2, 0.55))), True
    if kind == "under_long_teeth":
        return grown + s.base * 0.05 * tooth(x * float(rng.uniform(7, 14))), True
    if kind == "accelerating":
        return total * (0.5 * x + 0.5 * x**2), True
    if kind == "lumps":
        lumps = np.searchsorted(np.sort(rng.uniform(0, 1, 30)), x).astype(np.float64)
        return total / 30 * lumps, True
    return grown, False


# Healthy shapes that may accompany a leak.
_BESIDE: Mapping[str, Shape] = {
    "with_saturation": saturating,
    "with_step": late_step,
    "under_short_teeth": short_teeth,
    "heavy_tailed": heavy_tail,
}


def _load(rng: Random, x: FloatArray, kind: str) -> FloatArray:
    if kind == "on_off_load":
        on = tooth(x * rng.uniform(4, 20)) < rng.uniform(0.3, 0.7)
        return 2.0 + 30.0 * on.astype(np.float64)
    return 16.0 + 12.0 * np.sin(2 * np.pi * (x * rng.uniform(1, 3) + rng.uniform()))
