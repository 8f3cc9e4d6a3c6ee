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
from hybridbench.records.events import ClockJump, DiskFull, Gap, ProbeLeftOut, WorkloadFailed
from hybridbench.records.verdict import Finding, VerdictKind
from hybridbench.units import format_bytes, format_duration

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

Reason = tuple[str, str, str]

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
    reasons: list[tuple[str, str, str]] = [*_disk_full(record)]
    if window is not None:
        reasons.extend(_interference(record, window))
    if facts.ended_early:
        return _invalid(reasons)
    series = record.series.get(MEMORY)
    if series is None or len(series) < _FEWEST_SAMPLES:
        count = 0 if series is None else len(series)
        said = f"only {count} samples of the worker's memory were taken; raise the duration"
        reasons.append(("too-few-samples", MEMORY, said))
    elif window is not None:
        t, value = window.samples(series)
        reasons.extend(_sampling_reasons(record, window, t, value))
    return [*coverage_findings(facts), *_invalid(reasons)]


def coverage_findings(facts: Facts) -> list[Finding]:
    """What the profile is for and the traffic of the whole run never did; empty if it was cut
    short.
    """
    missing = () if facts.ended_early else facts.coverage.missing
    if not missing:
        return []
    said = "the traffic never took the paths that this profile is for: " + ", ".join(missing)
    return _invalid([("coverage", "coverage", said)])


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
    planned_s = manifest.planned_duration_s
    of_planned = f" (planned traffic: {format_duration(planned_s)})" if planned_s else ""
    said = event.text.rstrip(".")
    title = f"no request was sent after {format_duration(event.t_s)}{of_planned}: {said}"
    subject = "workload" if manifest.trace is None else "trace"
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
        gap.seconds for gap in record.all_events(Gap) if window.start_s <= gap.t_s <= window.end_s
    )
    return max(float(silent[silent > limit].sum()), told)


def _interference(record: RunRecord, window: Window) -> Iterable[Reason]:
    """Every reason that lies outside the engine."""
    yield from _worker_silent(record, window)
    yield from _clock(record, window)
    yield from _starved(record, window)
    yield from _measurement_overhead(record, window)
    yield from _missing_metrics(record, window)


def _disk_full(record: RunRecord) -> Iterable[Reason]:
    """The disk refused a write: what came afterwards is nowhere."""
    full = record.last_event(DiskFull)
    if full is not None:
        yield "disk-full", "disk", f"the run could not be written to its end: {full.text}"


def _worker_silent(record: RunRecord, window: Window) -> Iterable[Reason]:
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
        judged = format_duration(window.duration_s)
        yield (
            "worker-silent",
            "worker",
            f"the worker said nothing for {format_duration(silent)} of the {judged} judged, as if "
            "it had been stopped",
        )


def _clock(record: RunRecord, window: Window) -> Iterable[Reason]:
    jumps = [
        abs(jump.seconds)
        for jump in record.all_events(ClockJump)
        if window.start_s <= jump.t_s <= window.end_s
    ]
    jumped = sum(jumps)
    if jumped > max(_CLOCK_LEAST_S, _CLOCK_SHARE * window.duration_s):
        yield (
            "clock-jump",
            "host",
            f"the wall clock jumped by {format_duration(jumped)} against the steady one: the "
            "machine was suspended, or its clock was set, while the run was judged",
        )


def _starved(record: RunRecord, window: Window) -> Iterable[Reason]:
    limits = {
        "worker_cpu_wait_s": (_WAITING_SHARE, "the worker waited for a processor"),
        "host_steal_s": (_STEAL_SHARE, "the hypervisor gave its processors to others"),
    }
    for name, (limit, said) in limits.items():
        share = share_of_time(record.series.get(name), window)
        if share > limit:
            yield "starved", "host", f"{said} for {share:.0%} of the time"


def _measurement_overhead(record: RunRecord, window: Window) -> Iterable[Reason]:
    share = share_of_time(record.series.get("probe_stop_s"), window)
    if share > _PROBE_SHARE:
        yield (
            "probe-stall",
            "probe",
            f"heap scans and checkpoints stopped the engine for {share:.0%} of the time; raise "
            "probe.collectible_every, or lower the ballast",
        )


def _missing_metrics(record: RunRecord, window: Window) -> Iterable[Reason]:
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
            yield "metric-missing", name, f"{name} was declared by the target and never came"


def share_of_time(series: Series | None, window: Window) -> float:
    """How much of the window a cumulative time grew by, as a share; 0 where it was not sampled."""
    if series is None or window.duration_s <= 0:
        return 0.0
    seen = series.between(window.start_s, window.end_s)
    if len(seen) < 2:
        return 0.0
    return float(seen.value[-1] - seen.value[0]) / float(seen.t_s[-1] - seen.t_s[0])
