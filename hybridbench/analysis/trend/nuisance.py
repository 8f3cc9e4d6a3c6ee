"""Movements of memory that are not growth: the load, its running maximum, oscillations, dips.

Each is a column that any model may include beside its shape.  An allocator keeps what the highest
load took.  An oscillation without a recorded cause (load by the hour or the day) is fitted as a
sine of any period; distinguishing it from a trend takes at least two cycles.  A helper process that
dies and refills its buffers causes a dip: memory drops at once and returns within a share of the
window.  A warm-up with three steps would treat a dip as strongly correlated noise, and a sawtooth
would treat it as freed growth.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.blocks import BYTES_QUANTILE, Blocks
from hybridbench.analysis.trend.gls import FIRST_PHI, Problem, best_model
from hybridbench.analysis.trend.sawtooth import Sawtooth
from hybridbench.analysis.trend.shapes import Beside

_VARIES = 0.1  # minimum variation, as a share of the highest mean load of a block
# How far memory may lag behind the load: time constants as shares of the window.
_LAGS = 0.01 * 2.0 ** np.arange(5)
_LATE_LEAVES = 0.9  # share of the residual left by a parabola and the load without lag
_BINS_A_BLOCK = 6
# Measured on the control load-ramp (detection.md, "What it cannot do").
_PEAK_RISES = 0.1  # minimum rise of the running maximum, as a share of its final height
# Minimum climb of the load, and its R2 with the growth, to call the two inseparable.
_CLIMBS, _ALIKE = 0.2, 0.95

# Chosen on the curve corpus, kind "swings" (detection.md, "How fresh these figures are").
_FEWEST_CYCLES = 2.0
_BLOCKS_A_CYCLE = 4
_CYCLE_GRIDS = (0.1, 0.01, 0.001)  # cycles; with little noise, a small error leaves a large rest
_SAME_SWING = 1e-6
_SWING_EXPLAINS = 0.5  # minimum share of the best shape's residual that a swing must explain
# Height, phase, and the search for the period.
_SWING_PARAMETERS = 5

# Chosen on the curve corpus, seeds 77000 to 77015, kind "restarts" (detection.md).
MOST_FALLS = 4
# Time constants of the exponential return, as shares of the window.  A climb slower than
# ``_SLOWEST`` is the ramp of a sawtooth.
_TAUS = 0.005 * 1.6 ** np.arange(10)
_SLOWEST = 0.06
_DIPS_EXPLAIN = 0.5  # maximum share of a parabola's residual that dips may leave
_LATEST = 0.15  # minimum share of the window after a fall, for a return to be seen
_LEAST_SEEN = 0.1  # minimum share of a fall in the block that shows most of it
_WITHIN = (np.arange(20) + 0.5) / 20.0
_REFINED = 3
_FINER = np.linspace(-0.75, 0.75, 7)


def block_load(t_s: FloatArray, load: FloatArray, blocks: Blocks) -> Beside | None:
    """Return each block's mean load, centred; None if it hardly varies.

    The load is lagged if that fits better.  Memory held by idle connections, sessions or entries
    with a time to live lags behind the load; an oscillation or step of the load then leaves a bend
    that a trend would explain.
    """
    size = int(blocks.index[-1]) + 1
    edges = np.linspace(blocks.start_s, blocks.end_s, size * _BINS_A_BLOCK + 1)
    mean = _means(t_s, load, edges[::_BINS_A_BLOCK])[blocks.index.astype(np.int64)]
    in_time = mean - mean.mean()
    if float(np.abs(in_time).max()) <= _VARIES * float(np.abs(mean).max()):
        return None
    smooth = np.column_stack([np.ones(blocks.x.size), blocks.x, blocks.x**2])

    def left(column: FloatArray) -> float:
        return _squares_left(np.column_stack([smooth, column]), blocks.value)

    fine, middle_s = _means(t_s, load, edges), 0.5 * (edges[1:] + edges[:-1])
    late = [
        np.interp(blocks.t_s, middle_s, _smoothed(fine, lag * fine.size)) for lag in _LAGS.tolist()
    ]
    best = min(late, key=left)
    if left(best) < _LATE_LEAVES * left(in_time):
        # The search for the lag counts as another parameter.
        return Beside((best - best.mean(),), 2)
    return Beside((in_time,), 1)


def _means(t_s: FloatArray, value: FloatArray, edges: FloatArray) -> FloatArray:
    """The mean of the samples between two edges, or the next sample if there is none."""
    total = np.concatenate([[0.0], np.cumsum(value)])
    place = np.searchsorted(t_s, edges)
    first = np.minimum(place[:-1], value.size - 1)
    last = np.clip(place[1:], first + 1, value.size)
    means: FloatArray = (total[last] - total[first]) / (last - first)
    return means


def _smoothed(value: FloatArray, tau: float) -> FloatArray:
    """The exponential moving average with time constant ``tau``, in steps of ``value``."""
    keep = np.exp(-1.0 / tau)
    before = value[:_BINS_A_BLOCK].mean()
    kernel = (1.0 - keep) * keep ** np.arange(value.size)
    smoothed: FloatArray = before + np.convolve(value - before, kernel)[: value.size]
    return smoothed


def block_peak(t_s: FloatArray, load: FloatArray, blocks: Blocks) -> FloatArray | None:
    """Return the running maximum of the load, centred; None if it hardly rises in the window.

    An allocator keeps what the highest load took, so memory follows the peaks of the load.  While
    these still rise, growth is a leak only if the peaks do not explain it.
    """
    highest = np.maximum.accumulate(load)
    peak = np.interp(blocks.t_s, t_s, highest)
    if float(np.ptp(peak)) <= _PEAK_RISES * float(peak[-1]):
        return None
    centred: FloatArray = peak - peak.mean()
    return centred


def climbs_alike(
    t_s: FloatArray, load: FloatArray, blocks: Blocks, fitted: FloatArray, growth: float
) -> bool:
    """Whether the load's running maximum rose by enough, and as evenly as ``fitted`` [blocks].

    Then the two cannot be distinguished.  Memory held by the load is at most proportional to the
    load, so growth by a larger share than the load's has another cause.
    """
    peak = block_peak(t_s, load, blocks)
    if peak is None or not np.ptp(fitted):
        return False
    climb = float(np.ptp(peak)) / float(load.max())
    share = growth / max(float(np.abs(blocks.value).max()), 1e-300)
    if climb < _CLIMBS or share > climb:
        return False
    return float(np.corrcoef(peak, fitted)[0, 1]) ** 2 > _ALIKE


def find_swing(problem: Problem) -> Beside | None:
    """Find the sine that leaves the least beside the best shape, a line or a level.

    None if that is more than half of what the best shape leaves without a sine.
    """
    x = np.concatenate([[0.0], np.cumsum(problem.gaps)])
    x = x / max(x[-1], 1.0)
    most = x.size / _BLOCKS_A_CYCLE
    if most <= _FEWEST_CYCLES:
        return None
    level = np.ones((x.size, 1))
    columns = list(best_model(problem, FIRST_PHI, 0).candidate.columns)
    shape = np.hstack([level, problem.shapes.columns[:, columns]])
    alone = _squares_left(shape, problem.y)
    # The shape that is best without a sine may follow a part of the swing.
    bases = (shape, np.column_stack([level, x]), level)
    left, cycles = min(_best_sine(x, problem.y, base, most) for base in bases)
    if alone <= 0 or left > (1.0 - _SWING_EXPLAINS) * alone:
        return None
    angle = 2.0 * np.pi * cycles * x
    return Beside((np.sin(angle), np.cos(angle)), _SWING_PARAMETERS)


def _best_sine(x: FloatArray, y: FloatArray, base: FloatArray, most: float) -> tuple[float, float]:
    """Return what ``base`` [blocks, columns] and the best sine leave, and its cycles."""
    left, cycles = _least_left(x, y, base, np.arange(_FEWEST_CYCLES, most, _CYCLE_GRIDS[0]))
    for wide, fine in pairwise(_CYCLE_GRIDS):
        near = np.maximum(cycles + np.arange(-wide, wide, fine), _FEWEST_CYCLES)
        left, cycles = _least_left(x, y, base, near)
    return left, cycles


def _least_left(
    x: FloatArray, y: FloatArray, base: FloatArray, cycles: FloatArray
) -> tuple[float, float]:
    """Return the smallest sum of squares that ``base`` and a sine leave, and the sine's cycles."""
    own, _ = np.linalg.qr(base)

    def beside(rows: FloatArray) -> FloatArray:
        rest: FloatArray = rows - (rows @ own) @ own.T
        return rest

    angle = 2.0 * np.pi * cycles[:, None] * x[None, :]
    s, c, rest = beside(np.sin(angle)), beside(np.cos(angle)), beside(y)
    ss, cc, sc = (s * s).sum(axis=1), (c * c).sum(axis=1), (s * c).sum(axis=1)
    sy, cy = s @ rest, c @ rest
    area = ss * cc - sc**2
    # A base with the same swing in it, such as the load, leaves nothing of the sine.
    known = area > _SAME_SWING * float(x.size) ** 2
    taken = (cc * sy**2 - 2.0 * sc * sy * cy + ss * cy**2) / np.where(known, area, np.inf)
    at = int(np.argmax(taken))
    return float(rest @ rest - taken[at]), float(cycles[at])


def find_dips(
    blocks: Blocks, sawtooth: Sawtooth | None, quantile: float = BYTES_QUANTILE
) -> Beside | None:
    """Fit a return after each of a few falls, at the best speed; None if it explains little.

    Each fall has its own depth; the speed is common to all, because the same thing returns.
    """
    if sawtooth is None or sawtooth.fall_s.size > MOST_FALLS:
        return None
    x = blocks.x
    falls = (sawtooth.fall_s - blocks.start_s) / max(blocks.end_s - blocks.start_s, 1e-9)
    falls = falls[falls < 1.0 - _LATEST]
    if not falls.size:
        return None
    # Part of a block may lie before the fall; take the block's quantile of the column as well.
    inside = (blocks.index[:, None] + _WITHIN) / (blocks.index[-1] + 1.0)
    smooth = np.column_stack([np.ones(x.size), x, x * x])
    without = _squares_left(smooth, blocks.value)

    def left(log_tau: float) -> float:
        columns = _returns(inside, falls, float(np.exp(log_tau)), 1.0 - quantile)
        return _squares_left(np.column_stack([smooth, columns]), blocks.value)

    grid = np.log(_TAUS)
    for _ in range(_REFINED):
        best = min(grid.tolist(), key=left)
        step = float(grid[1] - grid[0])
        grid = best + step * _FINER
    tau = float(np.exp(best))
    if tau > _SLOWEST or left(best) > _DIPS_EXPLAIN * without:
        return None
    columns = _returns(inside, falls, tau, 1.0 - quantile)
    # A depth and a position for each, and the search for the speed.
    cost = 2 * columns.shape[1] + 1
    return Beside(tuple(columns.T), cost)


def _returns(inside: FloatArray, falls: FloatArray, tau: float, quantile: float) -> FloatArray:
    """[blocks, falls]: the part of each fall that is still missing in each block."""
    since = inside[:, :, None] - falls[None, None, :]
    missing = np.where(since >= 0.0, np.exp(-np.maximum(since, 0.0) / tau), 0.0)
    out: FloatArray = np.quantile(missing, quantile, axis=1)
    return out[:, out.max(axis=0) > _LEAST_SEEN]


def _squares_left(design: FloatArray, y: FloatArray) -> float:
    beta = np.linalg.lstsq(design, y, rcond=None)[0]
    residual = y - design @ beta
    return float(residual @ residual)
