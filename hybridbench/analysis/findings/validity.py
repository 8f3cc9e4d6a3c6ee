"""Whether a run is conclusive: enough samples, no gaps, the trigger paths covered, and no
interference between engine and measurement: a paused or starved worker, a clock jump, a full disk,
swapping, expensive probes, a missing metric.

The limits are wide: memory is judged by time *and* by work, so a slow machine is acceptable, but
one that was suspended is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import ClassVar

import numpy as np

from hybridbench.analysis.facts.counters import bare
from hybridbench.analysis.facts.facts import Facts, Missed
from hybridbench.analysis.facts.processes import memory_series
from hybridbench.analysis.facts.readings import LARGEST
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.findings.words import listed, times
from hybridbench.analysis.record import (
    BUNDLED_DRIVERS,
    FloatArray,
    LatencySeries,
    RunRecord,
    Series,
)
from hybridbench.foundation.latency import E2E, TTFT
from hybridbench.foundation.metrics import MEMORY, METRICS, Check
from hybridbench.foundation.units import format_bytes, format_count, format_duration, format_percent
from hybridbench.records.events import (
    ClockJump,
    DiskFull,
    Gap,
    ProbeLeftOut,
    RequestRefused,
    WorkloadFailed,
)
from hybridbench.records.finding import Basis, NextCommand, Words
from hybridbench.records.load import LATE
from hybridbench.records.manifest import OBSERVED
from hybridbench.records.verdict import Finding, VerdictKind

_FEWEST_SAMPLES = 10
_GAP_SHARE = 0.1  # of the window that may be missing
_GAP_TIMES = 10.0  # a gap is this many usual intervals, and at least ten seconds
_GAP_LEAST_S = 10.0
_LATE_SHARE = 0.1
_LATE_TIMES = 3.0
_LATE_LEAST_S = 2.0
_SWAP_SHARE = 0.01  # of the process's memory
_SWAP_LEAST = 16 * 2.0**20

STEPS = "events.finishes"
_FAILED = "events.requests_failed."
_STEAL = "host_steal_s"

# Shares and lengths within the judged window.
_SILENT_SHARE = 0.1
_CLOCK_SHARE = 0.1
_CLOCK_LEAST_S = 60.0
_WAITING_SHARE = 0.9
_STEAL_SHARE = 0.5
_PROBE_SHARE = 0.1
# A worker that does not answer: for this many of its usual intervals, and at least this long.
_SILENT_TIMES = 5.0
_SILENT_LEAST_S = 5.0
# In shorter windows a slow probe may not have reported yet, so its metric is not called missing.
_MISSED_AFTER_S = 180.0

# Limits for the load client: its lateness, relative to the time to first token (or the end) at the
# same quantile, and its CPU use.
_CLIENT_QUANTILE = 0.99
_CLIENT_LATE_S = 0.02
_CLIENT_LATE_OF = 0.2
_CLIENT_CPU_SHARE = 0.95

_COUNTERS_NAMED = 2
_SERIES_NAMED = 3


class _Void(Basis, frozen=True, kw_only=True):
    """Invalidates everything the run fitted, and the absence of everything it did not find."""

    leads_to: ClassVar[str] = "INVALID"


class TooFewSamples(_Void, frozen=True, kw_only=True):
    """There is nothing to judge."""

    kind: ClassVar[str] = "too-few-samples"
    meaning: ClassVar[str] = "The run has fewer than 10 samples of private memory."

    samples: int

    def words(self, found: Finding) -> Words:
        were = "was" if self.samples == 1 else "were"
        return Words(
            f"only {times(self.samples, 'sample')} of the worker's memory {were} taken; run longer"
        )


class NotCovered(_Void, frozen=True, kw_only=True):
    """The traffic missed the events that the profile is meant to test."""

    kind: ClassVar[str] = "coverage"
    meaning: ClassVar[str] = (
        "Events that the profile requires did not occur often enough to test their path."
    )

    missing: tuple[Missed, ...]

    def words(self, found: Finding) -> Words:
        each = [missed.text for missed in self.missing]
        return Words(
            f"the traffic did not cause the required events: {listed(each, _COUNTERS_NAMED)}",
            evidence=(", ".join(each),) if len(each) > _COUNTERS_NAMED else (),
        )


class ValidRefused(_Void, frozen=True, kw_only=True):
    """The engine refused requests that are valid by their profile.

    Attributes:
        refused: how many, in all segments; 0 if the run was cut off before they were counted.
        sent: requests sent, refused ones included; 0 as above.
        reason: what the engine said of the first.
    """

    kind: ClassVar[str] = "valid-refused"
    meaning: ClassVar[str] = "The engine refused requests that are valid by their profile."

    refused: int
    sent: int
    reason: str

    def words(self, found: Finding) -> Words:
        which = f"{self.refused:,} of {self.sent:,}" if self.refused else "some"
        were = "was" if self.refused == 1 else "were"
        return Words(
            f"{which} requests {were} refused although the profile makes them valid",
            evidence=(f"the first: {self.reason}",),
        )

    def advice(self, found: Finding) -> str:
        del found
        return (
            "Find the engine's check that gave the reason in the evidence. If it is right, change "
            "the settings, so that the engine can serve what the profile sends."
        )


class NothingServed(_Void, frozen=True, kw_only=True):
    """The target counts its requests, and the count did not move."""

    kind: ClassVar[str] = "nothing-served"
    meaning: ClassVar[str] = "A watched target answered no request in the judged window."

    counter: str
    judged_s: float

    def words(self, found: Finding) -> Words:
        judged = format_duration(self.judged_s)
        return Words(
            f"the target answered no request in the judged {judged}",
            evidence=(f"{bare(self.counter)} did not rise",),
        )

    def advice(self, found: Finding) -> str:
        del found
        if self.counter == BUNDLED_DRIVERS.requests:
            return "Look at the counts of refused and failed requests, and at the server's log."
        return "Look at what the load tool says: run its command by hand while the target serves."


class MostlyFailed(_Void, frozen=True, kw_only=True):
    """The server failed more requests than it answered; refusals are not failures.

    Attributes:
        answered: requests answered to their end in the judged window.
        failed: those that failed there, by kind: a status, ``error-in-answer``, ``cut-off``.
    """

    kind: ClassVar[str] = "mostly-failed"
    meaning: ClassVar[str] = "More requests of the load client failed than were answered."

    answered: int
    failed: Mapping[str, int]

    def words(self, found: Finding) -> Words:
        were = "was" if self.answered == 1 else "were"
        failed = times(sum(self.failed.values()), "request")
        return Words(
            f"{failed} failed in the judged window, and only {self.answered:,} {were} answered",
            evidence=tuple(f"{kind}: {count:,}" for kind, count in self.failed.items()),
        )

    def advice(self, found: Finding) -> str:
        del found
        return (
            "Read the server's log, and send it one such request by hand: the answer has its "
            "message. If only some requests fail, remove these from the profile."
        )


class ClientLate(_Void, frozen=True, kw_only=True):
    """The measurements reflect the client as much as the server."""

    kind: ClassVar[str] = "client-late"
    meaning: ClassVar[str] = (
        "The load client was late by more than a fifth of the time to first token, both at the "
        "99th percentile, or took all of a processor: what was measured is its own as well."
    )

    late_s: float
    cpu_share: float

    def words(self, found: Finding) -> Words:
        share, late_ms = format_percent(self.cpu_share), 1000.0 * self.late_s
        return Words(
            f"the load client was {late_ms:,.0f} ms late at the 99th percentile and took {share} "
            "of a processor: the load is not what was asked for"
        )

    def advice(self, found: Finding) -> str:
        del found
        return "Send less, or run the server and hybridbench on more processors."


class Gaps(_Void, frozen=True, kw_only=True):
    """Samples are missing."""

    kind: ClassVar[str] = "gaps"
    meaning: ClassVar[str] = "Samples are missing for a tenth of the judged window."

    missing_s: float
    judged_s: float

    def words(self, found: Finding) -> Words:
        missing, judged = format_duration(self.missing_s), format_duration(self.judged_s)
        return Words(f"{missing} of the judged {judged} have no samples")


class SamplerLate(_Void, frozen=True, kw_only=True):
    """A ``share`` of the samples came more than ``limit_s`` late."""

    kind: ClassVar[str] = "sampler-late"
    meaning: ClassVar[str] = "Samples were taken late for a tenth of the judged window."

    share: float
    limit_s: float

    def words(self, found: Finding) -> Words:
        share, limit = format_percent(self.share), format_duration(self.limit_s)
        return Words(f"{share} of the samples were more than {limit} late")


class Swapping(_Void, frozen=True, kw_only=True):
    """The worker was swapped out."""

    kind: ClassVar[str] = "swapping"
    meaning: ClassVar[str] = "The machine swapped out part of the worker during the judged window."

    swapped_bytes: float

    def words(self, found: Finding) -> Words:
        size = format_bytes(self.swapped_bytes)
        return Words(f"the host swapped out {size} of the worker in the judged window")


class DiskIsFull(_Void, frozen=True, kw_only=True):
    """Nothing more could be written."""

    kind: ClassVar[str] = "disk-full"
    meaning: ClassVar[str] = "A write to the run directory failed; earlier data is complete."

    message: str

    def words(self, found: Finding) -> Words:
        return Words(f"the run could not be written to its end: {self.message}")

    def advice(self, found: Finding) -> str:
        del found
        return "Free space on the disk, or write elsewhere with --store, then repeat the run."


class WorkerSilent(_Void, frozen=True, kw_only=True):
    """The worker was stopped."""

    kind: ClassVar[str] = "worker-silent"
    meaning: ClassVar[str] = "The worker sent no counters for a tenth of the judged window."

    silent_s: float
    judged_s: float

    def words(self, found: Finding) -> Words:
        silent, judged = format_duration(self.silent_s), format_duration(self.judged_s)
        return Words(
            f"the worker did not answer for {silent} of the judged {judged}, as if it had been "
            "stopped"
        )


class ClockJumped(_Void, frozen=True, kw_only=True):
    """The wall clock jumped."""

    kind: ClassVar[str] = "clock-jump"
    meaning: ClassVar[str] = (
        "The wall clock deviated from the monotonic clock: the machine was suspended or its clock "
        "was set."
    )

    jumped_s: float

    def words(self, found: Finding) -> Words:
        return Words(
            f"the wall clock jumped by {format_duration(self.jumped_s)} in the judged window: the "
            "machine was suspended, or its clock was set"
        )


class Starved(_Void, frozen=True, kw_only=True):
    """The worker did not get its CPUs; ``metric`` counts the lost time."""

    kind: ClassVar[str] = "starved"
    meaning: ClassVar[str] = (
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


class ProbeStall(_Void, frozen=True, kw_only=True):
    """The bench itself interfered."""

    kind: ClassVar[str] = "probe-stall"
    meaning: ClassVar[str] = (
        "Samples, heap scans and checkpoint readings stopped the engine loop for a tenth of the "
        "judged window; draining does not count."
    )

    share: float

    def words(self, found: Finding) -> Words:
        share = format_percent(self.share)
        return Words(
            f"samples, heap scans and checkpoints stopped the engine for {share} of the judged "
            "window"
        )

    def advice(self, found: Finding) -> str:
        return (
            "Repeat the run with a longer --duration, which takes samples and heap scans less "
            "often, or raise probe.sample_every and probe.collectible_every in the profile."
        )


class MetricMissing(_Void, frozen=True, kw_only=True):
    """A gated metric that was announced but never sampled."""

    kind: ClassVar[str] = "metric-missing"
    meaning: ClassVar[str] = (
        "A gated metric that the target provides was never sampled in three minutes or more."
    )

    def words(self, found: Finding) -> Words:
        return Words(f"{found.subject} was declared by the target but never reported")


class Unreadable(Basis, frozen=True, kw_only=True):
    """Samples that no measurement can produce, by series: their magnitude exceeds ``largest``."""

    kind: ClassVar[str] = "unreadable"
    meaning: ClassVar[str] = (
        "A series has infinite values or values that no machine can have; they were left out."
    )
    leads_to: ClassVar[str] = "INCONCLUSIVE"
    next_command: ClassVar[NextCommand] = NextCommand.NONE
    decided_by_length: ClassVar[bool] = False

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

    def advice(self, found: Finding) -> str:
        return (
            "Find what wrote these samples: check the engine's counters and the sampler for the "
            "series named in the evidence."
        )


def validity_findings(facts: Facts) -> list[Finding]:
    """Return everything that makes the run inconclusive, one finding each."""
    record, window = facts.record, facts.window
    found = [*_disk_full(record), *_valid_refused(record)]
    if window is not None:
        found.extend(_interference(record, window))
        if facts.last.last_event(WorkloadFailed) is None:  # that failure would explain it
            found.extend(_nothing_served(record, window))
            found.extend(_mostly_failed(record, window))
    if facts.ended_early:
        return found
    if not record.manifest.sees_memory:
        return [*coverage_findings(facts), *found]
    series = memory_series(record)
    if series is None or len(series) < _FEWEST_SAMPLES:
        count = 0 if series is None else len(series)
        found.append(_invalid(TooFewSamples(samples=count), MEMORY))
    elif window is not None:
        t, value = window.samples(series)
        found.extend(_sampling_findings(record, window, t, value))
    return [*coverage_findings(facts), *found]


def coverage_findings(facts: Facts) -> list[Finding]:
    """Return required events that the traffic of the whole run missed; empty if it was cut
    short.
    """
    missing = () if facts.ended_early else facts.coverage.missing
    return [_invalid(NotCovered(missing=missing), "coverage")] if missing else []


def _valid_refused(record: RunRecord) -> Iterable[Finding]:
    """Yield at most one finding."""
    for first in record.all_events(RequestRefused)[:1]:
        counts = record.manifest.workload_counts
        refused, sent = counts.get("valid_refused", 0), counts.get("submitted", 0)
        basis = ValidRefused(refused=refused, sent=sent, reason=first.text)
        yield Finding(basis, VerdictKind.INVALID, "traffic", since_s=first.t_s)


def _nothing_served(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Yield at most one finding, for watched targets: profiles of our engine state requirements."""
    name = record.drivers.requests
    series = record.series.get(name)
    if record.manifest.target.kind != OBSERVED or series is None:
        return
    inside = series.between(window.start_s, window.end_s).value
    if inside.size > 1 and inside[-1] <= inside[0]:
        basis = NothingServed(counter=name, judged_s=window.duration_s)
        yield _invalid(basis, "traffic")


def _mostly_failed(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Yield at most one finding, for requests of our load client."""
    rises = {
        name: _rise(one, window) for name, one in record.series.items() if name.startswith(_FAILED)
    }
    failed = {name.removeprefix(_FAILED): rise for name, rise in rises.items() if rise}
    answered = _rise(record.series[STEPS], window) if STEPS in record.series else 0
    if sum(failed.values()) > answered:
        yield _invalid(MostlyFailed(answered=answered, failed=failed), "traffic")


def _rise(counter: Series, window: Window) -> int:
    inside = counter.between(window.start_s, window.end_s).value
    return int(inside[-1] - inside[0]) if inside.size else 0


def unreadable_findings(beyond: Mapping[str, int]) -> list[Finding]:
    """Return at most one finding: the samples dropped from ``beyond`` could have been anything."""
    if not beyond:
        return []
    basis = Unreadable(samples=dict(beyond), largest=LARGEST)
    return [Finding(basis, VerdictKind.INCONCLUSIVE, "samples")]


def _invalid(basis: Basis, subject: str) -> Finding:
    return Finding(basis, VerdictKind.INVALID, subject)


def _sampling_findings(
    record: RunRecord, window: Window, t: FloatArray, value: FloatArray
) -> Iterable[Finding]:
    if t.size < 2:
        return
    usual = float(np.median(np.diff(t)))
    gaps = _missing_s(record, window, t, usual)
    if gaps > _GAP_SHARE * window.duration_s:
        yield _invalid(Gaps(missing_s=gaps, judged_s=window.duration_s), "sampler")
    late = record.series.get("sampler_late_s")
    if late is not None:
        _, lateness = window.samples(late)
        limit = max(_LATE_LEAST_S, _LATE_TIMES * usual)
        share = float(np.mean(lateness > limit)) if lateness.size else 0.0
        if share > _LATE_SHARE:
            yield _invalid(SamplerLate(share=share, limit_s=limit), "sampler")
    swap = record.series.get("swap_bytes")
    if swap is not None:
        _, swapped = window.samples(swap)
        rise = float(np.max(swapped) - swapped[0]) if swapped.size else 0.0
        if rise > max(_SWAP_LEAST, _SWAP_SHARE * float(np.median(value))):
            yield _invalid(Swapping(swapped_bytes=rise), "host")


def _missing_s(record: RunRecord, window: Window, t: FloatArray, usual: float) -> float:
    """Return the seconds without samples; pauses of traffic are intended and do not count."""
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
    yield from _client_late(record, window)
    yield from _worker_silent(record, window)
    yield from _clock(record, window)
    yield from _starved(record, window)
    yield from _measurement_overhead(record, window)
    yield from _missing_metrics(record, window)


def _client_late(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Yield at most one finding, for a run that sends its own requests over HTTP."""
    late, share = record.latencies.get(LATE), record.series.get("client_cpu_share")
    if late is None or share is None:
        return
    late_s = _quantile_s(late, window)
    answered = record.latencies.get(TTFT) or record.latencies.get(E2E)
    of_server_s = 0.0 if answered is None else _quantile_s(answered, window)
    taken = share.between(window.start_s, window.end_s).value
    cpu_share = float(np.median(taken)) if taken.size else 0.0
    if late_s > max(_CLIENT_LATE_S, _CLIENT_LATE_OF * of_server_s) or cpu_share > _CLIENT_CPU_SHARE:
        yield _invalid(ClientLate(late_s=late_s, cpu_share=cpu_share), "client")


def _quantile_s(latencies: LatencySeries, window: Window) -> float:
    inside = (latencies.t_s >= window.start_s) & (latencies.t_s <= window.end_s)
    return latencies.where(inside).histogram().quantile_s(_CLIENT_QUANTILE) or 0.0


def _disk_full(record: RunRecord) -> Iterable[Finding]:
    """Report that the disk refused a write: later data is lost."""
    full = record.last_event(DiskFull)
    if full is not None:
        yield _invalid(DiskIsFull(message=full.text), "disk")


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
        after - before
        for before, after in pairwise(answers.tolist())
        if after - before > limit and ((samples > before) & (samples < after)).sum() > 1
    )
    if silent > _SILENT_SHARE * window.duration_s:
        yield _invalid(WorkerSilent(silent_s=silent, judged_s=window.duration_s), "worker")


def _clock(record: RunRecord, window: Window) -> Iterable[Finding]:
    jumps = [
        abs(jump.seconds)
        for jump in record.all_events(ClockJump)
        if window.start_s <= jump.t_s <= window.end_s
    ]
    jumped = sum(jumps)
    if jumped > max(_CLOCK_LEAST_S, _CLOCK_SHARE * window.duration_s):
        yield _invalid(ClockJumped(jumped_s=jumped), "host")


def _starved(record: RunRecord, window: Window) -> Iterable[Finding]:
    for name, limit in (("worker_cpu_wait_s", _WAITING_SHARE), (_STEAL, _STEAL_SHARE)):
        share = share_of_time(record.series.get(name), window)
        if share > limit:
            yield _invalid(Starved(metric=name, share=share), "host")


def _measurement_overhead(record: RunRecord, window: Window) -> Iterable[Finding]:
    share = share_of_time(record.series.get("probe_stop_s"), window)
    if share > _PROBE_SHARE:
        yield _invalid(ProbeStall(share=share), "probe")


def _missing_metrics(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Yield gated metrics that the target declares but never delivered."""
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
            yield _invalid(MetricMissing(), name)


def share_of_time(series: Series | None, window: Window) -> float:
    """Return the growth of a cumulative time as a share of the window; 0 if it was not sampled."""
    if series is None or window.duration_s <= 0:
        return 0.0
    seen = series.between(window.start_s, window.end_s)
    if len(seen) < 2:
        return 0.0
    return float(seen.value[-1] - seen.value[0]) / float(seen.t_s[-1] - seen.t_s[0])
