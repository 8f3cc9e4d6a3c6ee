"""Whether a run can prove anything: enough samples, no gaps, the trigger paths covered, and nothing
between the engine and the measurement: a paused or starved worker, a clock that jumped, a full
disk, swapping, probes that weighed too much, a metric that never came.

The limits are wide: memory is judged per time *and* per work, so a slow machine is no objection,
and one that stood still is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.metrics import MEMORY, METRICS, Check
from hybridbench.records.codes import FindingCode
from hybridbench.records.events import ClockJump, DiskFull, Gap, ProbeLeftOut, WorkloadFailed
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Finding, VerdictKind, untyped

_STANDS = (
    VerdictKind.LEAK,
    VerdictKind.INVARIANT,
    VerdictKind.CRASHED,
    VerdictKind.DEGRADED,
)
_FEWEST_SAMPLES = 10
_GAP_SHARE = 0.1  # of the window that may be missing
_GAP_TIMES = 10.0  # the usual interval, and at least ten seconds, is a gap
_GAP_LEAST_S = 10.0
_LATE_SHARE = 0.1
_LATE_TIMES = 3.0
_LATE_LEAST_S = 2.0
_SWAP_SHARE = 0.01  # of the process's memory
_SWAP_LEAST = 16 * 2.0**20

STEPS = "events.finishes"

# Of the judged window.
_SILENT_SHARE = 0.1
_CLOCK_SHARE = 0.1
_CLOCK_LEAST_S = 60.0
_WAITING_SHARE = 0.9
_STEAL_SHARE = 0.5
_PROBE_SHARE = 0.1
# A worker that is asked and does not answer: this many of its usual intervals, and at least this.
_SILENT_TIMES = 5.0
_SILENT_LEAST_S = 5.0
# Slower probes than this many in a window are not missed by their absence.
_MISSED_AFTER_S = 180.0


def validity_findings(facts: Facts) -> list[Finding]:
    """Everything that makes the run prove nothing, one finding each."""
    record, window = facts.record, facts.window
    found = [*_disk_full(record)]
    if window is not None:
        found.extend(_interference(record, window))
    if facts.ended_early:
        return found
    series = record.series.get(MEMORY)
    if series is None or len(series) < _FEWEST_SAMPLES:
        count = 0 if series is None else len(series)
        found.append(_invalid(FindingCode.TOO_FEW_SAMPLES, MEMORY, samples=count))
    elif window is not None:
        t, value = window.samples(series)
        found.extend(_sampling_findings(record, window, t, value))
    return [*coverage_findings(facts), *found]


def coverage_findings(facts: Facts) -> list[Finding]:
    """What the profile is for and the traffic of the whole run never did; empty if it was cut
    short.
    """
    missing = () if facts.ended_early else facts.coverage.missing
    return [_invalid(FindingCode.COVERAGE, "coverage", missing=list(missing))] if missing else []


def workload_findings(facts: Facts, others: Sequence[Finding]) -> list[Finding]:
    """The traffic ended before its time because the workload could not go on.

    INVALID, as the run exercised less than was asked for; but what ``others`` found was measured
    before and stands: beside a leak this is only what the run leaves open.
    """
    event = facts.last.last_event(WorkloadFailed)
    if event is None:
        return []
    stands = any(finding.verdict in _STANDS for finding in others)
    kind = VerdictKind.INCONCLUSIVE if stands else VerdictKind.INVALID
    manifest = facts.record.manifest
    subject = "workload" if manifest.trace is None else "trace"
    message, planned_s = event.text.rstrip("."), manifest.planned_duration_s
    data: dict[str, JsonValue] = {"message": message, "planned_s": planned_s}
    return [untyped(FindingCode.WORKLOAD_FAILED, kind, subject, since_s=event.t_s, data=data)]


def _invalid(code: FindingCode, subject: str, **data: JsonValue) -> Finding:
    return untyped(code, VerdictKind.INVALID, subject, data=data)


def _sampling_findings(
    record: RunRecord, window: Window, t: FloatArray, value: FloatArray
) -> Iterable[Finding]:
    if t.size < 2:
        return
    usual = float(np.median(np.diff(t)))
    gaps = _missing_s(record, window, t, usual)
    if gaps > _GAP_SHARE * window.duration_s:
        judged_s = window.duration_s
        yield _invalid(FindingCode.GAPS, "sampler", missing_s=gaps, judged_s=judged_s)
    late = record.series.get("sampler_late_s")
    if late is not None:
        _, lateness = window.samples(late)
        limit = max(_LATE_LEAST_S, _LATE_TIMES * usual)
        share = float(np.mean(lateness > limit)) if lateness.size else 0.0
        if share > _LATE_SHARE:
            yield _invalid(FindingCode.SAMPLER_LATE, "sampler", share=share, limit_s=limit)
    swap = record.series.get("swap_bytes")
    if swap is not None:
        _, swapped = window.samples(swap)
        rise = float(np.max(swapped) - swapped[0]) if swapped.size else 0.0
        if rise > max(_SWAP_LEAST, _SWAP_SHARE * float(np.median(value))):
            yield _invalid(FindingCode.SWAPPING, "host", swapped_bytes=rise)


def _missing_s(record: RunRecord, window: Window, t: FloatArray, usual: float) -> float:
    """Seconds without samples; pauses of traffic are meant and do not count."""
    limit = max(_GAP_LEAST_S, _GAP_TIMES * usual)
    edges = np.concatenate([[window.start_s], t, [window.end_s]])
    silent = np.diff(edges)
    for start, end in window.pauses:
        across = (edges[:-1] <= start) & (edges[1:] >= end)
        silent[across] -= end - start
    told = sum(
        gap.seconds for gap in record.all_events(Gap) if window.start_s <= gap.t_s <= window.end_s
    )
    return max(float(silent[silent > limit].sum()), told)


def _interference(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Everything that lies outside the engine."""
    yield from _worker_silent(record, window)
    yield from _clock(record, window)
    yield from _starved(record, window)
    yield from _measurement_overhead(record, window)
    yield from _missing_metrics(record, window)


def _disk_full(record: RunRecord) -> Iterable[Finding]:
    """The disk refused a write: what came afterwards is nowhere."""
    full = record.last_event(DiskFull)
    if full is not None:
        yield _invalid(FindingCode.DISK_FULL, "disk", message=full.text)


def _worker_silent(record: RunRecord, window: Window) -> Iterable[Finding]:
    """The kernel's numbers went on while the worker's own did not: it was stopped."""
    told, seen = record.series.get(STEPS), record.series.get("rss_bytes")
    if told is None or seen is None:
        return
    answers, _ = window.samples(told)
    samples, _ = window.samples(seen)
    if answers.size < 3 or samples.size < 3:
        return
    limit = max(_SILENT_LEAST_S, _SILENT_TIMES * float(np.median(np.diff(samples))))
    silent = sum(
        after - before
        for before, after in pairwise(answers.tolist())
        if after - before > limit and ((samples > before) & (samples < after)).sum() > 1
    )
    if silent > _SILENT_SHARE * window.duration_s:
        judged_s = window.duration_s
        yield _invalid(FindingCode.WORKER_SILENT, "worker", silent_s=silent, judged_s=judged_s)


def _clock(record: RunRecord, window: Window) -> Iterable[Finding]:
    jumps = [
        abs(jump.seconds)
        for jump in record.all_events(ClockJump)
        if window.start_s <= jump.t_s <= window.end_s
    ]
    jumped = sum(jumps)
    if jumped > max(_CLOCK_LEAST_S, _CLOCK_SHARE * window.duration_s):
        yield _invalid(FindingCode.CLOCK_JUMP, "host", jumped_s=jumped)


def _starved(record: RunRecord, window: Window) -> Iterable[Finding]:
    for name, limit in (("worker_cpu_wait_s", _WAITING_SHARE), ("host_steal_s", _STEAL_SHARE)):
        share = share_of_time(record.series.get(name), window)
        if share > limit:
            yield _invalid(FindingCode.STARVED, "host", metric=name, share=share)


def _measurement_overhead(record: RunRecord, window: Window) -> Iterable[Finding]:
    share = share_of_time(record.series.get("probe_stop_s"), window)
    if share > _PROBE_SHARE:
        yield _invalid(FindingCode.PROBE_STALL, "probe", share=share)


def _missing_metrics(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Gated metrics that the target declares, and that never came."""
    if window.duration_s < _MISSED_AFTER_S:
        return
    declared = record.manifest.target.metrics
    if declared is None:
        return
    left_out = {name for probe in record.all_events(ProbeLeftOut) for name in probe.metrics}
    gated = {spec.name for spec in METRICS if spec.check is Check.TREND}
    for name in sorted(gated & {str(item) for item in declared} - left_out):
        series = record.series.get(name)
        if series is None or not len(series):
            yield _invalid(FindingCode.METRIC_MISSING, name)


def share_of_time(series: Series | None, window: Window) -> float:
    """How much of the window a cumulative time grew by, as a share; 0 where it was not sampled."""
    if series is None or window.duration_s <= 0:
        return 0.0
    seen = series.between(window.start_s, window.end_s)
    if len(seen) < 2:
        return 0.0
    return float(seen.value[-1] - seen.value[0]) / float(seen.t_s[-1] - seen.t_s[0])
