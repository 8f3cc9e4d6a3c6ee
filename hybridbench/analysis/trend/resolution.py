"""The smallest leak that a run can detect: predicted before it starts, and computed at its end."""

from __future__ import annotations

import math

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.trend.terms import settles_by
from hybridbench.records.verdict import MetricResult

# Of a serving process under load: the noise's standard deviation as a share of its memory, and its
# time constant as an AR(1) process.
_NOISE_SHARE = 0.001
_NOISE_TAU_S = 20.0

_ALPHA, _POWER = 0.001, 0.9
# The growth may start, or a warm-up end, at any time: compared with a known straight line, the
# estimator needs about twice the time, and time counts to the power 3/2
# (detection.md, "How well it does").
_UNKNOWN_SHAPE = 2.0**1.5


def smallest_resolvable_rate(duration_s: float, base_bytes: float) -> float:
    """Return the smallest leak, in bytes per hour, that a steady window detects nine times in ten.

    Args:
        duration_s: length of the judged window, not of the run.
        base_bytes: memory of the process at its start.

    Source: the variance of a slope under noise of spectral density 2 tau sd^2 at zero is
    24 tau sd^2 / T^3.
    """
    duration_s = max(duration_s, 1.0)
    se = _NOISE_SHARE * base_bytes * math.sqrt(24.0 * _NOISE_TAU_S / duration_s**3)
    z = t_quantile(1.0 - _ALPHA, 1e6) + t_quantile(_POWER, 1e6)
    settles = settles_by(base_bytes, duration_s)
    return max(_UNKNOWN_SHAPE * z * se, settles / duration_s) * 3600.0


def smallest_leak_called(memory: MetricResult | None) -> float | None:
    """Return the smallest leak, in bytes per hour, that the window of ``memory`` would have shown.

    It is a multiple of the standard error, derived from the interval's width, but at least the
    floor and the growth by which a healthy process may settle.
    """
    if memory is None or memory.rate_per_hour is None:
        return None
    rate = memory.rate_per_hour
    se = (rate.upper - rate.lower) / 2.0 / 1.96
    hours = (memory.window_s[1] - memory.window_s[0]) / 3600.0
    base = memory.fit_value[0] if memory.fit_value else 0.0
    z = t_quantile(1.0 - _ALPHA, 1e6) + t_quantile(_POWER, 1e6)
    settles = settles_by(base, hours * 3600.0) / max(hours, 1e-9)
    return max(z * se, memory.floor_per_hour, settles)
