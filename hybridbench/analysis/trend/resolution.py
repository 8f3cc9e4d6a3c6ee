"""What a run of a given length can see at all: said before it starts, and again, as measured, when
it ends.
"""

from __future__ import annotations

import math

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.trend.metric_trend import settles_by
from hybridbench.records.verdict import MetricResult

# Of a serving process at work, where nothing better is known: share of its memory, and memory of
# the noise.
NOISE_SHARE = 0.001
NOISE_TAU_S = 20.0

_ALPHA, _POWER = 0.001, 0.9
# The rate may have started, or a warm-up ended, at any time: measured against a known straight
# line, the estimator needs about twice the time, and time counts to the power 3/2
# (detection.md, "How well it does").
_UNKNOWN_SHAPE = 2.0**1.5


def smallest_resolvable_rate(
    duration_s: float,
    base_bytes: float,
    noise_share: float = NOISE_SHARE,
    noise_tau_s: float = NOISE_TAU_S,
) -> float:
    """The smallest leak, in bytes per hour, that a steady window of ``duration_s`` finds nine
    times in ten.

    Args:
        duration_s: of the judged window, not of the run.
        base_bytes: memory of the process at its start.
        noise_share: standard deviation of the noise as a share of ``base_bytes``.
        noise_tau_s: how long the noise remembers, as the time constant of an AR(1) process.

    Source: the variance of a slope under noise of spectral density 2 tau sd^2 at zero, 24 tau sd^2
    / T^3.
    """
    duration_s = max(duration_s, 1.0)
    se = noise_share * base_bytes * math.sqrt(24.0 * noise_tau_s / duration_s**3)
    z = t_quantile(1.0 - _ALPHA, 1e6) + t_quantile(_POWER, 1e6)
    settles = settles_by(base_bytes, duration_s)
    return max(_UNKNOWN_SHAPE * z * se, settles / duration_s) * 3600.0


def smallest_leak_called(memory: MetricResult | None) -> float | None:
    """The smallest leak, in bytes an hour, that would have been called in the window of ``memory``:
    the interval's half width as a standard error, times what a call needs.
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
