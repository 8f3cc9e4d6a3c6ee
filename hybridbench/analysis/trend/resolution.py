"""What a run of a given length can see at all: said before it starts, and again, as measured, when
it ends.
"""

from __future__ import annotations

import math

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.trend.metric_trend import (
    LEAK_AFTER_STEADY_S,
    LEAK_WITHOUT_STEADY_S,
    settles_by,
)
from hybridbench.records.verdict import MetricResult, Rate
from hybridbench.units import format_byte_rate, format_duration

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


def resolution_line(result: MetricResult | None, *, steady: bool) -> str:
    """One line: what this run's memory series rules out, and the smallest leak that it would have
    called.
    """
    if result is None:
        return "This run has no judged window of memory samples: it rules nothing out."
    start, end = result.window_s
    length, rate = format_duration(end - start), result.rate_per_hour
    if rate is None:
        return f"{length} of steady state: too few memory samples, so no growth is ruled out."
    upper = format_byte_rate(max(rate.upper, 0.0))
    said = f"{length} judged: growth above {upper} is ruled out (95 %)"
    if result.outcome == "LEAK":
        return (
            f"{length} judged: memory grows by {format_byte_rate(rate.value)} "
            f"[{format_byte_rate(rate.lower)}, {format_byte_rate(rate.upper)}]."
        )
    shortest = LEAK_AFTER_STEADY_S if steady else LEAK_WITHOUT_STEADY_S
    if end - start < shortest:
        since = "after the steady event" if steady else "without a steady event"
        return (
            f"{said}; smaller leaks would not have been seen, and a window under "
            f"{format_duration(shortest)} {since} calls none by its trend."
        )
    least = format_byte_rate(_smallest_called(result, rate))
    return f"{said}; a leak under about {least} would not be called."


def _smallest_called(result: MetricResult, rate: Rate) -> float:
    """The interval's half width as a standard error, times what a call needs."""
    se = (rate.upper - rate.lower) / 2.0 / 1.96
    hours = (result.window_s[1] - result.window_s[0]) / 3600.0
    base = result.fit_value[0] if result.fit_value else 0.0
    z = t_quantile(1.0 - _ALPHA, 1e6) + t_quantile(_POWER, 1e6)
    settles = settles_by(base, hours * 3600.0) / max(hours, 1e-9)
    return max(z * se, result.floor_per_hour, settles)
