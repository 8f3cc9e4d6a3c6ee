"""Summarise what a run served in its judged window: rates, latencies, errors and hit rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.record import FloatArray
from hybridbench.foundation.latency import E2E, ITL, TTFT, LatencyHistogram
from hybridbench.foundation.metrics import Unit
from hybridbench.records.load import LATE
from hybridbench.records.verdict import ServingResult

_MS = 1000.0

_COMPUTED, _HITS = "prompt_tokens", "prefix_hit_tokens"
_INPUT = (_COMPUTED, _HITS, "session_restored_tokens")
_REJECTED = "requests_rejected"  # refused by the engine
# Failures that the load client counts, for a server that is not the bundled engine.
_FAILED = "requests_failed"
# Requests that the engine abandoned; they also count as aborts.
_GIVEN_UP = ("queue_limit_aborts", "queue_timeouts", "abort_no_room")
_ABORTED = ("abort_queued", "abort_prefill", "abort_decode")


@dataclass(frozen=True)
class _Served:
    """The segments of a run that have a window, with their counters' gains in it."""

    parts: Sequence[tuple[Facts, Window]]

    @cached_property
    def stretches(self) -> Sequence[tuple[Facts, float, float]]:
        """Each stretch of traffic, from its first sample to its last.

        Latencies are counted by sampling interval, and counts and rates must cover the same
        requests.
        """
        return [
            (facts, float(t_s[0]), float(t_s[-1]))
            for facts, window in self.parts
            for start_s, end_s in window.stretches()
            for t_s in [_sampled(facts, start_s, end_s)]
            if t_s.size > 1
        ]

    @property
    def traffic_s(self) -> float:
        return sum(end_s - start_s for _, start_s, end_s in self.stretches)

    def gain(self, *counters: str) -> int | None:
        """Return the total gain of all ``counters``; None if none was ever sampled."""
        if not any(name in facts.counters.series for facts, _ in self.parts for name in counters):
            return None
        gains = [
            np.diff(facts.counters.at(name, np.array((start_s, end_s))))[0]
            for facts, start_s, end_s in self.stretches
            for name in counters
            if name in facts.counters.series
        ]
        return round(float(sum(gains)))

    def latencies(self, name: str) -> LatencyHistogram:
        histogram = LatencyHistogram()
        for facts, start_s, end_s in self.stretches:
            series = facts.record.latencies.get(name)
            if series is not None:
                # An entry belongs to the interval that ends at its time.
                kept = series.where((series.t_s > start_s) & (series.t_s <= end_s))
                histogram.add_counts(kept.histogram().counts())
        return histogram


def _sampled(facts: Facts, start_s: float, end_s: float) -> FloatArray:
    """Return the times in a stretch of the run at which finished requests were counted."""
    series = facts.counters.series.get("finishes")
    if series is None:
        return np.zeros(0)
    return series.t_s[(series.t_s >= start_s) & (series.t_s <= end_s)]


def serving_results(facts: Facts, judged: Window | None) -> tuple[ServingResult, ...]:
    """Return one row per quantity recorded in the ``judged`` window; none without such a window.

    Checkpoint pauses are excluded, together with the requests that finished in them.
    """
    parts = [
        (part, part.window)
        for part in facts.segments
        # A segment that was cut off before it was steady has a window but is not judged.
        if part.window and judged and judged.start_s <= part.window.start_s
    ]
    served = _Served(parts)
    if served.traffic_s <= 0:
        return ()
    return (*_rates(served), *_latencies(served), *_failures(served), *_hit_rate(served))


def _rates(served: _Served) -> Iterator[ServingResult]:
    finished = served.gain("finishes")
    if finished is None:
        return
    for name, counters in (
        ("requests_per_s", ("finishes",)),
        ("output_tokens_per_s", ("output_tokens",)),
        ("input_tokens_per_s", _INPUT),
    ):
        gained = served.gain(*counters)
        if gained is not None:
            rate = gained / served.traffic_s
            yield ServingResult(name, Unit.PER_SECOND.value, rate, finished)


def _latencies(served: _Served) -> Iterator[ServingResult]:
    for name in (TTFT, ITL, E2E, LATE):
        histogram = served.latencies(name)
        mean_s = histogram.mean_s()
        if mean_s is not None:
            percentiles = (histogram.quantile_s(share) for share in (0.5, 0.9, 0.99))
            p50, p90, p99 = (None if s is None else _MS * s for s in percentiles)
            unit, count = Unit.MILLISECONDS.value, len(histogram)
            yield ServingResult(f"{name}_ms", unit, _MS * mean_s, count, p50, p90, p99)


def _failures(served: _Served) -> Iterator[ServingResult]:
    finished, aborted = served.gain("finishes"), served.gain(*_ABORTED)
    rejected, given_up = served.gain(_REJECTED), served.gain(*_GIVEN_UP) or 0
    if finished is None or aborted is None or rejected is None:
        return
    failed = served.gain(_FAILED) or 0
    ended = finished + aborted + rejected + failed
    yield ServingResult("errors", Unit.COUNT.value, rejected + failed + given_up, ended)
    yield ServingResult("aborts", Unit.COUNT.value, max(0, aborted - given_up), ended)


def _hit_rate(served: _Served) -> Iterator[ServingResult]:
    hits, computed, admitted = (served.gain(name) for name in (_HITS, _COMPUTED, "admissions"))
    if hits is not None and computed is not None and admitted is not None and hits + computed:
        share = hits / (hits + computed)
        yield ServingResult("hit_rate", Unit.RATIO.value, share, admitted)
