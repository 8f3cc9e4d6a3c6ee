"""Series from ordinary runs on which least squares can fail.

Work stands still, columns coincide, values hardly differ or differ by hundreds of orders of
magnitude.  A family is drawn from a seed; families have no labels, because tests only require an
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray

Random = np.random.Generator
AnyFloats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Awkward:
    """One series with its work counters and its load, at the same times."""

    t_s: FloatArray
    value: FloatArray
    works: tuple[FloatArray, ...] = ()
    load: FloatArray | None = None


def draw(family: str, seed: int) -> Awkward:
    """Draw the series of ``family`` for ``seed``."""
    rng = np.random.default_rng((FAMILIES.index(family), seed))
    return _MAKERS[family](rng, _times(rng))


def _times(rng: Random) -> FloatArray:
    count = int(rng.integers(24, 500))
    step = float(rng.choice([0.5, 1.0, 5.0, 30.0]))
    t = step * np.arange(count, dtype=np.float64)
    if rng.random() < 0.3:
        t = t[np.sort(rng.permutation(count)[: max(24, int(0.8 * count))])]
    return t


def _x(t: FloatArray) -> FloatArray:
    x: FloatArray = (t - t[0]) / max(float(t[-1] - t[0]), 1e-9)
    return x


def _memory(rng: Random, progress: FloatArray) -> FloatArray:
    """A process of some hundred megabytes that leaks, fills or stays flat, maybe with noise."""
    kind = rng.integers(4)
    base, scale = 7e8, float(10.0 ** rng.uniform(4, 9))
    shape = {
        0: progress,
        1: np.minimum(progress / 0.3, 1.0),
        2: np.zeros_like(progress),
        3: 1.0 - np.exp(-3.0 * progress),
    }[int(kind)]
    noise = float(rng.choice([0.0, 1e-4, 0.01, 0.3])) * scale
    value: FloatArray = base + scale * shape + noise * rng.normal(size=progress.size)
    return value


def _count(rng: Random, rate: AnyFloats) -> FloatArray:
    """A cumulative counter with ``rate`` events expected in each interval."""
    counted: FloatArray = np.cumsum(rng.poisson(rate)).astype(np.float64)
    return counted


def _share(work: FloatArray) -> FloatArray:
    done = float(work[-1] - work[0])
    return (work - work[0]) / done if done > 0 else np.zeros_like(work)


def _idle_tail(rng: Random, t: FloatArray) -> Awkward:
    """Work stops at some point, time continues."""
    busy = _x(t) < rng.uniform(0.05, 0.98)
    work = _count(rng, 9.0 * busy)
    load = np.where(busy, 8.0, 0.0) if rng.random() < 0.5 else None
    return Awkward(t, _memory(rng, _share(work)), (work, 16.0 * work), load)


def _on_off(rng: Random, t: FloatArray) -> Awkward:
    """On-off traffic; the run ends in either state."""
    period, duty = rng.uniform(0.05, 0.7), rng.uniform(0.1, 0.9)
    on = (_x(t) / period) % 1.0 < duty
    work = _count(rng, 20.0 * on)
    return Awkward(t, _memory(rng, _share(work)), (work,), np.where(on, 12.0, 0.0))


def _bursts(rng: Random, t: FloatArray) -> Awkward:
    """Few bursts of work and nothing between them."""
    rate = np.zeros(t.size)
    rate[rng.integers(0, t.size, int(rng.integers(1, 6)))] = 300.0
    work = _count(rng, rate)
    return Awkward(t, _memory(rng, _share(work)), (work, np.cumsum(rate)))


def _steps(rng: Random, t: FloatArray) -> Awkward:
    """A staircase, and work with the same steps."""
    at = np.sort(rng.random(int(rng.integers(1, 8))))
    stairs = np.searchsorted(at, _x(t)).astype(np.float64)
    noise = float(rng.choice([0.0, 0.1]))
    value = 1e8 * stairs + noise * 1e8 * rng.normal(size=t.size)
    return Awkward(t, value, (stairs, 100.0 * stairs))


def _constant_work(rng: Random, t: FloatArray) -> Awkward:
    """Counters that never move, or move once."""
    once = (_x(t) > rng.random()).astype(np.float64)
    return Awkward(t, _memory(rng, _x(t)), (np.full(t.size, 7.0), once), np.full(t.size, 3.0))


def _plateaus(rng: Random, t: FloatArray) -> Awkward:
    """Growth alternates with plateaus until the end."""
    stages = int(rng.integers(2, 6))
    climb = np.minimum((_x(t) * stages) % 1.0 * 3.0, 1.0) + np.floor(_x(t) * stages)
    work = np.round(1000.0 * climb)
    return Awkward(t, _memory(rng, climb / stages), (np.maximum.accumulate(work),))


def _integers(rng: Random, t: FloatArray) -> Awkward:
    """A small count, and counters with the same values."""
    value = _count(rng, np.full(t.size, rng.uniform(0.001, 2.0)))
    return Awkward(t, value, (value, np.floor(value / 2.0)), np.round(4 * rng.random(t.size)))


def _collinear(rng: Random, t: FloatArray) -> Awkward:
    """Work, load, time and value that are multiples of each other."""
    busy = np.minimum(_x(t) / rng.uniform(0.2, 1.0), 1.0)
    work = np.round(rng.uniform(5, 5000) * busy)
    value = 1e6 * work + float(rng.choice([0.0, 1e3])) * rng.normal(size=t.size)
    return Awkward(t, value, (work, 3.0 * work + 5.0), work / 10.0)


def _work_is_value(rng: Random, t: FloatArray) -> Awkward:
    """The counter of work is the metric itself."""
    value = np.maximum.accumulate(_memory(rng, _x(t)))
    return Awkward(t, value, (value,), value - value[0])


def _constant(rng: Random, t: FloatArray) -> Awkward:
    value = float(rng.choice([0.0, 1.0, 7e8, -3.0, 1e-310, 1e300]))
    return Awkward(t, np.full(t.size, value), (np.arange(t.size, dtype=np.float64),))


def _nearly_constant(rng: Random, t: FloatArray) -> Awkward:
    """Only one sample differs, or every sample differs in the last bit."""
    value = np.full(t.size, 7e8)
    if rng.random() < 0.5:
        value[rng.integers(t.size)] += float(rng.choice([1e-7, 1.0, 4096.0, 1e12]))
    else:
        value = np.nextafter(value, np.where(rng.random(t.size) < 0.5, 0.0, 1e300))
    return Awkward(t, value, (_count(rng, np.full(t.size, 5.0)),))


def _huge_beside_small(rng: Random, t: FloatArray) -> Awkward:
    value = _memory(rng, _x(t))
    huge = float(10.0 ** rng.uniform(20, 308)) * float(rng.choice([-1.0, 1.0]))
    if rng.random() < 0.5:
        value[rng.integers(t.size)] = huge
    else:
        value = value + huge * np.maximum(_x(t) - rng.random(), 0.0)
    return Awkward(t, value, (_count(rng, np.full(t.size, 5.0)),))


def _huge_work(rng: Random, t: FloatArray) -> Awkward:
    """Counters and load with one absurd reading."""
    work = _count(rng, np.full(t.size, 5.0))
    work[rng.integers(t.size) :] += float(10.0 ** rng.uniform(10, 308))
    load = np.round(8 * rng.random(t.size))
    load[rng.integers(t.size)] = float(10.0 ** rng.uniform(5, 308))
    return Awkward(t, _memory(rng, _x(t)), (work,), load)


def _tiny(rng: Random, t: FloatArray) -> Awkward:
    """Denormal numbers, and differences whose squares underflow."""
    size = float(10.0 ** rng.uniform(-323, -150))
    noise = rng.normal(size=t.size) if rng.random() < 0.5 else np.zeros(t.size)
    return Awkward(t, size * (_x(t) + noise), (_x(t) * size,), size * rng.random(t.size))


def _any_scale(rng: Random, t: FloatArray) -> Awkward:
    """Numbers of every size and sign, and counters that fall."""
    scale = 10.0 ** rng.uniform(-300, 300, (3, t.size))
    value, work, load = scale * rng.normal(size=(3, t.size))
    return Awkward(t, value, (work, np.maximum.accumulate(work)), load)


def _teeth(rng: Random, t: FloatArray) -> Awkward:
    """A sawtooth of any period, exact or noisy, that may rise."""
    phase = _x(t) * rng.uniform(0.5, 40.0)
    climb = float(rng.choice([0.0, 0.2, 2.0]))
    value = 1e8 * (phase % 1.0 + climb * _x(t)) + float(rng.choice([0.0, 1e6])) * rng.normal(
        size=t.size
    )
    return Awkward(t, value, (np.floor(phase),), np.floor(phase % 2.0))


def _gaps(rng: Random, t: FloatArray) -> Awkward:
    """Samples in a few clusters with long gaps between them."""
    late = t + np.cumsum(np.where(rng.random(t.size) < 0.03, 50.0 * float(t[-1]), 0.0))
    work = _count(rng, np.full(t.size, 5.0) * (_x(late) < 0.5))
    return Awkward(late, _memory(rng, _x(late)), (work,))


def _clumped(rng: Random, t: FloatArray) -> Awkward:
    """All but a few samples within an instant."""
    near = 1e-6 * t
    near[-int(rng.integers(1, 4)) :] += 3600.0
    return Awkward(near, _memory(rng, _x(t)), (_count(rng, np.full(t.size, 5.0)),))


_MAKERS: Mapping[str, Callable[[Random, FloatArray], Awkward]] = {
    "idle tail": _idle_tail,
    "on and off": _on_off,
    "bursts": _bursts,
    "steps": _steps,
    "constant work": _constant_work,
    "plateaus": _plateaus,
    "integer counters": _integers,
    "collinear": _collinear,
    "work is the metric": _work_is_value,
    "constant": _constant,
    "nearly constant": _nearly_constant,
    "huge beside small": _huge_beside_small,
    "huge work": _huge_work,
    "tiny": _tiny,
    "any scale": _any_scale,
    "teeth": _teeth,
    "gaps": _gaps,
    "clumped": _clumped,
}
FAMILIES: tuple[str, ...] = tuple(_MAKERS)
