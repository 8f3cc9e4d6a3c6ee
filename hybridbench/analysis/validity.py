"""Whether a run can prove anything: enough samples, no gaps, no swapping, the trigger paths
covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.counters import event_counters
from hybridbench.analysis.disturbance import disk_full, disturbances
from hybridbench.analysis.findings import Finding, VerdictKind
from hybridbench.analysis.reading import mapping, number, numbers, text
from hybridbench.analysis.record import FloatArray, JsonValue, RunRecord
from hybridbench.analysis.segments import last_segment, segments
from hybridbench.analysis.window import Window
from hybridbench.units import format_bytes, format_count, format_duration

MEMORY = "rss_anon_swap_bytes"
# Of an event: the workload could send no further request, a trace that became unreadable for one.
WORKLOAD_FAILED = "workload_failed"

_STANDS = (
    VerdictKind.LEAK,
    VerdictKind.INVARIANT,
    VerdictKind.CRASHED,
    VerdictKind.DEGRADED,
)
_CUTS = ("crash", "worker_gone", "interrupted", "stopped_early", "disk_full", WORKLOAD_FAILED)
_FEWEST_SAMPLES = 10
_GAP_SHARE = 0.1  # of the window that may be missing
_GAP_TIMES = 10.0  # the usual interval, and at least ten seconds, is a gap
_GAP_LEAST_S = 10.0
_LATE_SHARE = 0.1
_LATE_TIMES = 3.0
_LATE_LEAST_S = 2.0
_SWAP_SHARE = 0.01  # of the process's memory
_SWAP_LEAST = 16 * 2.0**20


@dataclass(frozen=True)
class Coverage:
    """What the profile asserts that a run must have exercised, and what it did.

    The table has every counter that moved; ``required`` is None where nothing is asserted.
    """

    table: Mapping[str, JsonValue]
    missing: tuple[str, ...]


def ended_early(record: RunRecord) -> bool:
    """Whether the run was cut short: from outside, by the worker's death, or because its answer
    was there.  It could not cover everything.
    """
    return any(e.kind in _CUTS for e in last_segment(record).events)


def coverage(record: RunRecord) -> Coverage:
    """Each counter with what is required, what was seen, and whether that is enough."""
    required = numbers(mapping(record.manifest, "profile"), "assert_coverage")
    parts = [event_counters(part) for part in segments(record)]
    names = sorted({name for counters in parts for name in counters.names})
    # A new worker counts from zero.
    totals = {name: sum(c.total(name) for c in parts) for name in (*required, *names)}
    seen = {name: totals[name] for name in required}
    table: dict[str, JsonValue] = {
        name: {"required": need, "seen": seen[name], "met": seen[name] >= need}
        for name, need in required.items()
    }
    # A replayed trace asserts nothing, and a reader still wants to know what it exercised.
    for name in names:
        total = totals[name]
        if name not in required and total > 0:
            table[name] = {"required": None, "seen": total, "met": True}
    missing = tuple(
        f"{name} {format_count(seen[name])} of {format_count(need)}"
        for name, need in required.items()
        if seen[name] < need
    )
    return Coverage(table, missing)


def validity_findings(record: RunRecord, window: Window | None) -> list[Finding]:
    """Everything that makes the run prove nothing, one finding each."""
    reasons: list[tuple[str, str, str]] = [*disk_full(record)]
    if window is not None:
        reasons.extend(disturbances(record, window))
    if ended_early(record):
        return _invalid(reasons)
    series = record.series.get(MEMORY)
    if series is None or len(series) < _FEWEST_SAMPLES:
        count = 0 if series is None else len(series)
        said = f"only {count} samples of the worker's memory were taken; raise the duration"
        reasons.append(("too-few-samples", MEMORY, said))
    elif window is not None:
        t, value = window.samples(series)
        reasons.extend(_sampling_reasons(record, window, t, value))
    return [*coverage_findings(record), *_invalid(reasons)]


def coverage_findings(record: RunRecord) -> list[Finding]:
    """What the profile is for and the traffic of the whole run never did; empty if it was cut
    short.
    """
    missing = () if ended_early(record) else coverage(record).missing
    if not missing:
        return []
    said = "the traffic never took the paths that this profile is for: " + ", ".join(missing)
    return _invalid([("coverage", "coverage", said)])


def workload_findings(record: RunRecord, others: Sequence[Finding]) -> list[Finding]:
    """The traffic ended before its time because the workload could not go on.

    INVALID, as the run exercised less than was asked for; but what ``others`` found was measured
    before and stands: beside a leak this is only what the run leaves open.
    """
    event = last_segment(record).last_event(WORKLOAD_FAILED)
    if event is None:
        return []
    stands = any(finding.verdict in _STANDS for finding in others)
    kind = VerdictKind.INCONCLUSIVE if stands else VerdictKind.INVALID
    planned_s = number(record.manifest, "planned_duration_s")
    of_planned = f" (planned traffic: {format_duration(planned_s)})" if planned_s else ""
    said = text(event.data, "text", "the workload failed").rstrip(".")
    title = f"no request was sent after {format_duration(event.t_s)}{of_planned}: {said}"
    subject = "trace" if record.manifest.get("trace") else "workload"
    return [Finding("workload-failed", kind, subject, title, since_s=event.t_s)]


def _invalid(reasons: Iterable[tuple[str, str, str]]) -> list[Finding]:
    return [Finding(kind, VerdictKind.INVALID, subject, said) for kind, subject, said in reasons]


def _sampling_reasons(
    record: RunRecord, window: Window, t: FloatArray, value: FloatArray
) -> list[tuple[str, str, str]]:
    reasons: list[tuple[str, str, str]] = []
    if t.size < 2:
        return reasons
    usual = float(np.median(np.diff(t)))
    gaps = _missing_s(record, window, t, usual)
    if gaps > _GAP_SHARE * window.duration_s:
        judged = format_duration(window.duration_s)
        said = f"{format_duration(gaps)} of the {judged} judged have no samples"
        reasons.append(("gaps", "sampler", said))
    late = record.series.get("sampler_late_s")
    if late is not None:
        _, lateness = window.samples(late)
        limit = max(_LATE_LEAST_S, _LATE_TIMES * usual)
        share = float(np.mean(lateness > limit)) if lateness.size else 0.0
        if share > _LATE_SHARE:
            said = f"{share:.0%} of the samples were more than {format_duration(limit)} late"
            reasons.append(("sampler-late", "sampler", said))
    swap = record.series.get("swap_bytes")
    if swap is not None:
        _, swapped = window.samples(swap)
        rise = float(np.max(swapped) - swapped[0]) if swapped.size else 0.0
        if rise > max(_SWAP_LEAST, _SWAP_SHARE * float(np.median(value))):
            said = f"the host swapped {format_bytes(rise)} of the worker out while it was judged"
            reasons.append(("swapping", "host", said))
    return reasons


def _missing_s(record: RunRecord, window: Window, t: FloatArray, usual: float) -> float:
    """Seconds without samples; pauses of traffic are meant and do not count."""
    limit = max(_GAP_LEAST_S, _GAP_TIMES * usual)
    edges = np.concatenate([[window.start_s], t, [window.end_s]])
    silent = np.diff(edges)
    for start, end in window.pauses:
        across = (edges[:-1] <= start) & (edges[1:] >= end)
        silent[across] -= end - start
    told = sum(
        number(e.data, "seconds")
        for e in record.all_events("gap")
        if window.start_s <= e.t_s <= window.end_s
    )
    return max(float(silent[silent > limit].sum()), told)
