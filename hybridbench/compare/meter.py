"""Measure one block: speed, cost and latencies, from the worker's messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hybridbench.foundation.latency import LatencyCounts
from hybridbench.foundation.metrics import AT_REST
from hybridbench.records.events import Event
from hybridbench.records.messages import Ended, StepEvents
from hybridbench.records.processes import ProcessSample
from hybridbench.runs.driver import Driver
from hybridbench.runs.recorder import Sink
from hybridbench.targets.target import Drive
from hybridbench.workload.actions import Workload

_MS = 1000.0


@dataclass
class Tally:
    """Totals of one block's requests; memory grows with their number only."""

    ended: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    last_end_s: float = -math.inf  # the worker's timestamp
    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens served: prompt tokens, computed or cached, and output tokens."""
        return self.prompt_tokens + self.output_tokens

    def add(self, ended: Ended, stamp_s: float) -> None:
        """Count a request that has ended."""
        self.ended += 1
        self.last_end_s = stamp_s
        self.output_tokens += len(ended.output_ids)
        if ended.ttft_s is None:
            # Aborted before its first token: the served part of its prompt is unknown.
            return
        self.prompt_tokens += ended.prompt_tokens
        self.cached_tokens += ended.cached_tokens
        self.ttft_s.append(ended.ttft_s)
        if ended.itl_s is not None:
            self.itl_s.append(ended.itl_s)


class BlockDriver(Driver):
    """A driver that adds ended requests to the current block's tally."""

    def __init__(self, workload: Workload, target: Drive) -> None:
        super().__init__(workload, target)
        self.tally = Tally()

    def on_step_events(self, events: StepEvents) -> None:
        for ended in (*events.finished, *events.aborted):
            self.tally.add(ended, events.t_s)
        super().on_step_events(events)


class RememberingSink:
    """A sink that forwards, and keeps the last counters and the peak RSS since its last reset."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.counters: dict[str, float] = {}
        self.samples = 0  # samples with the worker's counters
        self.peak_rss_bytes = 0.0
        self.rest_bytes: float | None = None

    def sample(
        self,
        t_s: float,
        phase: str,
        metrics: Mapping[str, float],
        latencies: LatencyCounts | None = None,
        processes: Sequence[ProcessSample] = (),
    ) -> None:
        # Dropped: the worker's clock keeps running while another version has its turn.
        del latencies
        self._sink.sample(t_s, phase, metrics, None, processes)
        self.rest_bytes = metrics.get(AT_REST, self.rest_bytes)
        self.peak_rss_bytes = max(self.peak_rss_bytes, metrics.get("rss_bytes", 0.0))
        if "step_s" in metrics:
            self.counters = dict(metrics)
            self.samples += 1

    def event(self, event: Event) -> None:
        self._sink.event(event)


@dataclass(frozen=True)
class Edges:
    """Measurements at the ends of a block, in addition to its tally.

    ``before`` and ``after`` are the worker's counters.  ``lasted_s`` is from the first request to
    the end of the last in the version's own time, and ``own_share`` is its share of the elapsed
    time: below 1 if versions take turns within the block.
    """

    lasted_s: float
    own_share: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    peak_rss_bytes: float
    rest_bytes: float | None


# Worker time per served token: counter, the block's value, and whether the counter keeps running
# while another version has its turn.
_COSTS = (
    ("step_s", "step_ms_per_token", True),
    ("worker_cpu_s", "cpu_ms_per_token", False),
)


def block_values(tally: Tally, edges: Edges) -> dict[str, float]:
    """Return the values of a block by metric, without those it could not measure.

    ``throughput_tokens_per_s`` counts served tokens, so a lost cache hit costs time but adds no
    tokens.
    """
    values = {"peak_rss_bytes": edges.peak_rss_bytes}
    if edges.rest_bytes is not None:
        values[AT_REST] = edges.rest_bytes
    # The worker's clock keeps running while another version has its turn.
    values.update(_quantiles("ttft", tally.ttft_s, edges.own_share))
    values.update(_quantiles("itl", tally.itl_s, edges.own_share))
    if tally.prompt_tokens:
        values["hit_rate"] = tally.cached_tokens / tally.prompt_tokens
    lasted_s = edges.lasted_s
    if not tally.tokens or lasted_s <= 0:
        return values
    values["block_s"] = lasted_s
    values["tokens"] = tally.tokens
    values["requests"] = tally.ended
    values["throughput_tokens_per_s"] = tally.tokens / lasted_s
    values["requests_per_s"] = tally.ended / lasted_s
    for counter, name, runs_on in _COSTS:
        if counter in edges.before and counter in edges.after:
            spent_s = edges.after[counter] - edges.before[counter]
            spent_s *= edges.own_share if runs_on else 1.0
            values[name] = _MS * spent_s / tally.tokens
    return values


def _quantiles(name: str, durations_s: list[float], own_share: float) -> dict[str, float]:
    if not durations_s:
        return {}
    p50, p99 = _MS * own_share * np.quantile(durations_s, [0.5, 0.99])
    return {f"{name}_ms_p50": float(p50), f"{name}_ms_p99": float(p99)}
