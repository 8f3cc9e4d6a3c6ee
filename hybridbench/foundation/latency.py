"""Latencies in constant memory: a histogram with logarithmic buckets, after HdrHistogram.

Histograms of intervals can be added, which gives percentiles for any part of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

# Latencies of each request: time to first token, inter-token latency, and time from submission to
# the last token.
TTFT, ITL, E2E = "ttft", "itl", "e2e"

# For each latency, counts by bucket; empty buckets are omitted.
LatencyCounts: TypeAlias = Mapping[str, Mapping[int, int]]

# A duration is reported as its bucket's geometric middle; the error, sqrt(1.02), is below 1%.
_GROWTH = 1.02
RELATIVE_ERROR: Final = 0.01
_LOG_GROWTH = math.log(_GROWTH)
_SMALLEST_S = 1e-5
BUCKETS: Final = 1040  # up to about two hours


class LatencyHistogram:
    """Collects durations; gives their number, and mean and quantiles within ``RELATIVE_ERROR``."""

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
        """Add the counts of another histogram."""
        for index, count in counts.items():
            self._counts[index] += count
            self._total += count

    def counts(self) -> dict[int, int]:
        """Counts by bucket, without empty buckets."""
        return {index: count for index, count in enumerate(self._counts) if count}

    def mean_s(self) -> float | None:
        """The mean duration; None for an empty histogram."""
        if not self._total:
            return None
        total_s = sum(count * middle_s(index) for index, count in enumerate(self._counts) if count)
        return total_s / self._total

    def quantile_s(self, share: float) -> float | None:
        """The quantile at ``share`` (0 to 1); None for an empty histogram."""
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
        """Remove all counts."""
        self._counts = [0] * BUCKETS
        self._total = 0


def add_latencies(total: dict[str, dict[int, int]], more: LatencyCounts) -> None:
    """Add the counts of ``more`` to those of ``total``."""
    for name, counts in more.items():
        of = total.setdefault(name, {})
        for bucket, count in counts.items():
            of[bucket] = of.get(bucket, 0) + count


def middle_s(index: int) -> float:
    """The representative duration of bucket ``index``."""
    return float(_SMALLEST_S * _GROWTH ** (index - 0.5))
