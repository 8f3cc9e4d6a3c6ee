"""Latencies of a window in constant memory: counts in buckets that grow by four per cent."""

from __future__ import annotations

import math

_GROWTH = 1.04
_LOG_GROWTH = math.log(_GROWTH)
_SMALLEST_S = 1e-5
_BUCKETS = 520  # up to about two hours


class LatencyWindow:
    """Adds durations, answers quantiles within two per cent, and starts afresh when asked."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, duration_s: float) -> None:
        """Count one duration."""
        index = 0
        if duration_s > _SMALLEST_S:
            index = min(_BUCKETS - 1, int(math.log(duration_s / _SMALLEST_S) / _LOG_GROWTH) + 1)
        self._counts[index] += 1
        self._total += 1

    def quantile_s(self, share: float) -> float | None:
        """The duration that ``share`` of the window does not exceed; None for an empty window."""
        if not self._total:
            return None
        rank = max(1, math.ceil(share * self._total))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if seen >= rank:
                # The middle of the bucket, in the geometric sense.
                return float(_SMALLEST_S * _GROWTH ** (index - 0.5))
        raise AssertionError("the buckets hold fewer durations than were counted")

    def clear(self) -> None:
        """Start the next window."""
        self._counts = [0] * _BUCKETS
        self._total = 0
