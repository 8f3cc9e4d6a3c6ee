"""Growth that is the bench's own doing: memory that answering probes took and never gave back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridbench.analysis.findings import Finding, MetricResult, Rate, VerdictKind
from hybridbench.analysis.growth import rate_text
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.validity import MEMORY
from hybridbench.metrics import Unit
from hybridbench.units import format_bytes

HELD = "observer_held_bytes"
# Of the worker's growth: from this share on, the run says more about the bench than the engine.
_EXPLAINS = 0.5
_MIN_LOOKS = 8


def observer_findings(record: RunRecord, results: Sequence[MetricResult]) -> list[Finding]:
    """At most one: the worker grows, and looking at it explains half of that or more."""
    memory = next((r for r in results if r.metric == MEMORY and r.outcome == "LEAK"), None)
    held = record.series.get(HELD)
    grown = None if memory is None else memory.rate_per_hour
    if memory is None or grown is None or held is None:
        return []
    seen = held.between(*memory.window_s)
    if len(seen) < _MIN_LOOKS:
        return []
    left = np.diff(seen.value)
    # What every look leaves, and not what another thread happened to allocate during one of them.
    per_look = float(np.median(left))
    error = 1.25 * float(np.std(left, ddof=1)) / float(np.sqrt(left.size))
    hours = float(seen.t_s[-1] - seen.t_s[0]) / 3600.0
    looks_per_hour = left.size / hours
    rate = Rate(
        per_look * looks_per_hour,
        (per_look - 2 * error) * looks_per_hour,
        (per_look + 2 * error) * looks_per_hour,
        Unit.BYTES.value,
        "h",
    )
    share = rate.lower / grown.value
    if share < _EXPLAINS:
        return []
    return [
        Finding(
            kind="observer-grows",
            verdict=VerdictKind.INVALID,
            subject="the bench itself",
            title=f"looking at the worker makes it grow: {format_bytes(per_look)} a look, "
            f"{rate_text(rate)}; the run says nothing about the engine's own growth",
            driver=None,
            rates=(rate, Rate(per_look, per_look - error, per_look + error, "B", "look")),
            cause="answers to probes are kept, or grow with every one",
            evidence=(
                f"of {rate_text(grown)} in all, {min(share, 1.0):.0%} or more came "
                f"while {len(seen)} answers were made",
            ),
            since_s=float(seen.t_s[0]),
        )
    ]
