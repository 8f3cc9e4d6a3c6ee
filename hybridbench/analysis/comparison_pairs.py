"""Paired rounds: the mean log ratio with what order and memory of the last round do to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.student import t_tail

# With fewer rounds the effect of the order cannot be told from the noise.
_LEAST_FOR_POSITION = 6
_MOST_FOR_WALSH = 1500


@dataclass(frozen=True)
class Pairs:
    """Log ratios of the rounds that both versions finished, oldest first.

    ``order`` is how many turns later the second version had its block than the first: +1 and -1 in
    turn when ABBA is kept.
    """

    log_ratio: FloatArray
    order: FloatArray

    def __len__(self) -> int:
        return int(self.log_ratio.size)


@dataclass(frozen=True)
class PairedMean:
    """``mean`` of the log ratio with its standard error on ``df`` degrees of freedom."""

    mean: float
    se: float
    df: int
    sd: float  # of one pair
    hodges_lehmann: float
    position: float | None = None  # what being one turn later adds to the log of the value
    position_p: float | None = None


def paired_mean(pairs: Pairs, *, creeping: bool = False) -> PairedMean | None:
    """The estimate; None for fewer than two pairs.

    The order's effect is fitted beside the mean whenever both orders were run.  ``creeping`` levels
    (memory) have their standard error widened by the correlation from round to round.
    """
    d = pairs.log_ratio
    if d.size < 2:
        return None
    columns = [np.ones(d.size)]
    ordered = d.size >= _LEAST_FOR_POSITION and bool(np.ptp(pairs.order) > 0)
    if ordered:
        columns.append(pairs.order)
    design = np.column_stack(columns)
    inverse = np.linalg.inv(design.T @ design)
    beta = inverse @ (design.T @ d)
    left = d - design @ beta
    df = d.size - len(columns)
    variance = float(left @ left) / df
    se = math.sqrt(variance * float(inverse[0, 0]))
    if creeping:
        se *= widening(left)
    position = position_p = None
    if ordered:
        position = float(beta[1])
        position_se = math.sqrt(variance * float(inverse[1, 1]))
        position_p = 2.0 * t_tail(abs(position) / position_se, df) if position_se > 0 else None
    without_order = d - (pairs.order * position if position is not None else 0.0)
    return PairedMean(
        float(beta[0]),
        se,
        df,
        math.sqrt(variance),
        hodges_lehmann(without_order),
        position,
        position_p,
    )


def hodges_lehmann(values: FloatArray) -> float:
    """The median of the means of all pairs of values, each with itself too (Hodges & Lehmann 1963).

    Beyond 1,500 values every k-th is taken: the pairs grow with the square.
    """
    taken = values[:: -(-values.size // _MOST_FOR_WALSH)]
    first, second = np.triu_indices(taken.size)
    return float(np.median(0.5 * (taken[first] + taken[second])))


def widening(left: FloatArray) -> float:
    """What an AR(1) correlation of the residuals does to the standard error of their mean."""
    energy = float(left @ left)
    if left.size < 4 or energy <= 0.0:
        return 1.0
    phi = float(left[1:] @ left[:-1]) / energy
    # The estimate is low by about (1 + 3 phi) / n for a mean that was fitted (Kendall 1954).
    phi = min(max(phi + (1.0 + 3.0 * max(phi, 0.0)) / left.size, 0.0), 0.95)
    return math.sqrt((1.0 + phi) / (1.0 - phi))
