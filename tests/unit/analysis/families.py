"""Thirty-two families of awkward series with their right answers.

They cover what each stage of the analysis is for, and what has misled it.  Unlike in the corpora in
``benchmarks``, each effect is far above the noise, so that one answer is right for every seed.
Sizes in bytes, times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.record import FloatArray

Random = np.random.Generator
MIB = 2.0**20


@dataclass(frozen=True)
class Drawn:
    """One series with its work counter and its load, at the same times."""

    t_s: FloatArray
    value: FloatArray
    work: FloatArray | None = None
    load: FloatArray | None = None


@dataclass(frozen=True)
class Run:
    """The run for which a family is drawn: hours of a process of hundreds of megabytes or more."""

    rng: Random
    t_s: FloatArray
    base: float

    @property
    def x(self) -> FloatArray:
        """Time from 0 to 1."""
        x: FloatArray = self.t_s / self.t_s[-1]
        return x

    def of(self, low: float, high: float) -> float:
        """Draw a share of the base between ``low`` and ``high``, in bytes."""
        return self.base * float(self.rng.uniform(low, high))

    def between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    @property
    def phase(self) -> float:
        return float(self.rng.uniform())


Shape = Callable[[Run], FloatArray]


def draw(family: str, seed: int) -> Drawn:
    """Draw the series of ``family`` for ``seed``."""
    rng = np.random.default_rng((FAMILIES.index(family), seed))
    hours = rng.uniform(2.0, 8.0) if family not in _LONG else rng.uniform(30.0, 90.0)
    base = float(np.exp(rng.uniform(np.log(4e8), np.log(8e9))))
    base = base if family not in _LONG else float(rng.uniform(2e7, 9e7))
    run = Run(rng, np.linspace(0.0, hours * 3600.0, 720), base)
    if family in _UNDER_LOAD:
        load, memory = _UNDER_LOAD[family](run)
        requests = rng.poisson(load).astype(np.float64)
        work = np.cumsum(requests)
        return Drawn(run.t_s, base + memory + _noise(run), work, requests)
    return Drawn(run.t_s, base + _ALONE[family](run) + _noise(run, _COLOUR.get(family, 0.5)))


def _noise(run: Run, phi: float = 0.5) -> FloatArray:
    """AR(1) noise of 0.02% of the base, with coefficient ``phi`` from sample to sample."""
    fresh = run.rng.normal(size=run.t_s.size) * np.sqrt(1.0 - phi * phi)
    out = np.empty_like(fresh)
    last = float(run.rng.normal())
    for i, one in enumerate(fresh.tolist()):
        last = out[i] = phi * last + one
    noise: FloatArray = 2e-4 * run.base * out
    return noise


def _teeth(x: FloatArray, cycles: float, phase: float = 0.0) -> FloatArray:
    ramp: FloatArray = (x * cycles + phase) % 1.0
    return ramp


def _delayed(load: FloatArray, share: float) -> FloatArray:
    """Return ``load`` with an exponential delay of ``share`` of the window."""
    keep = float(np.exp(-1.0 / (share * load.size)))
    out = np.empty_like(load)
    last = float(load[0])
    for i, one in enumerate(load.tolist()):
        last = out[i] = keep * last + (1.0 - keep) * one
    return out


# Healthy: fills that end, of any shape.


def _saturating(run: Run) -> FloatArray:
    return run.of(0.05, 0.3) * (1.0 - np.exp(-run.x / run.between(0.02, 0.1)))


def _two_exponentials(run: Run) -> FloatArray:
    fast, slow = run.x / run.between(0.01, 0.03), run.x / run.between(0.06, 0.12)
    return run.of(0.05, 0.2) * (2.0 - np.exp(-fast) - np.exp(-slow))


def _logarithmic(run: Run) -> FloatArray:
    return run.of(0.005, 0.03) * np.log1p(run.x / run.between(0.003, 0.05))


def _hyperbolic(run: Run) -> FloatArray:
    return run.of(0.05, 0.2) * run.x / (run.x + run.between(0.01, 0.05))


def _logistic(run: Run) -> FloatArray:
    return run.of(0.05, 0.3) / (1.0 + np.exp(-(run.x - run.between(0.15, 0.3)) / 0.03))


def _line_that_ends(run: Run) -> FloatArray:
    return run.of(0.05, 0.4) * np.minimum(run.x / run.between(0.2, 0.7), 1.0)


def _ever_smaller_steps(run: Run) -> FloatArray:
    at = np.cumsum(0.02 * 1.7 ** np.arange(6)) * run.between(0.5, 1.0)
    heights = run.of(0.03, 0.08) * 0.6 ** np.arange(6)
    steps: FloatArray = (heights * (run.x[:, None] >= at)).sum(axis=1)
    return steps


# Healthy: steps and falls.


def _three_steps(run: Run) -> FloatArray:
    at = run.rng.uniform(0.05, 0.7, 3)
    steps: FloatArray = run.of(0.02, 0.08) * (run.x[:, None] >= at).sum(axis=1)
    return steps


def _late_step(run: Run) -> FloatArray:
    return run.of(0.02, 0.1) * np.where(run.x >= run.between(0.75, 0.95), 1.0, 0.0)


def _even_teeth(run: Run) -> FloatArray:
    return run.of(0.03, 0.15) * _teeth(run.x, run.between(6.0, 14.0), run.phase)


def _uneven_teeth(run: Run) -> FloatArray:
    edges = np.concatenate([[0.0], np.cumsum(run.rng.uniform(0.6, 1.4, 40))])
    cycles = np.interp(run.x * run.between(8.0, 20.0), edges, np.arange(41.0))
    teeth: FloatArray = run.of(0.03, 0.15) * (cycles % 1.0)
    return teeth


def _teeth_on_teeth(run: Run) -> FloatArray:
    young = run.of(0.01, 0.03) * _teeth(run.x, 60.0, run.phase)
    return young + run.of(0.05, 0.1) * _teeth(run.x, run.between(5.0, 8.0), run.phase)


def _helper_restarts(run: Run) -> FloatArray:
    since = _teeth(run.x, run.between(2.5, 4.5), run.phase)
    return run.of(0.03, 0.1) * (1.0 - np.exp(-since / 0.05))


# Healthy: unusual noise.


def _remembering(run: Run) -> FloatArray:
    return np.zeros_like(run.x)


def _spikes(run: Run) -> FloatArray:
    heavy = 2e-4 * run.base * run.rng.standard_t(2.1, size=run.x.size)
    return heavy + run.of(0.02, 0.2) * (run.rng.random(run.x.size) < 0.01)


def _swing(run: Run) -> FloatArray:
    return run.of(0.005, 0.03) * np.sin(2 * np.pi * (run.x * run.between(2.5, 6.0) + run.phase))


# Healthy under load: [requests in flight, memory].

Loaded = Callable[[Run], tuple[FloatArray, FloatArray]]


def _swinging(run: Run) -> FloatArray:
    return 16.0 + 12.0 * np.sin(2 * np.pi * (run.x * run.between(2.0, 5.0) + run.phase))


def _on_and_off(run: Run) -> FloatArray:
    """On-off load that ends in an off period."""
    cycles = float(run.rng.integers(4, 12))
    return np.where(_teeth(run.x, cycles) < run.between(0.4, 0.7), 12.0, 0.0)


def _follows(run: Run) -> tuple[FloatArray, FloatArray]:
    load = _on_and_off(run)
    return load, run.of(0.005, 0.03) * load / 12.0


def _follows_a_swing_late(run: Run) -> tuple[FloatArray, FloatArray]:
    load = _swinging(run)
    return load, run.of(0.02, 0.06) * _delayed(load, run.between(0.02, 0.08)) / 16.0


def _follows_a_step_late(run: Run) -> tuple[FloatArray, FloatArray]:
    load = np.where(run.x > run.between(0.2, 0.4), 24.0, 8.0)
    return load, run.of(0.02, 0.06) * _delayed(load, run.between(0.02, 0.06)) / 16.0


def _keeps_the_peak(run: Run) -> tuple[FloatArray, FloatArray]:
    load = 4.0 + 28.0 * np.minimum(1.0, run.x / run.between(0.3, 0.6))
    return load, run.of(0.02, 0.08) * np.maximum.accumulate(load) / 32.0


# Inconclusive: a rate that fell and may fall again; few cycles.


def _slower(factor: float) -> Shape:
    def shape(run: Run) -> FloatArray:
        knee = run.between(0.45, 0.65)
        after = np.maximum(run.x - knee, 0.0) / factor
        return run.of(0.3, 0.8) * (np.minimum(run.x, knee) + after)

    return shape


def _two_teeth(run: Run) -> FloatArray:
    return run.of(0.1, 0.3) * _teeth(run.x, run.between(1.9, 2.3), run.between(0.3, 0.5))


# Leaks.


def _line(run: Run) -> FloatArray:
    return run.of(0.03, 0.3) * run.x


def _sets_in_late(run: Run) -> FloatArray:
    return run.of(0.1, 0.3) * np.maximum(run.x - run.between(0.2, 0.5), 0.0)


def _ever_faster(run: Run) -> FloatArray:
    return run.of(0.05, 0.3) * run.x ** run.between(1.3, 2.0)


def _with(beside: Shape) -> Shape:
    def shape(run: Run) -> FloatArray:
        return beside(run) + run.of(0.2, 0.5) * run.x

    return shape


def _lumps(run: Run) -> FloatArray:
    return run.of(0.1, 0.3) * np.floor(run.x * run.rng.integers(30, 80)) / 50.0


def _by_chance(run: Run) -> FloatArray:
    lost = np.cumsum(run.rng.random(run.x.size) < 0.5)
    grown: FloatArray = run.of(0.1, 0.3) * lost / lost[-1]
    return grown


def _per_request(run: Run) -> tuple[FloatArray, FloatArray]:
    load = _on_and_off(run)
    done = np.cumsum(load)
    return load, run.of(0.1, 0.3) * done / done[-1] + run.of(0.005, 0.01) * load / 12.0


def _small_and_slow(run: Run) -> FloatArray:
    """5 to 15% of a small process a day."""
    grown: FloatArray = run.base * run.between(0.05, 0.15) / 86400.0 * run.t_s
    return grown


_ALONE: Mapping[str, Shape] = {
    "saturating fill": _saturating,
    "fill of two paces": _two_exponentials,
    "logarithmic fill": _logarithmic,
    "hyperbolic settling": _hyperbolic,
    "logistic fill": _logistic,
    "fill at constant speed that ends": _line_that_ends,
    "ever smaller steps": _ever_smaller_steps,
    "three steps": _three_steps,
    "late step": _late_step,
    "even teeth": _even_teeth,
    "uneven teeth": _uneven_teeth,
    "teeth on teeth": _teeth_on_teeth,
    "helper that restarts": _helper_restarts,
    "noise that remembers": _remembering,
    "spikes": _spikes,
    "swing": _swing,
    "half the pace": _slower(2.0),
    "a quarter of the pace": _slower(4.0),
    "two teeth": _two_teeth,
    "line": _line,
    "sets in late": _sets_in_late,
    "ever faster": _ever_faster,
    "under teeth": _with(_even_teeth),
    "beside a fill": _with(_saturating),
    "lumps": _lumps,
    "losses by chance": _by_chance,
    "small and slow": _small_and_slow,
}
_UNDER_LOAD: Mapping[str, Loaded] = {
    "follows the load": _follows,
    "follows a swing of the load late": _follows_a_swing_late,
    "follows a step of the load late": _follows_a_step_late,
    "keeps what the highest load took": _keeps_the_peak,
    "per request, on and off": _per_request,
}
_COLOUR = {"noise that remembers": 0.98}
_LONG = ("small and slow",)

UNDECIDED = ("half the pace", "a quarter of the pace", "two teeth")
LEAKS = (
    "line",
    "sets in late",
    "ever faster",
    "under teeth",
    "beside a fill",
    "lumps",
    "losses by chance",
    "small and slow",
    "per request, on and off",
)
FAMILIES = (*_ALONE, *_UNDER_LOAD)
HEALTHY = tuple(name for name in FAMILIES if name not in UNDECIDED + LEAKS)
