"""The metrics of a comparison: which way is worse, how much counts, and what each may decide.

Blocks of fixed work on one closed loop make throughput the plainest measure of speed, so the
answer rests on it alone.  Where arrivals are scheduled, throughput is that of the schedule, and
the answer rests on what a token costs.  The other gated metrics are guards: they can turn the
answer red on their own, with wider margins because they are noisier, and hold nothing up.  Tails
and repetitions of the same fact (requests a second at fixed work) are shown and never gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from hybridbench.analysis.comparison.records import Call, Role
from hybridbench.analysis.reading import mapping, text
from hybridbench.records.manifest import OBSERVED, Manifest


class Sense(StrEnum):
    """What a rise means."""

    SPEED = "speed"  # more is faster
    COST = "cost"  # more is slower
    SIZE = "size"  # more is worse, and is called more
    SHARE = "share"  # less is worse, and is called lower


@dataclass(frozen=True)
class ComparedMetric:
    """One value of a block, by the name it has there.

    ``margin`` is None where the comparison's own holds, else the least margin of this metric.
    ``least`` replaces smaller values, so that a share that falls to nothing keeps a logarithm.
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
        """Whether a slower machine changes it."""
        return self.sense in (Sense.SPEED, Sense.COST)

    def margin_of(self, margin: float) -> float:
        """The share that counts, where the comparison's is ``margin``."""
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

# What the answer rests on, the first that both sides have.
_CLOSED = (THROUGHPUT, REQUESTS, STEP_PER_TOKEN)
_OPEN = (CPU_PER_TOKEN, CPU_PER_REQUEST, STEP_PER_TOKEN, "itl_ms_p50")
PRIMARIES = frozenset({*_CLOSED, *_OPEN})

# A level that creeps: what one round has of it the next still has.
LEVELS = frozenset({MEMORY_AT_REST, PEAK_MEMORY})

_WORDS: Mapping[Sense, tuple[str, str]] = {  # better, worse
    Sense.SPEED: ("FASTER", "SLOWER"),
    Sense.COST: ("FASTER", "SLOWER"),
    Sense.SIZE: ("LESS", "MORE"),
    Sense.SHARE: ("HIGHER", "LOWER"),
}


def roles(present: Set[str], *, open_loop: bool) -> dict[str, Role]:
    """The role of each metric in ``present`` that is compared at all, in the table's order."""
    primary = next((name for name in (_OPEN if open_loop else _CLOSED) if name in present), None)
    out: dict[str, Role] = {}
    for metric in COMPARED:
        if metric.name in present:
            guard = Role.GUARD if metric.guards else Role.SHOWN
            out[metric.name] = Role.PRIMARY if metric.name == primary else guard
    return out


def word_of(metric: ComparedMetric, call: Call) -> str:
    """The call in the metric's own word: a cost that falls is FASTER, a size that grows MORE."""
    better, worse = _WORDS[metric.sense]
    return {Call.BETTER: better, Call.WORSE: worse}.get(call, call.value)


def is_open_loop(manifests: Sequence[Manifest]) -> bool:
    """Whether requests came on a schedule of their own rather than as others ended; what somebody
    else sent may have.
    """
    for manifest in manifests:
        if manifest.trace is not None or manifest.target.kind == OBSERVED:
            return True
        arrival = mapping(manifest.profile.resolved, "arrival")
        if text(arrival, "process", "closed") != "closed":
            return True
    return False
