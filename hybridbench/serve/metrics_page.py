"""``/metrics``: every counter and pool reported by the worker, and the server's own counts.

Here, a pool or an event is part of the metric's name, not a label as elsewhere, because a sum over
pools would be meaningless.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Final

from hybridbench.foundation.latency import E2E, ITL, TTFT, LatencyHistogram, middle_s
from hybridbench.foundation.metrics import STEADY, Kind, declared
from hybridbench.records.messages import CountersReply
from hybridbench.report.prometheus import Family, base_value, family_of

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Names that dashboards and our own scraper expect.
_LOAD: Final = {
    "running_requests": ("hybridbench:num_requests_running", "Requests in the running batch."),
    "waiting_requests": ("hybridbench:num_requests_waiting", "Requests that wait for admission."),
}
_HISTOGRAMS: Final = {
    TTFT: ("hybridbench_time_to_first_token_seconds", "Time to the first token."),
    ITL: ("hybridbench_inter_token_latency_seconds", "Time between two tokens of a request."),
    E2E: ("hybridbench_e2e_request_latency_seconds", "Time from submission to the last token."),
}
_BUCKETS_S: Final = tuple(step * 10.0**power for power in range(-3, 3) for step in (1.0, 2.5, 5.0))


class ServerCounts:
    """The server's counts: responses by HTTP status, generations by outcome."""

    def __init__(self) -> None:
        # Start all known counters at 0: one that appears later would seem to jump.
        self.generations = dict.fromkeys(("stop", "length", "abort", "refused", "error"), 0)
        self.statuses: dict[int, int] = {200: 0}

    def ended(self, outcome: str) -> None:
        """Count a generation by outcome."""
        self.generations[outcome] += 1

    def answered(self, status: int) -> None:
        """Count a response by HTTP status."""
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def families(self) -> list[Family]:
        """Both counts, for the page."""
        return [
            Family(
                "hybridbench_generations_total",
                "counter",
                "Prompts by outcome; abort: the client left, refused: the engine did not take it.",
                [({"finished_reason": reason}, n) for reason, n in self.generations.items()],
            ),
            Family(
                "hybridbench_http_responses_total",
                "counter",
                "HTTP responses by status code.",
                [({"status": str(status)}, n) for status, n in sorted(self.statuses.items())],
            ),
        ]


def render_page(
    reply: CountersReply,
    latencies: Mapping[str, LatencyHistogram],
    counts: ServerCounts,
    *,
    is_steady: bool,
) -> str:
    """Render the page.

    Args:
        reply: the worker's counters; the engine's are missing while it is stuck in a step.
        latencies: all latencies so far.
        counts: the server's own counts.
        is_steady: whether the engine has warmed up.
    """
    steady = Family(STEADY, "gauge", "1 once the engine has warmed up.", [({}, float(is_steady))])
    families = [*_worker_families(reply.values), *counts.families(), steady]
    lines = [line for family in families for line in family.lines()]
    for name, (title, meaning) in _HISTOGRAMS.items():
        lines += _histogram(title, meaning, latencies[name].counts())
    return "".join(f"{line}\n" for line in lines)


def _worker_families(values: Mapping[str, float]) -> Iterator[Family]:
    for name, value in sorted(values.items()):
        spec = declared(name)
        # A window metric covers the time since the last query, possibly by another client.
        if spec.kind is Kind.WINDOW or not math.isfinite(value):
            continue
        family = family_of(replace(spec, name=name))
        family.values.append(({}, base_value(spec, value)))
        yield family
        if name in _LOAD:
            title, meaning = _LOAD[name]
            yield Family(title, "gauge", meaning, [({}, value)])


def _histogram(title: str, meaning: str, counts: Mapping[int, int]) -> Iterator[str]:
    yield f"# HELP {title} {meaning}"
    yield f"# TYPE {title} histogram"
    within = [0] * (len(_BUCKETS_S) + 1)
    for index, n in counts.items():
        within[bisect_left(_BUCKETS_S, middle_s(index))] += n
    for limit_s, n in zip((*_BUCKETS_S, math.inf), accumulate(within), strict=True):
        limit = "+Inf" if limit_s == math.inf else f"{limit_s:g}"
        yield f'{title}_bucket{{le="{limit}"}} {n}'
    total_s = sum(n * middle_s(index) for index, n in counts.items())
    yield f"{title}_sum {total_s:.17g}"
    yield f"{title}_count {sum(within)}"
