"""Compared metrics: the direction that is worse, the margin, and the role of each.

For blocks of fixed work in a closed loop, throughput is the simplest measure of speed, so it alone
decides the answer.  If arrivals are scheduled, the schedule fixes throughput, and cost per token
decides.  The other gated metrics are guards: each can cause a regression on its own, with a wider
margin because it is noisier, but it never delays the answer.  Tails and redundant metrics (requests
per second at fixed work) are shown and never affect the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from hybridbench.analysis.comparison.records import Call, Role
from hybridbench.analysis.reading import mapping, text
from hybridbench.records.manifest import OBSERVED, Manifest


class Sense(StrEnum):
    """The meaning of a higher value."""

    SPEED = "speed"  # more is faster
    COST = "cost"  # more is slower
    SIZE = "size"  # more is worse, and is called more
    SHARE = "share"  # less is worse, and is called lower


@dataclass(frozen=True)
class ComparedMetric:
    """One value of a block, with the name that it has there.

    ``margin`` is this metric's minimum margin; None if the comparison's margin applies.  Values
    below ``least`` are raised to it, so that a share of zero still has a logarithm.
    """

    name: str
    label: str
    unit: str
    sense: Sense
    margin: float | None = None
    guards: bool = False
    least: float = 0.0

    @property
    def higher_is_worse(self) -> bool:
        return self.sense in (Sense.COST, Sense.SIZE)

    @property
    def timed(self) -> bool:
        """Whether a slower machine changes this metric."""
        return self.sense in (Sense.SPEED, Sense.COST)

    def margin_of(self, margin: float) -> float:
        """Return the metric's margin, given the comparison's ``margin``."""
        return margin if self.margin is None else max(margin, self.margin)


THROUGHPUT, REQUESTS = "throughput_tokens_per_s", "requests_per_s"
CPU_PER_TOKEN, STEP_PER_TOKEN = "cpu_ms_per_token", "step_ms_per_token"
CPU_PER_REQUEST = "cpu_ms_per_request"
MEMORY_AT_REST, PEAK_MEMORY = "rest_anon_swap_bytes", "peak_rss_bytes"

_LATENCY, _SHARE, _MEMORY = 0.10, 0.05, 0.10

COMPARED: tuple[ComparedMetric, ...] = (
    ComparedMetric(THROUGHPUT, "throughput", "tok/s", Sense.SPEED),
    ComparedMetric(REQUESTS, "requests", "1/s", Sense.SPEED),
    ComparedMetric(CPU_PER_TOKEN, "CPU per token", "ms", Sense.COST, guards=True),
    ComparedMetric(CPU_PER_REQUEST, "CPU per request", "ms", Sense.COST),
    ComparedMetric(STEP_PER_TOKEN, "step per token", "ms", Sense.COST),
    ComparedMetric("ttft_ms_p50", "TTFT p50", "ms", Sense.COST, _LATENCY, guards=True),
    ComparedMetric("ttft_ms_p99", "TTFT p99", "ms", Sense.COST, _LATENCY),
    ComparedMetric("itl_ms_p50", "ITL p50", "ms", Sense.COST, _LATENCY, guards=True),
    ComparedMetric("itl_ms_p99", "ITL p99", "ms", Sense.COST, _LATENCY),
    ComparedMetric("hit_rate", "hit rate", "ratio", Sense.SHARE, _SHARE, guards=True, least=1e-3),
    ComparedMetric(MEMORY_AT_REST, "idle memory", "B", Sense.SIZE, _MEMORY, guards=True),
    ComparedMetric(PEAK_MEMORY, "peak memory", "B", Sense.SIZE, _MEMORY, guards=True),
)

# The first of these metrics that both sides have decides the answer.
_CLOSED = (THROUGHPUT, REQUESTS, STEP_PER_TOKEN)
_OPEN = (CPU_PER_TOKEN, CPU_PER_REQUEST, STEP_PER_TOKEN, "itl_ms_p50")
PRIMARIES = frozenset({*_CLOSED, *_OPEN})

# Levels that change slowly: most of one round's value carries over into the next.
LEVELS = frozenset({MEMORY_AT_REST, PEAK_MEMORY})

_WORDS: Mapping[Sense, tuple[str, str]] = {  # better, worse
    Sense.SPEED: ("FASTER", "SLOWER"),
    Sense.COST: ("FASTER", "SLOWER"),
    Sense.SIZE: ("LESS", "MORE"),
    Sense.SHARE: ("HIGHER", "LOWER"),
}


def roles(present: Set[str], *, open_loop: bool) -> dict[str, Role]:
    """Return the role of each compared metric in ``present``, in table order."""
    primary = next((name for name in (_OPEN if open_loop else _CLOSED) if name in present), None)
    out: dict[str, Role] = {}
    for metric in COMPARED:
        if metric.name in present:
            guard = Role.GUARD if metric.guards else Role.SHOWN
            out[metric.name] = Role.PRIMARY if metric.name == primary else guard
    return out


def word_of(metric: ComparedMetric, call: Call) -> str:
    """Return the metric's word for the call: a lower cost is FASTER, a larger size MORE."""
    better, worse = _WORDS[metric.sense]
    return {Call.BETTER: better, Call.WORSE: worse}.get(call, call.value)


def is_open_loop(manifests: Sequence[Manifest]) -> bool:
    """Whether requests arrived, or may have arrived, on a schedule instead of as others finished.

    The arrivals of traffic that another program sent are unknown.
    """
    for manifest in manifests:
        if manifest.trace is not None or manifest.target.kind == OBSERVED:
            return True
        arrival = mapping(manifest.profile.resolved, "arrival")
        if text(arrival, "process", "closed") != "closed":
            return True
    return False
