"""Growth in lumps: a leak that comes in few large pieces looks like steps, or like correlated
noise, to a line.

Two tests that a handful of lumps cannot pass (detection.md 4.2, step 6).
"""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.blocks import Blocks
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.student import binomial_tail, t_quantile

_STRETCHES = 24
_LARGEST_DROPPED = 3
_MIN_BIG_UP = 10
_BIG = 0.25  # of the largest increment
LATE_SHARE = 0.35  # of the growth, in the second half
_ONE_LUMP = 0.5


def grows_in_lumps(blocks: Blocks, alpha: float, late_share: float = LATE_SHARE) -> bool:
    """Whether growth goes on in lumps that no three of them, and no one half, can explain.

    ``late_share`` of it must come in the second half.
    """
    edges = np.linspace(0.0, 1.0, _STRETCHES + 1)
    at = np.clip(np.searchsorted(edges, blocks.x, side="right") - 1, 0, _STRETCHES - 1)
    filled = [np.median(blocks.value[at == k]) for k in range(_STRETCHES) if np.any(at == k)]
    increments = np.diff(np.array(filled, dtype=np.float64))
    if increments.size < _STRETCHES // 2 or not np.any(increments):
        return False
    return _mean_is_positive(increments, alpha, late_share) or _big_ones_go_up(
        np.diff(blocks.value), late_share
    )


def _mean_is_positive(increments: FloatArray, alpha: float, late_share: float) -> bool:
    kept = np.sort(increments)[:-_LARGEST_DROPPED]
    se = float(kept.std(ddof=1)) / float(np.sqrt(kept.size))
    late = float(increments[increments.size // 2 :].sum())
    holds = late >= late_share * float(increments.sum())
    return holds and float(kept.mean()) > t_quantile(1.0 - alpha, kept.size - 1) * se


def _big_ones_go_up(increments: FloatArray, late_share: float) -> bool:
    """The sign test of large increments, each well above what most blocks do."""
    typical = 1.4826 * float(np.median(np.abs(increments - np.median(increments))))
    big = np.abs(increments) > max(5.0 * typical, _BIG * float(np.abs(increments).max()))
    up = increments[big & (increments > 0)]
    if up.size < _MIN_BIG_UP or binomial_tail(int(up.size), int(big.sum())) >= 0.001:
        return False
    places = np.flatnonzero(big & (increments > 0))
    late = float(np.mean(places >= increments.size // 2))
    return late >= late_share and float(up.max()) < _ONE_LUMP * float(up.sum())
