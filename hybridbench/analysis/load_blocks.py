"""The requests in flight as blocks see them: mean and peak, for memory that follows the load."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.blocks import Blocks
from hybridbench.analysis.record import FloatArray

_PEAK_RISES = 0.1  # of its last height
# A climb as even as the growth: so much of the variance of one is that of the other.
_CLIMBS, _ALIKE = 0.2, 0.95


def block_load(t_s: FloatArray, load: FloatArray, blocks: Blocks) -> FloatArray | None:
    """Mean load of each block about its average; None where it hardly varies."""
    total = np.concatenate([[0.0], np.cumsum(load)])
    edges = blocks.start_s + (blocks.end_s - blocks.start_s) * np.stack(
        [blocks.index, blocks.index + 1]
    ) / (blocks.index[-1] + 1)
    first, last = np.searchsorted(t_s, edges[0]), np.searchsorted(t_s, edges[1])
    last = np.maximum(last, first + 1)
    mean = (total[np.minimum(last, load.size)] - total[np.minimum(first, load.size - 1)]) / (
        last - first
    )
    centred: FloatArray = mean - mean.mean()
    varies = float(np.abs(centred).max()) > 0.1 * float(np.abs(mean).max())
    return centred if varies else None


def block_peak(t_s: FloatArray, load: FloatArray, blocks: Blocks) -> FloatArray | None:
    """The highest load so far, about its average; None where it hardly rises in the window.

    An allocator keeps what the highest load took, so that memory follows the peaks and not the
    load.  While they still rise, growth is told from a leak only if it is not theirs.
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
    """Whether the highest load so far rose as evenly as ``fitted`` [blocks] did, and far enough.

    Then nothing tells the two apart.  What the load takes is at most in proportion to it: growth by
    a larger share than the load's is not the load's.
    """
    peak = block_peak(t_s, load, blocks)
    if peak is None or not np.ptp(fitted):
        return False
    climb = float(np.ptp(peak)) / float(load.max())
    share = growth / max(float(np.abs(blocks.value).max()), 1e-300)
    if climb < _CLIMBS or share > climb:
        return False
    return float(np.corrcoef(peak, fitted)[0, 1]) ** 2 > _ALIKE
