"""The prototype of the analysis, as a rival detector: a set of plausible models.

Block quantiles are fitted by every combination of a warm-up, a trend and up to three steps, under
AR(1) noise, and ranked by BIC.  A leak is reported if every model near the best shows growth.  A
sawtooth is judged by its troughs, decelerating growth is rejected, and lumps are counted.  Swings,
memory that lags behind load, random losses and a settling allocator are not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from benchmarks.corpus import LabelledTrace
from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.blocks import BYTES_QUANTILE

_BLOCKS, _PER_BLOCK, _FEWEST = 80, 6, 12
_ALPHA = 0.001
_DECIDE_WITHIN, _REPORT_WITHIN = 3.5, 6.0  # BIC
_MOST_STEPS, _STEP_COST = 3, 3
_KNEES = (0.03, 0.06, 0.09, 0.12, 0.18, 0.27, 0.37, 0.5)
_TIME_CONSTANTS = (0.01, 0.02, 0.04, 0.06, 0.09, 0.13, 0.19, 0.28, 0.5, 0.8, 1.3)
_DERIVATIVE_UP_TO = 0.3
_LOG_SCALES = (0.003, 0.012, 0.05)
_ONSETS = (0.2, 0.35, 0.5, 0.6)
_KEEPS_PACE, _KEEPS_CLAIM = 0.88, 0.6
_LUMPY_PHI = 0.75
_TROUGHS, _SKIP = 4, 0.12
_LEAST_WIDTH = 0.01


@dataclass(frozen=True)
class Growth:
    """Confidence interval of growth in MB/h; ``leak`` if every plausible model shows growth,
    ``open`` if it is neither a leak nor clean.
    """

    lower: float
    upper: float
    bound: float  # must be below the margin for a clean result
    leak: bool
    open: bool = False


def composite(trace: LabelledTrace, floor: float) -> Growth | None:
    """Return the trace's growth, judged against ``floor`` MB/h; None below twelve blocks."""
    value = _less_load(trace)
    blocks = _blocks(trace, value)
    if blocks is None:
        return None
    if not np.ptp(blocks.value):
        return Growth(0.0, 0.0, 0.0, leak=False)
    falls = _falls(blocks.value)
    if len(falls) >= 2:
        return _by_troughs(trace.t_s, value, blocks, falls, floor)
    return _by_models(blocks, floor)


@dataclass(frozen=True)
class _Blocks:
    """One point per block, and the window's length.

    ``x`` is the share of the window, ``value`` in MB, ``work`` the share of the work.
    """

    hours: float
    x: FloatArray
    value: FloatArray
    load: FloatArray | None
    work: FloatArray | None


def _less_load(trace: LabelledTrace) -> FloatArray:
    """Return the values without the part that load explains within ten samples, if 2% or more."""
    load = trace.load
    if load is None or trace.t_s.size <= 60:
        return trace.value
    size = trace.t_s.size // 10 * 10
    y, x = trace.value[:size].reshape(-1, 10), load[:size].reshape(-1, 10)
    y, x = y - y.mean(axis=1, keepdims=True), x - x.mean(axis=1, keepdims=True)
    y = np.clip(y, *np.quantile(y, [0.005, 0.995]))
    energy, along = float((x * x).sum()), float((x * y).sum())
    if energy <= 0 or along**2 <= 0.02 * energy * float((y * y).sum()):
        return trace.value
    less: FloatArray = trace.value - along / energy * (load - np.median(load))
    return less


def _blocks(trace: LabelledTrace, value: FloatArray) -> _Blocks | None:
    t = trace.t_s
    count = max(8, min(_BLOCKS, t.size // _PER_BLOCK))
    span = float(t[-1] - t[0])
    index = np.minimum(((t - t[0]) / span * count).astype(np.int64), count - 1)
    edges = np.searchsorted(index, np.arange(count + 1))
    filled = [slice(a, b) for a, b in pairwise(edges.tolist()) if b > a]
    if len(filled) < _FEWEST:
        return None

    def means(column: FloatArray | None) -> FloatArray | None:
        if column is None or not np.ptp(column):
            return None
        return np.array([column[part].mean() for part in filled])

    work = means(trace.work)
    if work is not None:
        work = (work - work[0]) / max(float(work[-1] - work[0]), 1e-9)
    x = np.array([(t[part].mean() - t[0]) / span for part in filled])
    low = np.array([np.quantile(value[part], BYTES_QUANTILE) for part in filled])
    return _Blocks(span / 3600.0, x, low, means(trace.load), work)


def _falls(value: FloatArray) -> list[int]:
    """Return the first block after each large fall; empty unless several are of similar size."""
    step = np.diff(value)
    noise = 1.4826 * float(np.median(np.abs(step - np.median(step)))) + 1e-15
    deep = np.flatnonzero(step < -6.0 * noise)
    if deep.size < 2:
        return []
    runs = np.split(deep, np.flatnonzero(np.diff(deep) > 2) + 1)
    after = np.array([run[-1] + 1 for run in runs])
    height = np.array([value[run[0]] - value[run[-1] + 1] for run in runs])
    like = height > 0.4 * np.quantile(height, 0.8)
    after, height = after[like], height[like]
    spread = float(np.quantile(value, 0.98) - np.quantile(value, 0.02))
    if after.size < 2 or np.median(height) < 0.15 * spread:
        return []
    found: list[int] = after.tolist()
    return found


def _by_troughs(
    t_s: FloatArray, value: FloatArray, blocks: _Blocks, falls: Sequence[int], floor: float
) -> Growth:
    """Fit a line through the lowest tenth of each ramp's beginning."""
    at_s = t_s[0] + blocks.x * (t_s[-1] - t_s[0])
    block_s = float(at_s[1] - at_s[0])
    times, lows = [], []
    for start, end in pairwise([*falls, len(at_s)]):
        first = at_s[start] - 0.5 * block_s
        last = first + max(0.35 * (at_s[min(end, len(at_s) - 1)] - at_s[start]), block_s)
        near = (t_s >= first - block_s) & (t_s <= last)
        if near.sum() < 2:
            continue
        ramp = value[near]
        lowest = np.argsort(ramp)[: max(2, ramp.size // 10)]
        times.append(t_s[near][lowest].mean())
        lows.append(np.median(ramp[lowest]))
    h, y = np.array(times) / 3600.0, np.array(lows)
    late = h > t_s[0] / 3600.0 + _SKIP * blocks.hours
    if late.sum() >= _TROUGHS:
        h, y = h[late], y[late]
    if h.size < _TROUGHS:
        return Growth(-np.inf, np.inf, np.inf, leak=False, open=True)
    slope, se, left = _line(h, y)
    half = t_quantile(0.975, h.size - 2) * se
    leak = slope - t_quantile(1 - _ALPHA, h.size - 2) * se > floor and not _bends(h, left, slope)
    growing = slope > half and slope > 2 * floor
    return Growth(slope - half, slope + half, slope + half, leak, open=growing)


def _bends(h: FloatArray, left: FloatArray, slope: float) -> bool:
    """Return whether a line's residuals show significantly that the slope more than halves."""
    if h.size < 6:
        return False
    x = h - h.mean()
    square = x * x - (x * x).mean() - x * float((x**3).sum() / (x @ x))
    bend = float(square @ left / (square @ square))
    rest = left - bend * square
    se = float(np.sqrt(rest @ rest / (h.size - 3) / (square @ square)))
    surely = bend < -t_quantile(0.99, h.size - 3) * se
    return surely and slope + 2 * bend * float(x[-1]) < 0.5 * slope


def _line(x: FloatArray, y: FloatArray) -> tuple[float, float, FloatArray]:
    centred = x - x.mean()
    energy = float(centred @ centred)
    slope = float(centred @ y) / energy
    left = y - y.mean() - slope * centred
    return slope, float(np.sqrt(left @ left / (x.size - 2) / energy)), left


@dataclass(frozen=True)
class _Part:
    """Optional columns of a model, with their BIC cost and their kind."""

    columns: tuple[FloatArray, ...] = ()
    cost: int = 0
    kind: str = ""


@dataclass(frozen=True)
class _Model:
    load: _Part
    warmup: _Part
    trend: _Part
    bic: float = 0.0
    steps: tuple[int, ...] = ()

    @property
    def parameters(self) -> int:
        parts = 1 + self.load.cost + self.warmup.cost + self.trend.cost
        return parts + _STEP_COST * len(self.steps)


class _Models:
    """All models for given blocks, scaled to a standard deviation of 1 and a window of 1."""

    def __init__(self, blocks: _Blocks) -> None:
        self.x = blocks.x
        self.scale = float(np.std(blocks.value))
        self.z = (blocks.value - np.median(blocks.value)) / self.scale
        blocks_at = np.arange(self.x.size)
        later = blocks_at[:, None] >= blocks_at[2:-1]
        self.steps: FloatArray = later.astype(np.float64)
        loads, load = [_Part()], blocks.load
        if load is not None and np.std(load) > 0.02 * np.abs(load).mean():
            loads.append(_Part(((load - load.mean()) / load.std(),), 1))
        late = [_Part((np.maximum(self.x - h, 0.0),), 3, "onset") for h in _ONSETS]
        trends = [_Part(), _Part((self.x,), 1, "time"), *late]
        if blocks.work is not None and np.abs(blocks.work - self.x).max() > 0.02:
            trends.append(_Part((blocks.work,), 1, "work"))
        self.every = [
            _Model(*parts)
            for parts in product(loads, _warmups(self.x), trends)
            if not (parts[1].cost and parts[2].kind == "onset")
        ]

    def design(self, model: _Model) -> FloatArray:
        own = [np.ones_like(self.x), *model.load.columns, *model.warmup.columns]
        return np.column_stack([*own, *model.trend.columns, self.steps[:, list(model.steps)]])

    def ranked(self, phi: float) -> list[_Model]:
        """All models with up to three steps, each step chosen greedily by explained variance."""
        y, all_steps = _white(self.z, phi), _white(self.steps, phi)
        n, log_n = self.x.size, math.log(self.x.size)
        out = []
        for model in self.every:
            q, _ = np.linalg.qr(_white(self.design(model), phi))
            left, steps = y - q @ (q.T @ y), all_steps - q @ (q.T @ all_steps)
            for count in range(_MOST_STEPS + 1):
                fit = n * math.log(max(float(left @ left), 1e-18) / n) - math.log(1 - phi * phi)
                out.append(replace(model, bic=fit + model.parameters * log_n))
                if count == _MOST_STEPS:
                    break
                energy = np.einsum("ij,ij->j", steps, steps)
                gain = np.where(energy > 1e-9, (left @ steps) ** 2 / np.maximum(energy, 1e-12), 0)
                best = int(np.argmax(gain))
                if gain[best] <= 0:
                    break
                unit = steps[:, best] / np.sqrt(energy[best])
                left = left - unit * (unit @ left)
                steps = steps - np.outer(unit, unit @ steps)
                model = replace(model, steps=(*model.steps, best))  # noqa: PLW2901
        return sorted(out, key=lambda one: one.bic)

    def fitted(self, model: _Model, phi: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Coefficients, their covariance, and the residuals of the blocks."""
        design = self.design(model)
        x, y = _white(design, phi), _white(self.z, phi)
        inverse = np.linalg.pinv(x.T @ x)
        beta = inverse @ (x.T @ y)
        left = y - x @ beta
        df = max(1, self.x.size - model.parameters)
        return beta, inverse * float(left @ left) / df, self.z - design @ beta

    def noise(self) -> tuple[float, list[_Model]]:
        """The autocorrelation of the residuals at lag 1, and the models ranked under it."""
        phi, n = 0.5, self.x.size
        for _ in range(3):
            ranked = self.ranked(phi)
            beta, _, left = self.fitted(ranked[0], phi)
            found = float(left[1:] @ left[:-1]) / max(1e-18, float(left[:-1] @ left[:-1]))
            k = beta.size
            # Kendall's correction for the bias from fitting.
            found = (found + (1 + k) / n) / (1 - (2 + k) / n) if n > 2 * k + 6 else found + 0.2
            before, phi = phi, float(np.clip(found, 0.0, 0.96))
            if abs(phi - before) < 0.02:
                return phi, ranked
        return phi, self.ranked(phi)


def _warmups(x: FloatArray) -> list[_Part]:
    out = [_Part()]
    out += [_Part((np.maximum(1 - x / knee, 0.0),), 2, "ramp") for knee in _KNEES]
    for tau in _TIME_CONSTANTS:
        decay = np.exp(-x / tau)
        bent = tau <= _DERIVATIVE_UP_TO
        columns = (decay, x / tau * decay) if bent else (decay,)
        out.append(_Part(columns, 3 if bent else 2, f"saturating {tau}"))
    for scale in _LOG_SCALES:
        bend = (x / scale) / (1 + x / scale)
        out.append(_Part((np.log1p(x / scale), bend), 3, "log"))
    return out


def _white(columns: FloatArray, phi: float) -> FloatArray:
    first = columns[:1] * np.sqrt(1 - phi * phi)
    return np.concatenate([first, columns[1:] - phi * columns[:-1]])


@dataclass(frozen=True)
class _Claim:
    """One model's trend and growth at the end, with standard errors."""

    trend: tuple[float, float] | None
    end: tuple[float, float]
    df: int


def _claim(models: _Models, model: _Model, phi: float) -> _Claim:
    beta, cov, _ = models.fitted(model, phi)
    design, x = models.design(model), models.x
    first, last = 1 + len(model.load.columns), design.shape[1] - len(model.steps)
    from_75 = int(np.searchsorted(x, 0.75))
    weights = np.zeros(beta.size)
    weights[first:last] = (design[-1] - design[from_75])[first:last] / (x[-1] - x[from_75])
    if model.trend.kind == "work":
        weights[last - 1] = 1.0
    end = float(weights @ beta), math.sqrt(max(0.0, float(weights @ cov @ weights)))
    trend = None
    if model.trend.cost:
        trend = float(beta[last - 1]), math.sqrt(max(0.0, float(cov[last - 1, last - 1])))
    return _Claim(trend, end, max(2, x.size - model.parameters))


def _by_models(blocks: _Blocks, floor: float) -> Growth:
    models = _Models(blocks)
    phi, ranked = models.noise()
    cautious = min(0.985, phi + 1.28 * float(np.sqrt(max(1 - phi * phi, 0.02) / blocks.x.size)))
    best = ranked[0]
    hourly = models.scale / blocks.hours
    near = [model for model in ranked if model.bic <= best.bic + _REPORT_WITHIN]
    claims = [_claim(models, model, cautious) for model in near]
    ends = [_interval(claim) for claim in claims]
    decide = sum(model.bic <= best.bic + _DECIDE_WITHIN for model in near)
    surely = min(_surely(claim) for claim in claims[:decide])
    straight = next(m for m in ranked if m.trend.kind in ("time", "work"))
    claim = _claim(models, straight, cautious)
    bound = max(
        *(high for _, high in ends[:decide]),
        claim.end[0] + t_quantile(0.975, claim.df) * claim.end[1],
    )
    lower, upper = (min(low for low, _ in ends), max(high for _, high in ends))
    lumps = _in_lumps(blocks, models, best, phi, floor)
    estimate = claims[0].end[0]
    if lumps is not None:
        estimate, lower, upper = (end / hourly for end in lumps)
    leak = surely * hourly > floor or lumps is not None
    slows = leak and _slows_down(models, best, phi, estimate, lumpy=lumps is not None)
    # A slow exponential is not clean while its tangent exceeds the margin for clean.
    grows = best.trend.cost and estimate * hourly > 2 * floor and ends[0][0] > 0
    fills = _tangent(models, best, phi) * hourly
    margin_left = np.inf if slows or grows else max(bound * hourly, fills)
    return Growth(lower * hourly, upper * hourly, margin_left, leak and not slows)


def _interval(claim: _Claim) -> tuple[float, float]:
    half = max(t_quantile(0.975, claim.df) * claim.end[1], _LEAST_WIDTH * abs(claim.end[0]))
    return claim.end[0] - half, claim.end[0] + half


def _surely(claim: _Claim) -> float:
    """Return the smaller lower bound (one-sided) of trend and final growth; 0 without a trend."""
    if claim.trend is None:
        return 0.0
    away = t_quantile(1 - _ALPHA, claim.df)
    return min(claim.trend[0] - away * claim.trend[1], claim.end[0] - away * claim.end[1])


def _tangent(models: _Models, best: _Model, phi: float) -> float:
    """Return the final slope if the best model saturates slowly; 0 otherwise."""
    name, _, tau = best.warmup.kind.partition(" ")
    if name != "saturating" or float(tau) <= _DERIVATIVE_UP_TO:
        return 0.0
    beta, _, _ = models.fitted(best, phi)
    height = float(beta[1 + len(best.load.columns)])
    return -height / float(tau) * float(np.exp(-1.0 / float(tau)))


def _in_lumps(
    blocks: _Blocks, models: _Models, best: _Model, phi: float, floor: float
) -> tuple[float, float, float] | None:
    """Return estimate and interval of growth in lumps, in MB/h; None without such growth."""
    if best.warmup.cost:
        return None
    if phi >= _LUMPY_PHI or len(best.steps) >= _MOST_STEPS:
        edges = np.minimum((blocks.x * 24).astype(np.int64), 23)
        seen = np.unique(edges)
        level = np.array([np.median(blocks.value[edges == i]) for i in seen])
        moved = np.diff(level)[2:]
        half = moved.size // 2
        kept = np.sort(moved)[:-3]
        se = moved.std(ddof=1) / np.sqrt(moved.size)
        late = np.sort(moved[half:])[:-1].mean()
        late_se = moved.std(ddof=1) / np.sqrt(half)
        per_hour = 24.0 / blocks.hours
        low = (kept.mean() - t_quantile(1 - _ALPHA, moved.size - 1) * se) * per_hour
        if low > floor and late > t_quantile(0.95, half - 1) * late_se:
            reach = t_quantile(0.975, moved.size - 1) * se
            mean = float(moved.mean())
            ends = (mean, mean - reach, mean + reach)
            return float(ends[0] * per_hour), float(ends[1] * per_hour), float(ends[2] * per_hour)
    return _by_signs(models, models.scale / blocks.hours, floor)


def _by_signs(models: _Models, hourly: float, floor: float) -> tuple[float, float, float] | None:
    """Return the same as ``_in_lumps``, from the signs of increments that exceed the noise."""
    step = np.diff(models.z)
    noise = 1.4826 * float(np.median(np.abs(step - np.median(step))))
    big = np.abs(step) > max(6 * noise, 1e-9)
    late = np.arange(step.size) >= step.size // 2
    up, down = big & (step > 0), big & (step < 0)
    count, late_count = int(up.sum()), int((up & late).sum())
    if count < 10 or late_count < max(5.0, 0.35 * count):
        return None
    rises = step[up]
    total = count + int(down.sum())
    by_chance = sum(math.comb(total, k) for k in range(count, total + 1)) / 2.0**total
    spread = float(np.sqrt((rises**2).sum())) * hourly
    if (
        by_chance >= _ALPHA
        or (down & late).sum() > 0.1 * late_count
        or rises.max() >= 0.5 * rises.sum()
        or rises.sum() * hourly - 3.1 * spread <= floor
    ):
        return None
    slope = float(np.polyfit(models.x, models.z, 1)[0]) * hourly
    return slope, slope - 1.96 * spread, slope + 1.96 * spread


def _slows_down(models: _Models, best: _Model, phi: float, estimate: float, *, lumpy: bool) -> bool:
    """Return whether the last quarter grew too slowly for the quarter before or the estimate."""
    beta, _, _ = models.fitted(best, phi)
    first = 1 + len(best.load.columns)
    left = models.z - models.design(best)[:, 1:first] @ beta[1:first]
    if best.steps and not lumpy:
        left = left - models.steps[:, list(best.steps)] @ beta[-len(best.steps) :]
    progress = best.trend.columns[0] if best.trend.kind == "work" else models.x
    third = _pace(models.x, progress, left, 0.5, 0.75)
    last = _pace(models.x, progress, left, 0.75, 1.0)
    if third is None or last is None:
        return False
    doubt = 2.0 * float(np.hypot(last[1], _KEEPS_PACE * third[1]))
    fades = third[0] > 0 and last[0] - _KEEPS_PACE * third[0] + doubt < 0
    short = last[0] + 1.64 * last[1] < _KEEPS_CLAIM * estimate or last[0] <= 0
    return fades or (short and not lumpy)


def _pace(
    x: FloatArray, progress: FloatArray, left: FloatArray, start: float, end: float
) -> tuple[float, float] | None:
    """Slope and standard error between two points of the window; None with too few blocks."""
    inside = (x >= start) & (x <= end)
    if inside.sum() < 6 or np.ptp(progress[inside]) <= 1e-6:
        return None
    slope, se, rest = _line(progress[inside], left[inside])
    near = float(rest[1:] @ rest[:-1] / max(float(rest @ rest), 1e-18))
    phi = float(np.clip(near + 0.15, 0.0, 0.9))
    return slope, se * float(np.sqrt((1 + phi) / (1 - phi)))
