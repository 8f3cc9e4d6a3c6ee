"""Notes on a run besides its findings: how it went, and which metrics have no samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.limits import planned_s
from hybridbench.analysis.facts.window import LEAK_WITHOUT_STEADY_S
from hybridbench.analysis.findings.repeated_answers import repeated_answer_notes
from hybridbench.analysis.findings.words import times
from hybridbench.analysis.findings.wrong_answers import answer_notes
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.analysis.trend.metric_trend import probes_left_out
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import (
    DEVICE_MEMORY,
    DRIVER_MEMORY,
    GRAPH_MEMORY,
    MEMORY,
    METRICS,
    Check,
)
from hybridbench.foundation.units import format_bytes, format_duration, format_percent
from hybridbench.records.events import (
    Checkpoint,
    DiskFull,
    Event,
    Extended,
    ExtensionEnded,
    IdleLook,
    Interrupted,
    Reclaim,
    StoppedEarly,
    WorkloadFailed,
)
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import OBSERVED
from hybridbench.records.verdict import MetricResult, memory_result

# Counters of requests that failed, or were refused with a status unrelated to the request itself.
_REFUSED: Final = "events.requests_rejected."
_NOT_SERVED: Final = (
    "events.requests_failed.",
    *(f"{_REFUSED}{status}" for status in (401, 403, 429, 503)),
)
_ASKED_TO_WAIT: Final = "events.requests_asked_to_wait"
_WORTH_A_NOTE: Final = 0.01  # share of all requests
# Minimum rise worth a note, as a share of the memory before it.
_SHARE_OF_A_FILL = 0.1
_LEFT: Final = "events.requests_aborted"
# Readings of requests in flight that show more than the clients', and none in pauses of the load.
_READINGS: Final = 30
_PAUSED_READINGS: Final = 3
_MORE: Final = 0.5  # requests, on average; a client waits from a little before to a little after
_CUT_BY: Final[tuple[tuple[type[Event], str], ...]] = (
    (DiskFull, "the disk was full"),
    (WorkloadFailed, "the workload failed"),
)


def without_steady(processes: Sequence[str] = ()) -> str:
    """Return what a missing steady event leaves undecided: of the run, or of these processes."""
    where = f" in {', '.join(processes)}" if processes else ""
    return (
        f"no steady event was seen{where}: the judged window may include warm-up, and growth over "
        f"less than {format_duration(LEAK_WITHOUT_STEADY_S)} is not called a leak"
    )


def run_notes(facts: Facts, metrics: Sequence[MetricResult] = ()) -> Iterable[str]:
    """Yield sentences on how the run went and what that leaves undecided.

    ``metrics`` has the final results.  Whether processes are steady is reported with their results.
    """
    record = facts.record
    yield from _how_it_ended(facts)
    yield from _extended(facts)
    several = record.gates is None and any(unlabelled(name) != name for name in record.series)
    if facts.window is not None and not facts.window.steady and not several:
        yield without_steady()
    if not facts.idle and not record.all_events(IdleLook):
        yield "no idle checkpoint was taken: missing slots are judged from samples alone"
    busy = len(record.all_events(Checkpoint)) - len(facts.idle)
    if busy:
        yield f"{times(busy, 'checkpoint')} ignored: requests were in flight"
    yield from _not_served(record)
    yield from _run_for_nobody(facts)
    yield from _levelled_off(facts, metrics)
    yield from _device_taken(record, metrics)
    yield from _reclaimed(record)
    yield from answer_notes(record)
    yield from repeated_answer_notes(record)
    yield from _measurement_overhead(record)
    yield from _cpu_wait(facts)


def not_seen(facts: Facts) -> tuple[str, ...]:
    """Return the gated metrics without any sample, each with its meaning."""
    if facts.record.manifest.target.kind == OBSERVED:
        return ()  # such a target provides only the metrics that its manifest lists
    given_up = probes_left_out(facts.record)
    series = facts.record.series
    sampled = [unlabelled(n) for n, one in series.items() if len(one) and n not in given_up]
    missing = []
    for spec in METRICS:
        if spec.check not in (Check.TREND, Check.EXACT) or spec.foreign:
            continue
        if spec.on_device and facts.record.manifest.model.device == "cpu":
            continue
        head, star, tail = spec.name.partition("*")
        if star:
            shown = any(name.startswith(head) and name.endswith(tail) for name in sampled)
        else:
            shown = spec.name in sampled
        if not shown and not (facts.idle and spec.name.startswith("pool.")):
            missing.append(f"{spec.name}: {spec.meaning}")
    return tuple(missing)


def _how_it_ended(facts: Facts) -> Iterable[str]:
    record = facts.record
    if record.manifest.defects_as_of:
        releases = " and ".join(record.manifest.defects_as_of)
        yield f"this is the bundled engine with defects that {releases} had, not that release"
    stopped = record.last_event(StoppedEarly)
    if stopped is not None:
        yield f"stopped early, after {format_duration(stopped.t_s)}: {stopped.text}"
    failed = record.last_event(WorkloadFailed)
    if failed is not None:
        at, message = format_duration(failed.t_s), failed.text.rstrip(".")
        yield f"no request was sent after {at}: {message}"
    interrupted = record.last_event(Interrupted)
    if interrupted is not None:
        yield f"interrupted after {format_duration(interrupted.t_s)}; partial results"
    elif facts.ended_early and facts.coverage.missing:
        cuts = (cause for kind, cause in _CUT_BY if record.last_event(kind) is not None)
        missing = ", ".join(missed.text for missed in facts.coverage.missing)
        cause = next(cuts, "the worker died")
        yield f"{cause} before the required events were seen: {missing}"


def _extended(facts: Facts) -> Iterable[str]:
    """Report that the run continued beyond its planned time, and why."""
    began = facts.record.last_event(Extended)
    if began is None:
        return
    ended = facts.last.last_event(ExtensionEnded)
    by = "" if ended is None else f" by {format_duration(ended.t_s - began.t_s)}"
    yield (
        f"extended{by} (at most {format_duration(began.limit_s)}) beyond the planned "
        f"{format_duration(planned_s(facts.record))}, because the verdict was undecided: "
        f"{began.text}"
    )


def _not_served(record: RunRecord) -> Iterable[str]:
    """Report our requests that a server failed, or refused regardless of their contents."""
    totals = {name: one.value[-1] for name, one in record.series.items() if len(one)}
    sent = totals.get("events.requests_submitted", 0.0)
    ends = (name for name in totals if name.startswith(_NOT_SERVED))
    kinds = {name.rpartition(".")[2]: totals[name] for name in ends if totals[name]}
    if record.manifest.target.kind == OBSERVED and sum(kinds.values()) > _WORTH_A_NOTE * sent:
        each = ", ".join(f"{kind} ({count:,.0f})" for kind, count in sorted(kinds.items()))
        yield f"{sum(kinds.values()):,.0f} of {sent:,.0f} requests were not served: {each}"
    asked = totals.get(_ASKED_TO_WAIT, 0.0)
    if asked:
        yield (
            f"{times(asked, 'refusal')} asked the client to wait (Retry-After); it sent nothing in "
            "that time, up to a minute"
        )


def _levelled_off(facts: Facts, metrics: Sequence[MetricResult]) -> Iterable[str]:
    """Report that memory rose before the judged window and then levelled off, as for a fill."""
    memory = memory_result(metrics)
    series = facts.record.series.get(MEMORY)
    if memory is None or memory.outcome != VerdictKind.CLEAN or series is None:
        return
    start_s = memory.window_s[0]
    before, judged = series.value[series.t_s < start_s], series.value[series.t_s >= start_s]
    if not before.size or not judged.size:
        return
    rise = float(judged[0] - before[0])
    if rise >= _SHARE_OF_A_FILL * float(before[0]):
        within = format_duration(start_s - float(series.t_s[0]))
        yield (
            f"private memory rose by {format_bytes(rise)} in the first {within}, before the judged "
            "window, and then levelled off"
        )


def _device_taken(record: RunRecord, metrics: Sequence[MetricResult]) -> Iterable[str]:
    """Report that reserved device memory grew although the tensors did not, and what took it."""
    tensors = next((result for result in metrics if result.metric == DEVICE_MEMORY), None)
    if tensors is None or tensors.outcome != VerdictKind.CLEAN:
        return
    names = ("device_reserved_bytes", "device_inactive_split_bytes", GRAPH_MEMORY)
    (before, reserved), (_, between), (_, graphs) = (
        _change(record, name, *tensors.window_s) for name in names
    )
    # Memory of CUDA graphs is a gated metric of its own.
    more = reserved - graphs
    if before > 0.0 and more >= _SHARE_OF_A_FILL * before:
        fragments = ": the memory fragments" if between >= more / 2 else ""
        yield (
            f"PyTorch reserved {format_bytes(more)} more of the device, although its tensors did "
            f"not grow; {format_bytes(max(between, 0.0))} of that lies free between tensors"
            f"{fragments}"
        )
    before, more = _change(record, DRIVER_MEMORY, *tensors.window_s)
    if before > 0.0 and more >= _SHARE_OF_A_FILL * before:
        yield (
            f"the worker took {format_bytes(more)} more of the device outside PyTorch's allocator: "
            "look for streams, events and loaded kernels that are kept"
        )


def _change(record: RunRecord, name: str, start_s: float, end_s: float) -> tuple[float, float]:
    """A metric at the start, and its rise until the end; zeros without samples."""
    series = record.series.get(name)
    value = () if series is None else series.between(start_s, end_s).value.tolist()
    return (value[0], value[-1] - value[0]) if value else (0.0, 0.0)


def _reclaimed(record: RunRecord) -> Iterable[str]:
    """Report what the worker released at the end: slack, cache and garbage."""
    given = record.last_event(Reclaim)
    if given is None:
        return
    steps = (given.after_trim_bytes, given.after_flush_bytes, given.after_collect_bytes)
    before = (given.at_rest_bytes, *steps)
    # Memory that is allocated in between, for the answer itself, can make a difference negative.
    trim, flush, collect = (
        format_bytes(max(0.0, held - left)) for held, left in zip(before, steps, strict=False)
    )
    yield (
        f"of {format_bytes(max(0.0, given.at_rest_bytes))} held while idle, malloc_trim released "
        f"{trim}, flushing the cache {flush}, a full collection {collect}"
    )


def _run_for_nobody(facts: Facts) -> Iterable[str]:
    """Report that a server runs more requests than its clients wait for, after some have left.

    The gauges and the clients are read at different moments, so only the mean tells.  A server that
    has no request in pauses of the load has no other clients.
    """
    client, left = (facts.record.series.get(name) for name in ("client_in_flight", _LEFT))
    if not client or not left or not any(facts.load) or not left.value[-1] > 0:
        return
    more = facts.requests_at(client.t_s) - client.value
    busy = client.value > 0
    if busy.sum() < _READINGS or (more[~busy] == 0).sum() < _PAUSED_READINGS:
        return
    if more[busy].mean() > _MORE and np.median(more[busy]) > 0.0:
        yield (
            f"the server reported {more[busy].mean():.1f} more requests than clients waited for, "
            f"on average: it goes on with requests that clients aborted ({left.value[-1]:,.0f})"
        )


def _cpu_wait(facts: Facts) -> Iterable[str]:
    """Report how long the worker waited for a CPU, because the machine was busy."""
    waits = facts.record.series.get("worker_cpu_wait_s")
    if waits is None:
        return
    if facts.window is not None:
        waits = waits.between(facts.window.start_s, facts.window.end_s)
    if len(waits) < 2:
        return
    waited_s, watched_s = (float(at[-1] - at[0]) for at in (waits.value, waits.t_s))
    share = format_percent(waited_s / max(watched_s, 1e-9), 1)
    yield f"the worker waited for a CPU for {share} of {format_duration(watched_s)}"


def _measurement_overhead(record: RunRecord) -> Iterable[str]:
    stopped = record.series.get("probe_stop_s")
    if record.manifest.target.kind == OBSERVED:
        return  # the table of probes lists the overhead by process
    if stopped is None or len(stopped) < 2:
        return
    waited = record.series.get("probe_wait_s")
    stopped_s = _growth(stopped)
    waited_s = 0.0 if waited is None else _growth(waited)
    elapsed_s = max(float(stopped.t_s[-1] - stopped.t_s[0]), 1e-9)
    scans = record.series.get("gc_collectible_objects")
    yield (
        f"measurement overhead: {format_percent((stopped_s - waited_s) / elapsed_s, 2)} of "
        f"engine-loop time in the whole run ({0 if scans is None else len(scans):,} heap scans)"
    )


def _growth(counter: Series) -> float:
    return float(counter.value[-1] - counter.value[0]) if len(counter) else 0.0
