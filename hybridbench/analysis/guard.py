"""The deceleration guard: growth that fades in the second half is not called a leak.

Whatever shape a warm-up has, it slows down; a leak does not.  The guard asks the data alone,
without any of the shapes (detection.md 4.2, step 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.gls import MAX_PHI, whiten
from hybridbench.analysis.record import FloatArray

HALF, THREE_QUARTERS = 0.5, 0.75
_KEEPS_PACE = 0.88
_KEEPS_CLAIM = 0.6
# Where a warm-up shape is part of the explanation, fading is what one expects: less doubt is given
# away.
_TOLERANCE_SE = 2.0
_TOLERANCE_SE_WARM = 1.0
# And the growth must show at the end by itself, not only as what a shape leaves over.
_SURELY_SE = 2.0
_MIN_BLOCKS = 8
# An end is looked for at every block, so that a bend must be sure beyond one look.
_BEND_SE = 4.0
_STOPPED = 0.5  # of the pace before
_FEWEST_BEFORE_STOP, FEWEST_AFTER_STOP = 6, 2


@dataclass(frozen=True)
class Pace:
    """Growth over [1/2, 3/4] and [3/4, 1] of the window, scaled to a whole window, with their
    covariance.
    """

    third_quarter: float
    last_quarter: float
    se_last: float
    se_fade: float  # of last_quarter - 0.88 third_quarter

    def holds(self, claimed: float, *, warming: bool) -> bool:
        """Whether growth of ``claimed`` a window is still there, and no slower than before."""
        tolerance = _TOLERANCE_SE_WARM if warming else _TOLERANCE_SE
        surely = _SURELY_SE if warming else 0.0
        fade = self.last_quarter - _KEEPS_PACE * self.third_quarter
        return (
            self.last_quarter > surely * self.se_last
            and fade + tolerance * self.se_fade >= 0
            and self.last_quarter + tolerance * self.se_last >= _KEEPS_CLAIM * claimed
        )


def measure_pace(
    progress: FloatArray, value: FloatArray, gaps: FloatArray, phi: float
) -> Pace | None:
    """The pace of ``value`` in the last two quarters of ``progress`` (time or work, 0 to 1); None
    if too few.
    """
    late = progress >= HALF
    p = progress[late]
    if p.size < _MIN_BLOCKS or np.ptp(p) <= 0:
        return None
    design = np.column_stack(
        [
            np.ones(p.size),
            np.minimum(p, THREE_QUARTERS) - HALF,
            np.maximum(p - THREE_QUARTERS, 0.0),
        ]
    )
    white = whiten(np.column_stack([design, value[late]]), phi, gaps[-(p.size - 1) :])
    inverse = np.linalg.pinv(white[:, :3].T @ white[:, :3])
    beta = inverse @ (white[:, :3].T @ white[:, 3])
    residual = white[:, 3] - white[:, :3] @ beta
    cov = inverse * float(residual @ residual) / max(p.size - 3, 1)
    contrast = np.array([0.0, -_KEEPS_PACE, 1.0])
    fade_variance = float(contrast @ cov @ contrast)
    return Pace(
        float(beta[1]),
        float(beta[2]),
        float(np.sqrt(max(cov[2, 2], 0.0))),
        float(np.sqrt(max(fade_variance, 0.0))),
    )


def stops_at_the_end(progress: FloatArray, value: FloatArray, gaps: FloatArray) -> bool:
    """Whether growth that went on through the second half has surely ended before its end.

    A fill at constant speed that ends in the last tenth is a straight line for nine tenths, and no
    shape tells it from a leak; the few blocks after its end do, wherever that is.
    """
    late = progress >= HALF
    p, y = progress[late], value[late]
    if p.size < _MIN_BLOCKS or np.ptp(p) <= 0:
        return False
    between = gaps[-(p.size - 1) :]
    ends = p[_FEWEST_BEFORE_STOP:-FEWEST_AFTER_STOP]
    return any(_stops_at(float(end), p, y, between) for end in ends if end >= THREE_QUARTERS)


def _stops_at(end: float, p: FloatArray, y: FloatArray, gaps: FloatArray) -> bool:
    design = np.column_stack([np.ones(p.size), np.minimum(p, end), np.maximum(p - end, 0.0)])
    left = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    phi = float(np.clip(left[1:] @ left[:-1] / max(float(left @ left), 1e-300), 0.0, MAX_PHI))
    white = whiten(np.column_stack([design, y]), phi, gaps)
    inverse = np.linalg.pinv(white[:, :3].T @ white[:, :3])
    beta = inverse @ (white[:, :3].T @ white[:, 3])
    residual = white[:, 3] - white[:, :3] @ beta
    cov = inverse * float(residual @ residual) / max(p.size - 3, 1)
    return surely_ends(float(beta[1]), float(beta[2]), cov[1:, 1:])


def surely_ends(before: float, after: float, cov: FloatArray) -> bool:
    """Whether of two paces, with their covariance, the second is surely hardly any of the first."""
    contrast = np.array([-1.0, 1.0])
    se_bend = float(np.sqrt(max(contrast @ cov @ contrast, 0.0)))
    se_after = float(np.sqrt(max(cov[1, 1], 0.0)))
    return (
        before - after > _BEND_SE * se_bend and after + _TOLERANCE_SE * se_after < _STOPPED * before
    )
