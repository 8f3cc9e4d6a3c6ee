"""Reduce samples to at most 80 blocks of equal time, the points to which every trend is fitted.

Blocks limit the cost of all later steps and reduce autocorrelation; a low quantile within each
block ignores spikes and sawteeth shorter than a block (detection.md, "Blocks").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.record import FloatArray

MAX_BLOCKS = 80
BYTES_QUANTILE = 0.25
COUNT_QUANTILE = 0.5

_GROUP = 10
_LOAD_EXPLAINS = 0.02


@dataclass(frozen=True)
class Blocks:
    """One value per stretch of equal length; stretches without a sample are left out.

    ``index`` counts stretches from the start of the window, so a jump in it is a gap.
    """

    t_s: FloatArray  # mean time of the block's samples
    value: FloatArray
    index: FloatArray
    start_s: float
    end_s: float

    def __len__(self) -> int:
        return int(self.t_s.size)

    @property
    def x(self) -> FloatArray:
        """Time as a share of the window."""
        return (self.t_s - self.start_s) / max(self.end_s - self.start_s, 1e-9)


def block_count(samples: int, limit: int = MAX_BLOCKS) -> int:
    """Return how many blocks ``samples`` fill if each gets the same number, at most ``limit``."""
    per_block = -(-samples // limit)
    return samples // max(per_block, 1)


def make_blocks(
    t_s: FloatArray, value: FloatArray, quantile: float = BYTES_QUANTILE, limit: int = MAX_BLOCKS
) -> Blocks:
    """Return the ``quantile`` of the samples in each of at most ``limit`` equal stretches."""
    start_s, end_s = float(t_s[0]), float(t_s[-1])
    count = block_count(t_s.size, limit)
    position = (t_s - start_s) / max(end_s - start_s, 1e-9) * count
    block = np.minimum(position.astype(np.int64), count - 1)
    first = np.searchsorted(block, np.arange(count + 1))
    size = np.diff(first)
    filled = np.flatnonzero(size)
    # Interpolate linearly between the two neighbouring ranks, as np.quantile does.
    rank = quantile * (size[filled] - 1)
    below = np.floor(rank).astype(np.int64)
    above = np.minimum(below + 1, size[filled] - 1)
    neighbours = np.array(
        [
            np.partition(value[start:end], (low, high))[[low, high]]
            for start, end, low, high in zip(
                first[:-1][filled], first[1:][filled], below, above, strict=True
            )
        ]
    )
    low = neighbours[:, 0] + (rank - below) * (neighbours[:, 1] - neighbours[:, 0])
    total = np.add.reduceat(t_s, first[:-1][filled])
    return Blocks(total / size[filled], low, filled.astype(np.float64), start_s, end_s)


def without_load(value: FloatArray, load: FloatArray) -> FloatArray:
    """Subtract from ``value`` the part that the load in flight explains within groups of samples.

    A group has ten samples, too few for a trend, so the regression measures only how the value
    follows the load; it is used if it explains more than 2% of the variance within the groups.
    """
    groups = value.size // _GROUP
    if groups < 2 or not np.ptp(load):
        return value
    y = value[: groups * _GROUP].reshape(groups, _GROUP)
    x = load[: groups * _GROUP].reshape(groups, _GROUP)
    y = y - y.mean(axis=1, keepdims=True)
    x = x - x.mean(axis=1, keepdims=True)
    xx, xy, yy = float((x * x).sum()), float((x * y).sum()), float((y * y).sum())
    if xx <= 0 or yy <= 0 or xy * xy < _LOAD_EXPLAINS * xx * yy:
        return value
    less: FloatArray = value - xy / xx * (load - load.mean())
    return less
