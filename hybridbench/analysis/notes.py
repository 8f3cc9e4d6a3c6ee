"""What a reader must know of a run beside its findings: how it went, and what was not seen."""

from __future__ import annotations

from collections.abc import Iterable

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.limits import planned_s
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.metric_trend import probes_left_out
from hybridbench.metrics import METRICS, Check
from hybridbench.records.events import (
    Checkpoint,
    DiskFull,
    Extended,
    ExtensionEnded,
    Interrupted,
    Reclaim,
    StoppedEarly,
    WorkloadFailed,
)
from hybridbench.units import format_bytes, format_duration

_CAUSES = {DiskFull: "the disk was full", WorkloadFailed: "the workload failed"}


def run_notes(facts: Facts) -> Iterable[str]:
    """One sentence each."""
    record = facts.record
    yield from _how_it_ended(facts)
    yield from _extended(facts)
    if facts.window is not None and not facts.window.steady:
        yield (
            "no steady event was seen: warm-up may lie in the judged window, and no trend under "
            "45m is a leak"
        )
    if not facts.idle:
        yield "no idle checkpoint was taken: missing slots are judged from samples alone"
    busy = len(record.all_events(Checkpoint)) - len(facts.idle)
    if busy:
        yield f"{busy} checkpoint{'s' * (busy > 1)} ignored: requests were in flight"
    yield from _reclaimed(record)
    yield from _measurement_overhead(record)


def not_seen(facts: Facts) -> tuple[str, ...]:
    """The gating metrics without a single sample, with what they would have shown."""
    given_up = probes_left_out(facts.record)
    series = facts.record.series
    sampled = [name for name, one in series.items() if len(one) and name not in given_up]
    missing = []
    for spec in METRICS:
        if spec.check not in (Check.TREND, Check.EXACT):
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
        names = " and ".join(record.manifest.defects_as_of)
        yield f"this is the bundled engine with defects that {names} had, not that release"
    stopped = record.last_event(StoppedEarly)
    if stopped is not None:
        yield f"stopped early, after {format_duration(stopped.t_s)}: {stopped.text}"
    failed = record.last_event(WorkloadFailed)
    if failed is not None:
        why = failed.text.rstrip(".")
        yield f"no request was sent after {format_duration(failed.t_s)}: {why}"
    interrupted = record.last_event(Interrupted)
    if interrupted is not None:
        yield f"interrupted after {format_duration(interrupted.t_s)}; partial results"
    elif facts.ended_early and facts.coverage.missing:
        known = [cause for kind, cause in _CAUSES.items() if record.last_event(kind) is not None]
        cause = known[0] if known else "the worker died"
        yield f"{cause} before the traffic had covered: {', '.join(facts.coverage.missing)}"


def _extended(facts: Facts) -> Iterable[str]:
    """That the run went on beyond its planned time, and why."""
    began = facts.record.last_event(Extended)
    if began is None:
        return
    ended = facts.last.last_event(ExtensionEnded)
    by = "" if ended is None else f" by {format_duration(ended.t_s - began.t_s)}"
    allowed = format_duration(began.limit_s)
    planned = format_duration(planned_s(facts.record))
    yield (
        f"extended{by} (at most {allowed}) beyond the planned {planned}, "
        f"as the verdict was open: {began.text}"
    )


def _reclaimed(record: RunRecord) -> Iterable[str]:
    """What the worker gave back at the end: cache and slack are no leak, garbage is its own."""
    given = record.last_event(Reclaim)
    if given is None:
        return
    rest, trimmed = given.at_rest_bytes, given.after_trim_bytes
    flushed, collected = given.after_flush_bytes, given.after_collect_bytes
    yield (
        f"of {format_bytes(rest)} held while idle, malloc_trim released "
        f"{format_bytes(rest - trimmed)}, flushing the cache {format_bytes(trimmed - flushed)}, "
        f"a full collection {format_bytes(flushed - collected)}"
    )


def _measurement_overhead(record: RunRecord) -> Iterable[str]:
    stopped = record.series.get("probe_stop_s")
    if stopped is None or len(stopped) < 2:
        return
    elapsed_s = float(stopped.t_s[-1] - stopped.t_s[0])
    share = float(stopped.value[-1] - stopped.value[0]) / max(elapsed_s, 1e-9)
    scans = record.series.get("gc_collectible_objects")
    count = 0 if scans is None else len(scans)
    yield f"measurement overhead: {share:.2%} of engine-loop time ({count} heap scans)"
