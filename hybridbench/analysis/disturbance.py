"""What came between the engine and the measurement: a paused or starved worker, a clock that
jumped, a disk that was full, a probe that weighed too much, a metric that never came.

Each is a reason, (kind, subject, sentence), why a run proves nothing.  The limits are wide: memory
is judged per time *and* per work, so a slow machine is no objection, and one that stood still is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from hybridbench.analysis.reading import mapping, number, text, texts
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.analysis.window import Window
from hybridbench.metrics import METRICS, Check
from hybridbench.units import format_duration

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


def disturbances(record: RunRecord, window: Window) -> Iterable[Reason]:
    """Every reason that lies outside the engine."""
    yield from _worker_silent(record, window)
    yield from _clock(record, window)
    yield from _starved(record, window)
    yield from _probes(record, window)
    yield from _missing_metrics(record, window)


def disk_full(record: RunRecord) -> Iterable[Reason]:
    """The disk refused a write: what came afterwards is nowhere."""
    event = record.last_event("disk_full")
    if event is not None:
        said = text(event.data, "text", "the disk refused a write")
        yield "disk-full", "disk", f"the run could not be written to its end: {said}"


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
        abs(number(event.data, "seconds"))
        for event in record.all_events("clock_jump")
        if window.start_s <= event.t_s <= window.end_s
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


def _probes(record: RunRecord, window: Window) -> Iterable[Reason]:
    share = share_of_time(record.series.get("probe_stop_s"), window)
    if share > _PROBE_SHARE:
        yield (
            "probe-stall",
            "probe",
            f"looking held the engine for {share:.0%} of the time: it was not itself; raise "
            "probe.collectible_every, or lower the ballast",
        )


def _missing_metrics(record: RunRecord, window: Window) -> Iterable[Reason]:
    """Gated metrics that the target declares, and that nobody ever saw."""
    if window.duration_s < _MISSED_AFTER_S:
        return
    declared = mapping(record.manifest, "target").get("metrics")
    if not isinstance(declared, Sequence) or isinstance(declared, str):
        return
    left_out = {
        name
        for event in record.all_events("probe_left_out")
        for name in texts(event.data, "metrics")
    }
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
