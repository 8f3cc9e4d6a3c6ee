"""A swing that nobody recorded the cause of: load by the hour or the day, as a sine of any period.

Left in the residuals it looks like noise that hardly forgets, and nothing can be bounded beside
such noise.  Two cycles are the least that can be told from a trend.
"""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.gls import FIRST_PHI, Problem, best_model, fit_model
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.shapes import Beside

_FEWEST_CYCLES = 2.0
_BLOCKS_A_CYCLE = 4
_GRID = 0.1  # cycles
_FINE_GRID = 0.01
_EXPLAINS = 0.5  # of what the best shape without it leaves
# Height, phase, and the search for the period.
_PARAMETERS = 5


def find_swing(problem: Problem) -> Beside | None:
    """The sine that explains most of what the best shape leaves, if it is half of it."""
    best = best_model(problem, FIRST_PHI, 0)
    left = fit_model(problem, best, FIRST_PHI).residuals
    if float(left @ left) <= 0:
        return None
    x = np.concatenate([[0.0], np.cumsum(problem.gaps)])
    x = x / max(x[-1], 1.0)
    most = left.size / _BLOCKS_A_CYCLE
    if most <= _FEWEST_CYCLES:
        return None
    coarse = _best_cycles(x, left, np.arange(_FEWEST_CYCLES, most, _GRID))
    near = np.arange(coarse - _GRID, coarse + _GRID, _FINE_GRID)
    cycles = _best_cycles(x, left, np.maximum(near, _FEWEST_CYCLES))
    if _explained(x, left, np.array([cycles]))[0] < _EXPLAINS * float(left @ left):
        return None
    angle = 2.0 * np.pi * cycles * x
    return Beside((np.sin(angle), np.cos(angle)), _PARAMETERS)


def _best_cycles(x: FloatArray, left: FloatArray, cycles: FloatArray) -> float:
    return float(cycles[int(np.argmax(_explained(x, left, cycles)))])


def _explained(x: FloatArray, left: FloatArray, cycles: FloatArray) -> FloatArray:
    """The part of ``left``'s sum of squares that a sine of each number of cycles takes."""
    angle = 2.0 * np.pi * cycles[:, None] * x[None, :]
    s, c = np.sin(angle), np.cos(angle)
    ss, cc, sc = (s * s).sum(axis=1), (c * c).sum(axis=1), (s * c).sum(axis=1)
    sy, cy = s @ left, c @ left
    taken: FloatArray = (cc * sy**2 - 2.0 * sc * sy * cy + ss * cy**2) / (ss * cc - sc**2)
    return taken
