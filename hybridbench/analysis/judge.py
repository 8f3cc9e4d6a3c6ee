"""A run in, its verdict out: which analyses there are, and what their findings come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hybridbench.analysis.boundary import Boundary, failure_findings
from hybridbench.analysis.exact.checkpoints import checkpoint_findings
from hybridbench.analysis.exact.containers import container_findings
from hybridbench.analysis.exact.engine_log import log_findings
from hybridbench.analysis.exact.engine_reports import crash_findings, violation_findings
from hybridbench.analysis.exact.instances import instance_findings
from hybridbench.analysis.exact.requests import liveness_findings, waiting_findings
from hybridbench.analysis.exact.sanity import sanity_findings
from hybridbench.analysis.exact.validity import (
    WORKLOAD_FAILED,
    coverage,
    coverage_findings,
    ended_early,
    validity_findings,
    workload_findings,
)
from hybridbench.analysis.facts.counters import EventCounters, event_counters
from hybridbench.analysis.facts.limits import planned_s
from hybridbench.analysis.facts.pools import idle_checkpoints
from hybridbench.analysis.facts.readings import beyond_findings, readable
from hybridbench.analysis.facts.window import Window, judged_window, last_segment, segments
from hybridbench.analysis.findings import (
    PRECEDENCE,
    RETAINED,
    WAITING,
    Finding,
    MetricResult,
    Verdict,
    VerdictKind,
)
from hybridbench.analysis.reading import number, text
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.segment_pooling import PooledSegments, pool_segments
from hybridbench.analysis.thresholds import CheckedThresholds, check_thresholds, run_levels
from hybridbench.analysis.trend.decay import Decay, judge_decay
from hybridbench.analysis.trend.growth import (
    growth_findings,
    probe_growth_findings,
    with_split,
    with_whole,
)
from hybridbench.analysis.trend.metric_trend import (
    Effort,
    gated_metrics,
    judge_trend,
    probes_left_out,
    with_q_values,
)
from hybridbench.analysis.trend.resolution import resolution_line
from hybridbench.metrics import MEMORY, METRICS, Check
from hybridbench.units import format_byte_rate, format_bytes, format_duration

_QUICK = Effort(max_blocks=40, max_steps=1)
# Of the planned time: no trend is called a leak in the live view before (detection.md 4.5).
_FIRST_LOOK = 0.5
# The machine ended the run, and nothing is known of the engine by that.
_GAVE_OUT = ("memory-low", "disk-low", "exhaustion")


def judge(record: RunRecord, *, guarded: bool = True) -> Verdict:
    """The verdict of a finished run, with everything it rests on.

    An analysis that fails is a finding, and the others stand; unless ``guarded`` it raises.
    """
    boundary = Boundary(guarded=guarded)
    record, beyond = boundary.value("the samples", (record, {}), readable, record)
    verdict = _over_segments(record, _judge_one, boundary)
    # Levels are those of the segment that was judged for longest; slopes are the whole run's.
    whole = boundary.value("the segments", [record], segments, record)
    windows = [(part, _window(part, boundary)) for part in whole]
    part, window = max(windows, key=lambda pair: 0.0 if pair[1] is None else pair[1].duration_s)
    held = boundary.value(
        "the thresholds", CheckedThresholds((), ()), check_thresholds, part, verdict, window
    )
    levels = boundary.value("the levels", (), run_levels, part, window)
    verdict = replace(verdict, thresholds=held.results, levels=levels)
    found = [*verdict.findings, *held.findings]
    workload = boundary.listed("the workload", workload_findings, record, found)
    more = [*held.findings, *workload, *beyond_findings(beyond)]
    return _with_findings(verdict, more, boundary)


def judge_so_far(record: RunRecord, *, guarded: bool = True) -> Verdict:
    """The verdict if the run ended now, for the live view: coarser trends, and nothing yet held
    against it.
    """
    boundary = Boundary(guarded=guarded)
    record, beyond = boundary.value("the samples", (record, {}), readable, record)
    verdict = _over_segments(record, _judge_one_so_far, boundary)
    return _with_findings(verdict, beyond_findings(beyond), boundary)


def _with_findings(verdict: Verdict, more: Sequence[Finding], boundary: Boundary) -> Verdict:
    """``verdict`` with what was found beside it, and with the parts that failed."""
    more = [*more, *failure_findings(boundary.failures)]
    if not more:
        return verdict
    findings = tuple(sorted([*verdict.findings, *more], key=_rank))
    memory = next((result for result in verdict.metrics if result.metric == MEMORY), None)
    kind = findings[0].verdict
    return replace(
        verdict,
        kind=kind,
        headline=_headline(kind, findings, memory),
        findings=findings,
        failures=boundary.failures,
    )


def _judge_one(record: RunRecord, boundary: Boundary) -> Verdict:
    window = _window(record, boundary)
    counters = _counters(record, boundary)
    results = _trends(record, window, counters, Effort(), boundary)
    decay = boundary.value("the cost of work", Decay(), judge_decay, record, window)
    exact = _exact(record, counters, boundary)
    split = boundary.value("what the collector would free", exact, with_split, exact, results)
    findings = [
        *boundary.listed("the validity of the run", validity_findings, record, window),
        *boundary.listed("how the run ended", _cut_short, record, window),
        *boundary.listed("the extension", _once_clean, record, results),
        *split,
        *boundary.listed("growth", growth_findings, record, results, counters, boundary),
        *boundary.listed("the bench's own growth", probe_growth_findings, record, results),
        *decay.findings,
    ]
    findings = boundary.value("parts and their whole", findings, with_whole, findings, results)
    verdict = _verdict(record, window, results, findings, boundary)
    return replace(verdict, decay=decay.results, notes=(*verdict.notes, *decay.notes))


def _over_segments(
    record: RunRecord,
    judge_one: Callable[[RunRecord, Boundary], Verdict],
    boundary: Boundary,
) -> Verdict:
    """The verdict of a run whose worker was replaced: each segment alone, then all together."""
    parts = boundary.value("the segments", [record], segments, record)
    if len(parts) == 1:
        return judge_one(record, boundary)
    verdicts = [judge_one(part, boundary) for part in parts]
    joined = boundary.value(
        "all segments together", _apart(verdicts), pool_segments, parts, verdicts
    )
    longest = parts[joined.longest]
    counters = _counters(longest, boundary)
    # What only all segments together can have covered, and how the last of them ended.
    of_run = []
    if judge_one is not _judge_one_so_far:
        of_run = boundary.listed("the coverage", coverage_findings, record)
    findings = [
        *joined.findings,
        *of_run,
        *boundary.listed("how the run ended", _cut_short, record, joined.window),
        *boundary.listed("growth", growth_findings, longest, joined.untold, counters, boundary),
    ]
    verdict = _verdict(record, joined.window, joined.results, findings, boundary)
    memory = next((r for r in joined.results if r.metric == MEMORY), None)
    if memory is None:
        return replace(verdict, notes=joined.notes)
    length = replace(memory, window_s=(0.0, joined.judged_s))
    return replace(
        verdict,
        headline=_headline(verdict.kind, verdict.findings, length),
        can_rule_out=_resolution(length, joined.window, boundary),
        notes=joined.notes,
    )


def _apart(verdicts: Sequence[Verdict]) -> PooledSegments:
    """The segments where they cannot be put together: what each found, and no common rate."""
    findings = tuple(finding for verdict in verdicts for finding in verdict.findings)
    return PooledSegments(None, 0.0, (), (), 0, findings, ())


def _judge_one_so_far(record: RunRecord, boundary: Boundary) -> Verdict:
    window = _window(record, boundary)
    counters = _counters(record, boundary)
    planned = planned_s(record)
    elapsed = max((float(s.t_s[-1]) for s in record.series.values() if len(s)), default=0.0)
    results = _trends(record, window, counters, _QUICK, boundary)
    if elapsed < _FIRST_LOOK * planned:
        results = [_not_yet(result) for result in results]
    findings = [
        *_exact(record, counters, boundary),
        *boundary.listed("growth", growth_findings, record, results, counters, boundary),
    ]
    if window is None:
        findings.append(_no_window())
    return _verdict(record, window, results, findings, boundary)


def _window(record: RunRecord, boundary: Boundary) -> Window | None:
    return boundary.value("the judged window", None, judged_window, record)


def _counters(record: RunRecord, boundary: Boundary) -> EventCounters:
    return boundary.value("the event counters", EventCounters({}), event_counters, record)


def _exact(record: RunRecord, counters: EventCounters, boundary: Boundary) -> list[Finding]:
    """The findings that need no statistics."""
    run = boundary.listed
    known = [
        *run("instances", instance_findings, record, counters),
        *run("what waiting requests hold", waiting_findings, record, counters),
        *run("checkpoints", checkpoint_findings, record, counters),
        *run("containers", container_findings, record, counters),
        *run("liveness", liveness_findings, record, counters),
        *run("impossible counts", sanity_findings, record),
    ]
    known = [
        *known,
        *run("the engine's own checks", violation_findings, record, known),
        *run("the worker's end", crash_findings, record),
    ]
    return [*known, *run("the worker's log", log_findings, record, known)]


def _trends(
    record: RunRecord,
    window: Window | None,
    counters: EventCounters,
    effort: Effort,
    boundary: Boundary,
) -> list[MetricResult]:
    if window is None:
        return []
    results = []
    for spec in boundary.listed("the gated metrics", gated_metrics, record):
        part = f"the trend of {spec.name}"
        found = boundary.value(part, None, judge_trend, record, spec, window, counters, effort)
        results += [] if found is None else [found]
    return boundary.value("the number of metrics", results, with_q_values, results)


def _not_yet(result: MetricResult) -> MetricResult:
    if result.outcome != "LEAK":
        return result
    reason = "too-short: it grows, but the run is young"
    return replace(result, outcome="INCONCLUSIVE", reason=reason)


def _cut_short(record: RunRecord, window: Window | None) -> Iterable[Finding]:
    """What a run that ended early leaves open."""
    last = last_segment(record)
    stopped = last.last_event("stopped_early")
    if stopped is not None and text(stopped.data, "reason") in _GAVE_OUT:
        said = f"stopped before the planned end: {text(stopped.data, 'text')}"
        yield Finding("stopped-early", VerdictKind.INCONCLUSIVE, "run", said, since_s=stopped.t_s)
    if last.last_event("interrupted") is not None:
        missing = coverage(record).missing
        if missing:
            said = "interrupted before the traffic had covered: " + ", ".join(missing)
            yield Finding("interrupted", VerdictKind.INCONCLUSIVE, "coverage", said)
    if window is None:
        yield _no_window()


def _once_clean(record: RunRecord, results: Sequence[MetricResult]) -> Iterable[Finding]:
    """An extension that ended unsettled: one clean look at its end is not two."""
    ended = last_segment(record).last_event("extension_ended")
    if ended is None or ended.data.get("settled") is True:
        return
    if all(result.outcome == "CLEAN" for result in results):
        said = (
            "the extension ended before two interim analyses at clearly different data agreed; "
            "run it for longer"
        )
        yield Finding("undecided", VerdictKind.INCONCLUSIVE, "run", said, since_s=ended.t_s)


def _no_window() -> Finding:
    said = "the run ended before anything could be judged"
    return Finding("undecided", VerdictKind.INCONCLUSIVE, "run", said)


def _verdict(
    record: RunRecord,
    window: Window | None,
    results: Sequence[MetricResult],
    findings: Sequence[Finding],
    boundary: Boundary,
) -> Verdict:
    ordered = sorted(findings, key=_rank)
    kind = ordered[0].verdict if ordered else VerdictKind.CLEAN
    memory = next((result for result in results if result.metric == MEMORY), None)
    covered = boundary.value("the coverage", None, coverage, record)
    return Verdict(
        kind=kind,
        headline=_headline(kind, ordered, memory),
        findings=tuple(ordered),
        metrics=tuple(results),
        window_s=None if window is None else (window.start_s, window.end_s),
        can_rule_out=_resolution(memory, window, boundary),
        coverage={} if covered is None else covered.table,
        not_seen=boundary.value("what was not seen", (), _not_seen, record),
        notes=tuple(boundary.listed("the notes", _notes, record, window)),
    )


def _resolution(memory: MetricResult | None, window: Window | None, boundary: Boundary) -> str:
    """What the run can rule out, which rests on its memory series."""
    steady = window is not None and window.steady
    unknown = "What this run rules out is not known."
    return boundary.value("the resolution", unknown, resolution_line, memory, steady=steady)


# The findings that name a mechanism come before those that only say that something grows.
_NAMES_A_MECHANISM = (
    WAITING,
    RETAINED,
    "waiting-holds-slots",
    "residual",
    "running-without-client",
    "container-grows",
    "locks-at-idle",
)


def _rank(finding: Finding) -> tuple[int, int, str, str]:
    specific = finding.kind not in _NAMES_A_MECHANISM
    return PRECEDENCE.index(finding.verdict), int(specific), finding.kind, finding.subject


def _headline(kind: VerdictKind, findings: Sequence[Finding], memory: MetricResult | None) -> str:
    if not findings:
        if memory is None:
            return f"{kind}: no finding; the worker's memory was not judged"
        length = format_duration(memory.window_s[1] - memory.window_s[0])
        if memory.rate_per_hour is None:
            return f"{kind}: no finding in {length}; too few samples to bound memory growth"
        bound = format_byte_rate(max(0.0, memory.rate_per_hour.upper))
        return f"{kind}: no finding in {length}; memory grows by no more than {bound} (95 %)"
    more = sum(f.verdict is kind for f in findings) - 1
    others = f" (and {more} more finding{'s' * (more > 1)})" if more else ""
    return f"{kind}: {findings[0].title}{others}"


def _not_seen(record: RunRecord) -> tuple[str, ...]:
    """The gating metrics without a single sample, with what they would have shown."""
    given_up = probes_left_out(record)
    sampled = [n for n, series in record.series.items() if len(series) and n not in given_up]
    resting = bool(idle_checkpoints(record))
    missing = []
    for spec in METRICS:
        if spec.check not in (Check.TREND, Check.EXACT):
            continue
        head, star, tail = spec.name.partition("*")
        if star:
            shown = any(name.startswith(head) and name.endswith(tail) for name in sampled)
        else:
            shown = spec.name in sampled
        if not shown and not (resting and spec.name.startswith("pool.")):
            missing.append(f"{spec.name}: {spec.meaning}")
    return tuple(missing)


def _notes(record: RunRecord, window: Window | None) -> Iterable[str]:
    releases = record.manifest.get("defects_as_of")
    if isinstance(releases, Sequence) and not isinstance(releases, str) and releases:
        names = " and ".join(str(release) for release in releases)
        yield f"this is the bundled engine with defects that {names} had, not that release"
    stopped = record.last_event("stopped_early")
    if stopped is not None:
        said = text(stopped.data, "text")
        yield f"stopped early, after {format_duration(stopped.t_s)}: {said}"
    failed = record.last_event(WORKLOAD_FAILED)
    if failed is not None:
        why = text(failed.data, "text").rstrip(".")
        yield f"no request was sent after {format_duration(failed.t_s)}: {why}"
    interrupted = record.last_event("interrupted")
    if interrupted is not None:
        yield f"interrupted after {format_duration(interrupted.t_s)}: judged on what there is"
    elif ended_early(record) and coverage(record).missing:
        missing = ", ".join(coverage(record).missing)
        causes = {"disk_full": "the disk was full", WORKLOAD_FAILED: "the workload failed"}
        known = [cause for kind, cause in causes.items() if record.last_event(kind) is not None]
        cause = known[0] if known else "the worker died"
        yield f"{cause} before the traffic had covered: {missing}"
    yield from _extended(record)
    if window is not None and not window.steady:
        yield (
            "no steady event was seen: warm-up may lie in the judged window, and no trend under "
            "45m is a leak"
        )
    if not idle_checkpoints(record):
        yield "no quiescent checkpoint was taken: missing slots are judged from samples alone"
    busy = len(record.all_events("checkpoint")) - len(idle_checkpoints(record))
    if busy:
        yield f"{busy} checkpoint{'s' * (busy > 1)} met requests in the engine and prove nothing"
    yield from _reclaimed(record)
    yield from _looking(record)


def _extended(record: RunRecord) -> Iterable[str]:
    """That the run went on beyond its planned time, and why."""
    began = record.last_event("extended")
    if began is None:
        return
    ended = last_segment(record).last_event("extension_ended")
    by = "" if ended is None else f" by {format_duration(ended.t_s - began.t_s)}"
    allowed = format_duration(number(began.data, "limit_s"))
    planned = format_duration(planned_s(record))
    yield (
        f"extended{by} (at most {allowed}) beyond the planned {planned}, "
        f"as the verdict was open: {text(began.data, 'text')}"
    )


def _reclaimed(record: RunRecord) -> Iterable[str]:
    """What the worker gave back at the end: cache and slack are no leak, garbage is its own."""
    event = record.last_event("reclaim")
    if event is None:
        return
    names = ("at_rest_bytes", "after_trim_bytes", "after_flush_bytes", "after_collect_bytes")
    rest, trimmed, flushed, collected = (number(event.data, name) for name in names)
    yield (
        f"of {format_bytes(rest)} at rest, malloc_trim gave back {format_bytes(rest - trimmed)}, "
        f"flushing the cache {format_bytes(trimmed - flushed)}, "
        f"a full collection {format_bytes(flushed - collected)}"
    )


def _looking(record: RunRecord) -> Iterable[str]:
    """What the observer cost the observed."""
    stopped = record.series.get("probe_stop_s")
    if stopped is None or len(stopped) < 2:
        return
    elapsed_s = float(stopped.t_s[-1] - stopped.t_s[0])
    share = float(stopped.value[-1] - stopped.value[0]) / max(elapsed_s, 1e-9)
    censuses = record.series.get("gc_collectible_objects")
    count = 0 if censuses is None else len(censuses)
    yield f"looking held the engine loop for {share:.2%} of the time ({count} censuses)"
