"""What growth of a metric counts for in one run: floors, bounds, limits, and what may settle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridbench.analysis.facts.limits import growth_limits
from hybridbench.analysis.facts.window import LEAK_WITHOUT_STEADY_S, Window
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.reasons import TooShort
from hybridbench.foundation.metrics import (
    COLLECTIBLE,
    DEVICE_MEMORY,
    GRAPH_MEMORY,
    MEMORY,
    PINNED_MEMORY,
    SHM_FILES,
    MetricSpec,
    Unit,
)
from hybridbench.records.finding import Rate
from hybridbench.records.manifest import OBSERVED

# After ``steady`` an allocator still settles for minutes; a shorter window can bound growth but
# cannot show that it is a leak.
LEAK_AFTER_STEADY_S = 240.0
# Growth by which an allocator may still settle in a window of minutes (detection.md, "Limits of
# short runs"); beyond 45 minutes it decreases with the square of the time, and the metric's own
# floor applies.
_SETTLES_BYTES = 8 * 2.0**20
_SETTLES_SHARE = 0.01
# The shares of it used without profile limits, for any shape and for a plain line: no healthy run
# on that page reached half of it.
_SETTLES_UNMEASURED, _SETTLES_ALONG_A_LINE = 0.5, 0.25

# After half a day, small processes are judged by relative growth per day, however few bytes it is.
HALF_A_DAY_S = 12 * 3600.0
_DAILY_SHARE = 0.02

# From here on no healthy process settles any more, and significant growth of half the floor is
# worth a longer run.
_SETTLED_S = 2 * LEAK_WITHOUT_STEADY_S
_SETTLED_SHARE = 0.5

# Share of the level: the smallest bound for CLEAN if the profile sets no limit.
_MARGIN_SHARE = 0.005
PAGE_BYTES = 4096.0
# Handles have a bound of three per hour, and fewer than three in a whole window are neither a leak
# nor a doubt.
FEW_HANDLES = 3.0


def shortest_for_leak_s(window: Window) -> float:
    """Return the length from which a window that begins like this one can show a leak."""
    if window.steady:
        return LEAK_AFTER_STEADY_S
    if window.fill is None or window.fill.is_shown:
        return LEAK_WITHOUT_STEADY_S
    shown_s = max(window.fill.shown_s, window.fill.end_s + LEAK_AFTER_STEADY_S)
    return min(LEAK_WITHOUT_STEADY_S, shown_s - window.start_s)


def settles_by(base_bytes: float, duration_s: float) -> float:
    """Return the bytes by which a healthy allocator may still grow in a window after warm-up."""
    fade = min(1.0, (LEAK_WITHOUT_STEADY_S / max(duration_s, 1.0)) ** 2)
    return fade * max(_SETTLES_BYTES, _SETTLES_SHARE * abs(base_bytes))


def handles_bound(judged_s: float) -> float:
    """Return the handles per hour below which growth over ``judged_s`` is CLEAN without a limit."""
    return max(1.0, 3600.0 / max(judged_s, 1.0)) * FEW_HANDLES


@dataclass(frozen=True)
class Terms:
    """The thresholds of a metric in this run, per hour unless noted."""

    record: RunRecord
    spec: MetricSpec
    window: Window
    base: float
    rises: tuple[float, float] = (0.0, 0.0)  # in the first and the second half; positive is worse

    @property
    def floor(self) -> float:
        return self.floor_after(self.window.duration_s)

    def floor_after(self, duration_s: float) -> float:
        """Return the growth per hour that matters in a window of ``duration_s``.

        From half a day on, growth relative to the size of a small process counts.
        """
        share = self.spec.floor_share_per_hour * abs(self.base)
        floor = self.spec.floor_per_hour
        half_a_day = duration_s >= HALF_A_DAY_S and self.spec.unit is Unit.BYTES
        if half_a_day and not self.has_limits:
            floor = min(floor, max(_DAILY_SHARE / 24.0 * abs(self.base), PAGE_BYTES))
        return max(floor, share)

    @property
    def least_growth(self) -> float:
        """Growth over the window that must be exceeded to call a leak."""
        return self._least(_SETTLES_UNMEASURED)

    @property
    def line_growth(self) -> float:
        """The same for growth along a plain line, which settling never follows."""
        return self._least(_SETTLES_ALONG_A_LINE)

    def _least(self, unmeasured: float) -> float:
        settles = 0.0
        if self.spec.unit is Unit.BYTES:
            settles = settles_by(self.base, self.window.duration_s)
            settles *= 1.0 if self.has_limits else unmeasured
        elif self.spec.handles:
            settles = FEW_HANDLES
        return max(self.floor * self.window.duration_s / 3600.0, settles)

    def settled_rate(self, reason: str) -> float:
        """Return the rate above which significant growth is never CLEAN.

        ``reason`` is why it is not a leak.  A line without a warm-up does not settle.  After
        ``steady`` the profile's limit says how much may still settle within the hour.
        """
        unexplained = reason == TooShort.code and not self.window.steady
        settled_s = LEAK_WITHOUT_STEADY_S if unexplained else _SETTLED_S
        if self.spec.unit is Unit.BYTES and self.window.duration_s >= settled_s:
            return self.doubtful_share * self.floor
        settles = self.least_growth / max(self.window.duration_s, 1e-9) * 3600.0
        return min(settles, self.excused)

    @property
    def doubtful_share(self) -> float:
        """Share of the floor above which significant growth is neither a leak nor CLEAN.

        A user's threshold settles the question for all growth below it.
        """
        return 1.0 if self.bound_by == "threshold" else _SETTLED_SHARE

    def never_decides(self, rate: Rate) -> bool:
        """Whether growth at ``rate`` would stay undecided in a window of any length."""
        floor = self.floor_after(np.inf)
        in_bytes = self.spec.unit is Unit.BYTES
        return in_bytes and self.doubtful_share * floor < rate.lower and rate.upper <= floor

    @property
    def limit(self) -> float | None:
        """The profile's limit for this metric; collectible bytes are part of process memory."""
        if self.record.gates is not None:
            return self.record.gates[self.spec.name].limit_per_hour
        limits = growth_limits(self.record) or {}
        memory = None if self.spec.handles else limits.get(MEMORY)
        return limits.get(self.spec.name, memory)

    @property
    def has_limits(self) -> bool:
        """Whether a limit defines how much a healthy run may settle, even if only in longer runs.

        A profile's limits were measured with the bundled engine, not with a server.
        """
        scheduled = self.record.manifest.profile.limits is not None
        return not self._is_server and (scheduled or self.limit is not None)

    @property
    def _is_server(self) -> bool:
        return self.record.manifest.target.kind == OBSERVED

    @property
    def excused(self) -> float:
        """Growth per hour beyond which a limit does not help, if the growth is sure: a limit does
        not say how fast a server settles.
        """
        return self._margin if self._is_server else np.inf

    @property
    def unlimited(self) -> bool:
        """Whether the metric is undecided because the profile has no limit in so short a run."""
        gated_by_profile = self.spec.name in (
            MEMORY,
            DEVICE_MEMORY,
            GRAPH_MEMORY,
            PINNED_MEMORY,
            COLLECTIBLE,
        )
        return gated_by_profile and self.limit is None and self.has_limits

    @property
    def bound(self) -> float:
        """The growth per hour that the upper bound must stay below to be CLEAN."""
        if self.limit is not None:
            return max(self.limit, self._margin) if self._is_server else self.limit
        if self.spec.handles:
            return handles_bound(self.window.duration_s)
        return self._margin

    @property
    def _margin(self) -> float:
        """The bound without a limit."""
        in_bytes = self.spec.unit is Unit.BYTES
        margin = max(self.spec.margin_per_hour if in_bytes else 0.0, _MARGIN_SHARE * abs(self.base))
        return max(margin, 2.0 * self.floor)

    @property
    def bound_by(self) -> Literal["threshold", "profile", "margin"]:
        """Return the source of ``bound``."""
        if self.limit is None:
            return "margin"
        return "profile" if self.record.gates is None else "threshold"

    @property
    def may_warm_up(self) -> bool:
        """Whether a warm-up may cause growth; it leaves no more and more zombies behind.

        No steady event says that other programs have stopped making files in /dev/shm.
        """
        if self.spec.name == SHM_FILES:
            return True
        return not self.window.steady and self.spec.name != "zombies"

    @property
    def may_call_leak(self) -> bool:
        shortest = LEAK_WITHOUT_STEADY_S if self.may_warm_up else LEAK_AFTER_STEADY_S
        return self.window.duration_s >= shortest
