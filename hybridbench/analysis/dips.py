"""A part that goes away and comes back: a helper that dies and fills its buffers again.

Memory falls at once and returns within a share of the window to where it would have been.  To a
warm-up and three steps that is noise that hardly forgets; to a sawtooth it is growth given back.
"""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.blocks import BYTES_QUANTILE, Blocks
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.sawtooth import Teeth
from hybridbench.analysis.shapes import Beside

MOST_FALLS = 4
# How long the return takes, as the time constant of an exponential in shares of the window.
# Climbing for longer than the slowest of them that counts is how a sawtooth climbs.
_TAUS = 0.005 * 1.6 ** np.arange(10)
_SLOWEST = 0.06
_EXPLAINS = 0.5  # of what a parabola leaves
_LATEST = 0.15  # of the window between a fall and its end, for a return to be seen
_LEAST_SEEN = 0.1  # of a fall, in the block that shows most of it
_WITHIN = (np.arange(20) + 0.5) / 20.0
_REFINED = 3
_FINER = np.linspace(-0.75, 0.75, 7)


def find_dips(
    blocks: Blocks, teeth: Teeth | None, quantile: float = BYTES_QUANTILE
) -> Beside | None:
    """A return after each of a few falls, at the speed that fits best; None if it explains little.

    Each fall has a depth of its own; the speed is one for all, as the same thing comes back.
    """
    if teeth is None or teeth.fall_s.size > MOST_FALLS:
        return None
    x = blocks.x
    falls = (teeth.fall_s - blocks.start_s) / max(blocks.end_s - blocks.start_s, 1e-9)
    falls = falls[falls < 1.0 - _LATEST]
    if not falls.size:
        return None
    # A part of a block lies before the fall; the block's quantile is taken of what the column does.
    inside = (blocks.index[:, None] + _WITHIN) / (blocks.index[-1] + 1.0)
    smooth = np.column_stack([np.ones(x.size), x, x * x])
    without = _left(smooth, blocks.value)

    def left(log_tau: float) -> float:
        columns = _returns(inside, falls, float(np.exp(log_tau)), 1.0 - quantile)
        return _left(np.column_stack([smooth, columns]), blocks.value)

    grid = np.log(_TAUS)
    for _ in range(_REFINED):
        best = min(grid.tolist(), key=left)
        step = float(grid[1] - grid[0])
        grid = best + step * _FINER
    tau = float(np.exp(best))
    if tau > _SLOWEST or left(best) > _EXPLAINS * without:
        return None
    columns = _returns(inside, falls, tau, 1.0 - quantile)
    # A depth and a place for each, and the search for the speed.
    cost = 2 * columns.shape[1] + 1
    return Beside(tuple(columns.T), cost)


def _returns(inside: FloatArray, falls: FloatArray, tau: float, quantile: float) -> FloatArray:
    """[blocks, falls]: how much of each fall is still missing in each block."""
    since = inside[:, :, None] - falls[None, None, :]
    missing = np.where(since >= 0.0, np.exp(-np.maximum(since, 0.0) / tau), 0.0)
    out: FloatArray = np.quantile(missing, quantile, axis=1)
    return out[:, out.max(axis=0) > _LEAST_SEEN]


def _left(design: FloatArray, y: FloatArray) -> float:
    beta = np.linalg.lstsq(design, y, rcond=None)[0]
    residual = y - design @ beta
    return float(residual @ residual)
