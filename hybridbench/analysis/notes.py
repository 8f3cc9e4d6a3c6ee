"""What a reader must know of a run beside its findings: how it went, and what was not seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.limits import planned_s
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.metric_trend import LEAK_WITHOUT_STEADY_S, probes_left_out
from hybridbench.labels import unlabelled
from hybridbench.metrics import MEMORY, METRICS, Check
from hybridbench.records.codec import to_json
from hybridbench.records.codes import NoteCode
from hybridbench.records.events import (
    Checkpoint,
    DiskFull,
    Extended,
    ExtensionEnded,
    Interrupted,
    Reclaim,
    StoppedEarly,
    WorkloadFailed,
    kind_of,
)
from hybridbench.records.verdict import MetricResult, Note, VerdictKind, memory_result

# Of the memory at the start, before what it rose by is worth a note.
_SHARE_OF_A_FILL = 0.1


def run_notes(facts: Facts, metrics: Sequence[MetricResult] = ()) -> Iterable[Note]:
    """How the run went, and what that leaves open; ``metrics`` are those that are final."""
    record = facts.record
    yield from _how_it_ended(facts)
    yield from _extended(facts)
    if facts.window is not None and not facts.window.steady:
        yield Note(NoteCode.NO_STEADY_EVENT, {"leak_from_s": LEAK_WITHOUT_STEADY_S})
    if not facts.idle:
        yield Note(NoteCode.NO_CHECKPOINT)
    busy = len(record.all_events(Checkpoint)) - len(facts.idle)
    if busy:
        yield Note(NoteCode.BUSY_CHECKPOINTS, {"checkpoints": busy})
    yield from _levelled_off(facts, metrics)
    yield from _reclaimed(record)
    yield from _measurement_overhead(record)
    yield from _cpu_wait(facts)


def not_seen(facts: Facts) -> tuple[str, ...]:
    """The gating metrics without a single sample."""
    given_up = probes_left_out(facts.record)
    series = facts.record.series
    sampled = [unlabelled(n) for n, one in series.items() if len(one) and n not in given_up]
    missing = []
    for spec in METRICS:
        if spec.check not in (Check.TREND, Check.EXACT):
            continue
        if spec.on_device and facts.record.manifest.model.device == "cpu":
            continue
        head, star, tail = spec.name.partition("*")
        if star:
            shown = any(name.startswith(head) and name.endswith(tail) for name in sampled)
        else:
            shown = spec.name in sampled
        if not shown and not (facts.idle and spec.name.startswith("pool.")):
            missing.append(spec.name)
    return tuple(missing)


def _how_it_ended(facts: Facts) -> Iterable[Note]:
    record = facts.record
    if record.manifest.defects_as_of:
        yield Note(NoteCode.DEFECTS_AS_OF, {"releases": list(record.manifest.defects_as_of)})
    stopped = record.last_event(StoppedEarly)
    if stopped is not None:
        yield Note(NoteCode.STOPPED_EARLY, {"at_s": stopped.t_s, "message": stopped.text})
    failed = record.last_event(WorkloadFailed)
    if failed is not None:
        message = failed.text.rstrip(".")
        yield Note(NoteCode.WORKLOAD_FAILED, {"at_s": failed.t_s, "message": message})
    interrupted = record.last_event(Interrupted)
    if interrupted is not None:
        yield Note(NoteCode.INTERRUPTED, {"at_s": interrupted.t_s})
    elif facts.ended_early and facts.coverage.missing:
        cuts = [record.last_event(kind) for kind in (DiskFull, WorkloadFailed)]
        cut_by = next((kind_of(cut) for cut in cuts if cut is not None), "")
        missing = [to_json(missed) for missed in facts.coverage.missing]
        yield Note(NoteCode.NOT_COVERED, {"cut_by": cut_by, "missing": missing})


def _extended(facts: Facts) -> Iterable[Note]:
    """That the run went on beyond its planned time, and why."""
    began = facts.record.last_event(Extended)
    if began is None:
        return
    ended = facts.last.last_event(ExtensionEnded)
    yield Note(
        NoteCode.EXTENDED,
        {
            "limit_s": began.limit_s,
            "planned_s": planned_s(facts.record),
            "message": began.text,
            **({} if ended is None else {"by_s": ended.t_s - began.t_s}),
        },
    )


def _levelled_off(facts: Facts, metrics: Sequence[MetricResult]) -> Iterable[Note]:
    """That private memory rose before it was judged and no longer does: a fill, and no leak."""
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
        data = {"rise_bytes": rise, "in_s": start_s - float(series.t_s[0])}
        yield Note(NoteCode.LEVELLED_OFF, data)


def _reclaimed(record: RunRecord) -> Iterable[Note]:
    given = record.last_event(Reclaim)
    if given is None:
        return
    trimmed, flushed = given.after_trim_bytes, given.after_flush_bytes
    yield Note(
        NoteCode.RECLAIMED,
        {
            "at_rest_bytes": given.at_rest_bytes,
            "trimmed_bytes": given.at_rest_bytes - trimmed,
            "flushed_bytes": trimmed - flushed,
            "collected_bytes": flushed - given.after_collect_bytes,
        },
    )


def _cpu_wait(facts: Facts) -> Iterable[Note]:
    """How long the worker waited for a processor: what a busy machine cost it."""
    waits = facts.record.series.get("worker_cpu_wait_s")
    if waits is None:
        return
    if facts.window is not None:
        waits = waits.between(facts.window.start_s, facts.window.end_s)
    if len(waits) < 2:
        return
    waited_s, watched_s = (float(at[-1] - at[0]) for at in (waits.value, waits.t_s))
    yield Note(NoteCode.CPU_WAIT, {"waited_s": waited_s, "watched_s": watched_s})


def _measurement_overhead(record: RunRecord) -> Iterable[Note]:
    stopped = record.series.get("probe_stop_s")
    if stopped is None or len(stopped) < 2:
        return
    elapsed_s = float(stopped.t_s[-1] - stopped.t_s[0])
    share = float(stopped.value[-1] - stopped.value[0]) / max(elapsed_s, 1e-9)
    scans = record.series.get("gc_collectible_objects")
    yield Note(
        NoteCode.OVERHEAD, {"share": share, "heap_scans": 0 if scans is None else len(scans)}
    )
