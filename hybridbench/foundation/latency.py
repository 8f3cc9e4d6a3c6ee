"""Latencies in constant memory: a histogram with logarithmic buckets, after HdrHistogram.

Histograms of several intervals add up, so that a percentile can be had of any stretch of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

# What is counted of each request: time to first token, the gaps between its tokens, and its time
# from the submission to the last token.
TTFT, ITL, E2E = "ttft", "itl", "e2e"

# Counts by bucket of each latency; buckets without a count are left out.
LatencyCounts: TypeAlias = Mapping[str, Mapping[int, int]]

# A duration is told as the geometric middle of its bucket: sqrt(1.02) is less than 1% off.
_GROWTH = 1.02
RELATIVE_ERROR: Final = 0.01
_LOG_GROWTH = math.log(_GROWTH)
_SMALLEST_S = 1e-5
BUCKETS: Final = 1040  # up to about two hours


class LatencyHistogram:
    """Adds durations, and answers their number, mean and quantiles within ``RELATIVE_ERROR``."""

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, duration_s: float) -> None:
        """Count one duration."""
        index = 0
        if duration_s > _SMALLEST_S:
            index = min(BUCKETS - 1, int(math.log(duration_s / _SMALLEST_S) / _LOG_GROWTH) + 1)
        self._counts[index] += 1
        self._total += 1

    def add_counts(self, counts: Mapping[int, int]) -> None:
        """Count what another histogram has counted."""
        for index, count in counts.items():
            self._counts[index] += count
            self._total += count

    def counts(self) -> dict[int, int]:
        """Count by bucket, empty ones left out."""
        return {index: count for index, count in enumerate(self._counts) if count}

    def mean_s(self) -> float | None:
        """The mean duration; None for an empty histogram."""
        if not self._total:
            return None
        total_s = sum(count * middle_s(index) for index, count in enumerate(self._counts) if count)
        return total_s / self._total

    def quantile_s(self, share: float) -> float | None:
        """The duration that ``share`` of them do not exceed; None for an empty histogram."""
        if not self._total:
            return None
        rank = max(1, math.ceil(share * self._total))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if seen >= rank:
                return middle_s(index)
        raise AssertionError("the buckets hold fewer durations than were counted")

    def clear(self) -> None:
        """Start afresh."""
        self._counts = [0] * BUCKETS
        self._total = 0


def add_latencies(total: dict[str, dict[int, int]], more: LatencyCounts) -> None:
    """Add the counts of ``more`` to those of ``total``."""
    for name, counts in more.items():
        of = total.setdefault(name, {})
        for bucket, count in counts.items():
            of[bucket] = of.get(bucket, 0) + count


def middle_s(index: int) -> float:
    """The duration that stands for those of bucket ``index``."""
    return float(_SMALLEST_S * _GROWTH ** (index - 0.5))
