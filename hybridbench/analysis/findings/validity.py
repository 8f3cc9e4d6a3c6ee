"""Whether a run is conclusive: right traffic (``traffic.py``), enough samples, no interference.

Interference is a paused or starved worker, a clock jump, a full disk, swapping, expensive probes,
or a missing metric.  The limits are wide: memory is judged by time *and* by work, so a slow machine
is acceptable, but one that was suspended is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.processes import memory_series
from hybridbench.analysis.facts.readings import LARGEST
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.findings.invalid import InvalidBasis, invalid
from hybridbench.analysis.findings.traffic import (
    STEPS,
    client_findings,
    coverage_findings,
    mostly_failed,
    nothing_served,
    refused_findings,
)
from hybridbench.analysis.findings.words import listed, times
from hybridbench.analysis.record import (
    FloatArray,
    RunRecord,
    Series,
)
from hybridbench.foundation.metrics import MEMORY, METRICS, Check
from hybridbench.foundation.units import format_bytes, format_count, format_duration, format_percent
from hybridbench.records.events import (
    ClockJump,
    DiskFull,
    Gap,
    ProbeLeftOut,
    WorkloadFailed,
)
from hybridbench.records.finding import Basis, Finding, NextCommand, VerdictKind, Words

_FEWEST_SAMPLES = 10
_GAP_SHARE = 0.1  # share of the window that may be missing
_GAP_TIMES = 10.0  # a gap is this many usual intervals, and at least ten seconds
_GAP_LEAST_S = 10.0
_LATE_SHARE = 0.1
_LATE_TIMES = 3.0
_LATE_LEAST_S = 2.0
_SWAP_SHARE = 0.01  # share of the process's memory
_SWAP_LEAST = 16 * 2.0**20

_STEAL = "host_steal_s"

# Shares and lengths within the judged window.
_SILENT_SHARE = 0.1
_CLOCK_SHARE = 0.1
_CLOCK_LEAST_S = 60.0
_WAITING_SHARE = 0.9
_STEAL_SHARE = 0.5
_PROBE_SHARE = 0.1
# A worker is silent if it does not answer for this many usual intervals, and at least this long.
_SILENT_TIMES = 5.0
_SILENT_LEAST_S = 5.0
# In shorter windows a slow probe may not have reported yet, so its metric is not called missing.
_MISSED_AFTER_S = 180.0

_SERIES_NAMED = 3


class TooFewSamples(InvalidBasis, frozen=True, kw_only=True):
    """The run has too few samples to judge."""

    kind = "too-few-samples"
    meaning = "The run has fewer than 10 samples of private memory."

    samples: int

    def words(self, found: Finding) -> Words:
        were = "was" if self.samples == 1 else "were"
        return Words(
            f"only {times(self.samples, 'sample')} of the worker's memory {were} taken; run longer"
        )


class Gaps(InvalidBasis, frozen=True, kw_only=True):
    """Samples are missing."""

    kind = "gaps"
    meaning = "Samples are missing for a tenth of the judged window."

    missing_s: float
    judged_s: float

    def words(self, found: Finding) -> Words:
        missing, judged = format_duration(self.missing_s), format_duration(self.judged_s)
        return Words(f"{missing} of the judged {judged} have no samples")


class SamplerLate(InvalidBasis, frozen=True, kw_only=True):
    """A ``share`` of the samples came more than ``limit_s`` late."""

    kind = "sampler-late"
    meaning = "Samples were taken late for a tenth of the judged window."

    share: float
    limit_s: float

    def words(self, found: Finding) -> Words:
        share, limit = format_percent(self.share), format_duration(self.limit_s)
        return Words(f"{share} of the samples were more than {limit} late")


class Swapping(InvalidBasis, frozen=True, kw_only=True):
    """Part of the worker was swapped out."""

    kind = "swapping"
    meaning = "The machine swapped out part of the worker during the judged window."

    swapped_bytes: float

    def words(self, found: Finding) -> Words:
        size = format_bytes(self.swapped_bytes)
        return Words(f"the host swapped out {size} of the worker in the judged window")


class DiskIsFull(InvalidBasis, frozen=True, kw_only=True):
    """The run could not be written to its end."""

    kind = "disk-full"
    meaning = "A write to the run directory failed; earlier data is complete."
    advised = "Free space on the disk, or write elsewhere with --store, then repeat the run."

    message: str

    def words(self, found: Finding) -> Words:
        return Words(f"the run could not be written to its end: {self.message}")


class WorkerSilent(InvalidBasis, frozen=True, kw_only=True):
    """The worker did not answer, as if it had been stopped."""

    kind = "worker-silent"
    meaning = (
        "The worker sent no counters for a tenth of the judged window, and neither computed nor "
        "waited for a CPU in that time."
    )

    silent_s: float
    judged_s: float

    def words(self, found: Finding) -> Words:
        silent, judged = format_duration(self.silent_s), format_duration(self.judged_s)
        return Words(
            f"the worker did not answer for {silent} of the judged {judged}, as if it had been "
            "stopped"
        )


class ClockJumped(InvalidBasis, frozen=True, kw_only=True):
    """The wall clock jumped."""

    kind = "clock-jump"
    meaning = (
        "The wall clock deviated from the monotonic clock: the machine was suspended or its clock "
        "was set."
    )

    jumped_s: float

    def words(self, found: Finding) -> Words:
        return Words(
            f"the wall clock jumped by {format_duration(self.jumped_s)} in the judged window: the "
            "machine was suspended, or its clock was set"
        )


class Starved(InvalidBasis, frozen=True, kw_only=True):
    """The worker did not get enough CPU time; ``metric`` counts the lost time."""

    kind = "starved"
    meaning = (
        "The worker waited for a CPU for 90% of the judged window, or the hypervisor gave half of "
        "the CPU time to other machines."
    )

    metric: str
    share: float

    def words(self, found: Finding) -> Words:
        why = "the worker waited for a CPU"
        if self.metric == _STEAL:
            why = "the hypervisor ran other machines on its processors"
        return Words(f"{why} for {format_percent(self.share)} of the judged window")


class ProbeStall(InvalidBasis, frozen=True, kw_only=True):
    """The bench itself interfered."""

    kind = "probe-stall"
    meaning = (
        "Samples, heap scans and checkpoint readings stopped the engine loop for a tenth of the "
        "judged window; draining does not count, nor does waiting for a CPU."
    )
    advised = (
        "Repeat the run on a machine that is less busy, or with a longer --duration, which takes "
        "samples and heap scans less often, or raise probe.sample_every and "
        "probe.collectible_every in the profile."
    )

    share: float

    def words(self, found: Finding) -> Words:
        share = format_percent(self.share)
        return Words(
            f"samples, heap scans and checkpoints stopped the engine for {share} of the judged "
            "window, waits for a CPU not counted"
        )


class MetricMissing(InvalidBasis, frozen=True, kw_only=True):
    """A gated metric that the target declares but never delivers."""

    kind = "metric-missing"
    meaning = "A gated metric that the target provides was never sampled in three minutes or more."

    def words(self, found: Finding) -> Words:
        return Words(f"{found.subject} was declared by the target but never reported")


class Unreadable(Basis, frozen=True, kw_only=True):
    """Samples that no measurement can produce, by series: their magnitude exceeds ``largest``."""

    kind = "unreadable"
    meaning = "A series has infinite values or values that no machine can have; they were left out."
    leads_to = "INCONCLUSIVE"
    next_command = NextCommand.NONE
    decided_by_length = False
    advised = (
        "Find what wrote these samples: check the engine's counters and the sampler for the series "
        "named in the evidence."
    )

    samples: Mapping[str, int]
    largest: float

    def words(self, found: Finding) -> Words:
        count, names = sum(self.samples.values()), sorted(self.samples)
        samples, exceed, they_are = "samples", "exceed", "they are"
        if count == 1:
            samples, exceed, they_are = "sample", "exceeds", "it is"
        return Words(
            f"{format_count(count)} {samples} of {listed(names, _SERIES_NAMED)} {exceed} "
            f"{self.largest:g}, which no measurement can; {they_are} left out",
            evidence=tuple(f"{name}: {times(self.samples[name], 'sample')}" for name in names),
        )


def validity_findings(facts: Facts) -> list[Finding]:
    """Return one finding for each reason why the run is INVALID."""
    record, window = facts.record, facts.window
    found = [*_disk_full(record), *refused_findings(record)]
    if window is not None:
        found.extend(client_findings(record, window))
        found.extend(_interference(record, window))
        if facts.last.last_event(WorkloadFailed) is None:  # that failure would explain it
            found.extend(nothing_served(record, window))
            found.extend(mostly_failed(record, window))
    if facts.ended_early:
        return found
    if not record.manifest.sees_memory:
        return [*coverage_findings(facts), *found]
    series = memory_series(record)
    if series is None or len(series) < _FEWEST_SAMPLES:
        count = 0 if series is None else len(series)
        found.append(invalid(TooFewSamples(samples=count), MEMORY))
    elif window is not None:
        t, value = window.samples(series)
        found.extend(_sampling_findings(record, window, t, value))
    return [*coverage_findings(facts), *found]


def unreadable_findings(beyond: Mapping[str, int]) -> list[Finding]:
    """Return a finding if samples were dropped; ``beyond`` has their number by series."""
    if not beyond:
        return []
    basis = Unreadable(samples=dict(beyond), largest=LARGEST)
    return [Finding(basis, VerdictKind.INCONCLUSIVE, "samples")]


def _sampling_findings(
    record: RunRecord, window: Window, t: FloatArray, value: FloatArray
) -> Iterable[Finding]:
    if t.size < 2:
        return
    usual = float(np.median(np.diff(t)))
    gaps = _missing_s(record, window, t, usual)
    if gaps > _GAP_SHARE * window.duration_s:
        yield invalid(Gaps(missing_s=gaps, judged_s=window.duration_s), "sampler")
    late = record.series.get("sampler_late_s")
    if late is not None:
        _, lateness = window.samples(late)
        limit = max(_LATE_LEAST_S, _LATE_TIMES * usual)
        share = float(np.mean(lateness > limit)) if lateness.size else 0.0
        if share > _LATE_SHARE:
            yield invalid(SamplerLate(share=share, limit_s=limit), "sampler")
    swap = record.series.get("swap_bytes")
    if swap is not None:
        _, swapped = window.samples(swap)
        rise = float(np.max(swapped) - swapped[0]) if swapped.size else 0.0
        if rise > max(_SWAP_LEAST, _SWAP_SHARE * float(np.median(value))):
            yield invalid(Swapping(swapped_bytes=rise), "host")


def _missing_s(record: RunRecord, window: Window, t: FloatArray, usual: float) -> float:
    """Return the seconds without samples, excluding intended pauses of traffic."""
    limit = max(_GAP_LEAST_S, _GAP_TIMES * usual)
    edges = np.concatenate([[window.start_s], t, [window.end_s]])
    silent = np.diff(edges)
    for start, end in window.pauses:
        across = (edges[:-1] <= start) & (edges[1:] >= end)
        silent[across] -= end - start
    recorded_s = sum(
        gap.seconds for gap in record.all_events(Gap) if window.start_s <= gap.t_s <= window.end_s
    )
    return max(float(silent[silent > limit].sum()), recorded_s)


def _interference(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Yield all interference from outside the engine."""
    yield from _worker_silent(record, window)
    yield from _clock(record, window)
    yield from _starved(record, window)
    yield from _measurement_overhead(record, window)
    yield from _missing_metrics(record, window)


def _disk_full(record: RunRecord) -> Iterable[Finding]:
    """Yield a finding if a write failed; later data is lost."""
    full = record.last_event(DiskFull)
    if full is not None:
        yield invalid(DiskIsFull(message=full.text), "disk")


def _worker_silent(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Detect a stopped worker: the kernel's metrics continued, but the worker's own did not."""
    steps, seen = record.series.get(STEPS), record.series.get("rss_bytes")
    if steps is None or seen is None:
        return
    answers, _ = window.samples(steps)
    samples, _ = window.samples(seen)
    if answers.size < 3 or samples.size < 3:
        return
    limit = max(_SILENT_LEAST_S, _SILENT_TIMES * float(np.median(np.diff(samples))))
    silent = sum(
        _stood_still_s(record, window, before, after)
        for before, after in pairwise(answers.tolist())
        if after - before > limit and ((samples > before) & (samples < after)).sum() > 1
    )
    if silent > _SILENT_SHARE * window.duration_s:
        yield invalid(WorkerSilent(silent_s=silent, judged_s=window.duration_s), "worker")


def _stood_still_s(record: RunRecord, window: Window, start_s: float, end_s: float) -> float:
    """Return how long a worker that sent nothing neither computed nor waited for a CPU.

    One that did either is slow, not stopped.  Pauses of traffic do not count.
    """
    spent = [record.series.get(name) for name in ("worker_cpu_s", "worker_cpu_wait_s")]
    still_s = 0.0
    for begin_s, stop_s in window.stretches():
        part = np.clip((start_s, end_s), begin_s, stop_s)
        moved = [np.ptp(np.interp(part, one.t_s, one.value)) for one in spent if one]
        still_s += max(0.0, float(np.ptp(part) - sum(moved)))
    return still_s


def _clock(record: RunRecord, window: Window) -> Iterable[Finding]:
    jumps = [
        abs(jump.seconds)
        for jump in record.all_events(ClockJump)
        if window.start_s <= jump.t_s <= window.end_s
    ]
    jumped = sum(jumps)
    if jumped > max(_CLOCK_LEAST_S, _CLOCK_SHARE * window.duration_s):
        yield invalid(ClockJumped(jumped_s=jumped), "host")


def _starved(record: RunRecord, window: Window) -> Iterable[Finding]:
    for name, limit in (("worker_cpu_wait_s", _WAITING_SHARE), (_STEAL, _STEAL_SHARE)):
        share = share_of_time(record.series.get(name), window)
        if share > limit:
            yield invalid(Starved(metric=name, share=share), "host")


def _measurement_overhead(record: RunRecord, window: Window) -> Iterable[Finding]:
    share = share_of_time(record.series.get("probe_stop_s"), window)
    # On a busy machine a probe waits for a CPU like any step of the engine.  That is not the
    # bench's doing, so such time counts neither as a stop nor as part of the window.
    working = share_of_time(record.series.get("worker_cpu_s"), window)
    waiting = min(share_of_time(record.series.get("worker_cpu_wait_s"), window), _WAITING_SHARE)
    waits = record.series.get("probe_wait_s")
    if waits is not None and len(waits):
        share -= share_of_time(waits, window)
    elif working > 0.0:
        # A probe in another program does not count its waits: those of the worker stand for them.
        share *= working / (working + waiting)
    share /= 1.0 - waiting
    if share > _PROBE_SHARE:
        yield invalid(ProbeStall(share=share), "probe")


def _missing_metrics(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Yield a finding for each gated metric that the target declares but never delivered."""
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
            yield invalid(MetricMissing(), name)


def share_of_time(series: Series | None, window: Window) -> float:
    """Return the growth of a cumulative time as a share of the window; 0 if it was not sampled."""
    if series is None or window.duration_s <= 0:
        return 0.0
    seen = series.between(window.start_s, window.end_s)
    if len(seen) < 2:
        return 0.0
    return float(seen.value[-1] - seen.value[0]) / float(seen.t_s[-1] - seen.t_s[0])
