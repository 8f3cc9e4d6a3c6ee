"""Judge a run: collect the facts, run each analysis, and combine the findings into a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.drivers.heap_growth import growing_heaps
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.limits import planned_s
from hybridbench.analysis.facts.readings import readable
from hybridbench.analysis.facts.window import FIRST_LOOK, Window
from hybridbench.analysis.findings.checkpoints import checkpoint_findings
from hybridbench.analysis.findings.containers import container_findings
from hybridbench.analysis.findings.decay import Decay, judge_decay
from hybridbench.analysis.findings.engine_log import log_findings
from hybridbench.analysis.findings.engine_reports import crash_findings, violation_findings
from hybridbench.analysis.findings.growth import (
    Undecided,
    growth_findings,
    probe_growth_findings,
    with_whole,
)
from hybridbench.analysis.findings.incomplete import (
    bench_failed,
    failure_findings,
    incomplete_findings,
    workload_findings,
)
from hybridbench.analysis.findings.instances import instance_findings, with_split
from hybridbench.analysis.findings.locks import lock_findings
from hybridbench.analysis.findings.repeated_answers import repeated_answer_findings
from hybridbench.analysis.findings.requests import liveness_findings, waiting_findings
from hybridbench.analysis.findings.restarts import restart_findings
from hybridbench.analysis.findings.sanity import sanity_findings
from hybridbench.analysis.findings.traffic import coverage_findings
from hybridbench.analysis.findings.validity import unreadable_findings, validity_findings
from hybridbench.analysis.findings.wrong_answers import wrong_answer_findings
from hybridbench.analysis.headline import in_codes, in_words
from hybridbench.analysis.levels import run_levels
from hybridbench.analysis.notes import not_seen, run_notes
from hybridbench.analysis.processes import with_processes, worst_memory
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.segment_pooling import SegmentResult, pool_segments
from hybridbench.analysis.serving import serving_results
from hybridbench.analysis.thresholds import CheckedThresholds, check_thresholds
from hybridbench.analysis.trend.metric_trend import (
    Effort,
    gated_metrics,
    judge_trend,
    with_q_values,
)
from hybridbench.analysis.trend.reasons import YoungRun
from hybridbench.analysis.trend.resolution import smallest_leak_called
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import TARGET_ENDED, ExtensionEnded, StoppedEarly
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.verdict import (
    Bounds,
    Failure,
    MetricResult,
    Verdict,
    memory_result,
    precedence,
)

_QUICK = Effort(max_blocks=40, max_steps=1)


def judge(record: RunRecord, *, guarded: bool = True) -> Verdict:
    """Return the verdict of a finished run, or of another program's series, with all its evidence.

    If an analysis fails, that becomes a finding, and the others still count; unless ``guarded``, it
    raises.
    """
    boundary = Boundary(guarded=guarded)
    record, beyond = boundary.value("the samples", (record, {}), readable, record)
    facts = Facts.of(record, boundary)
    result = _pooled(facts, [_judge_segment(part, boundary) for part in facts.segments], boundary)

    def judged(part: Facts, names: frozenset[str]) -> list[MetricResult]:
        return _trends(part, Effort(), boundary, names)

    growing = boundary.listed("the heaps of the processes", growing_heaps, facts)
    result = with_processes(record, result, judged, growing, boundary)
    if facts.parts:
        # Coverage is counted over all segments together.
        covered = boundary.listed("the coverage", coverage_findings, facts)
        result = replace(result, findings=(*result.findings, *covered))
    # Levels come from the segment with the longest judged window; slopes from the whole run.
    longest = facts.longest
    checked = boundary.value(
        "the thresholds",
        CheckedThresholds((), ()),
        check_thresholds,
        facts,
        result.metrics,
        result.decay,
    )
    levels = boundary.value("the levels", (), run_levels, longest.record, longest.window)
    findings = [*result.findings, *checked.findings]
    findings += boundary.listed("the workload", workload_findings, facts, findings)
    findings += unreadable_findings(beyond)
    findings += boundary.listed("restarts", restart_findings, facts.record)
    # Wrong answers are counted over all segments, whichever worker gave them.
    for answers in (wrong_answer_findings, repeated_answer_findings):
        findings += boundary.listed("the answers", answers, facts.record)
    verdict = _verdict(facts, result, findings, boundary)
    return _worded(replace(verdict, thresholds=checked.results, levels=levels), boundary)


def judge_so_far(record: RunRecord) -> Verdict:
    """Return a coarser verdict for the live view, as if the run ended now, without thresholds."""
    boundary = Boundary()
    record, beyond = boundary.value("the samples", (record, {}), readable, record)
    facts = Facts.of(record, boundary)
    result = _pooled(facts, [_judge_so_far(part, boundary) for part in facts.segments], boundary)

    def judged(part: Facts, names: frozenset[str]) -> list[MetricResult]:
        return _trends_so_far(part, boundary, names)

    growing = boundary.listed("the heaps of the processes", growing_heaps, facts)
    result = with_processes(record, result, judged, growing, boundary)
    findings = [*result.findings, *unreadable_findings(beyond)]
    return _worded(_verdict(facts, result, findings, boundary), boundary)


def _judge_segment(facts: Facts, boundary: Boundary) -> SegmentResult:
    """Run every analysis on one segment."""
    metrics = _trends(facts, Effort(), boundary)
    decay = boundary.value("the cost of work", Decay(), judge_decay, facts)
    exact = _exact(facts, boundary)
    findings = [
        *boundary.listed("the validity of the run", validity_findings, facts),
        *boundary.listed("how the run ended", _cut_short, facts, facts.window),
        *boundary.listed("the extension", _once_clean, facts, metrics),
        *boundary.value("what the collector would free", exact, with_split, exact, metrics),
        *boundary.listed("growth", growth_findings, facts, metrics, boundary),
        *boundary.listed("the bench's own growth", probe_growth_findings, facts.record, metrics),
        *decay.findings,
    ]
    findings = boundary.value("parts and their whole", findings, with_whole, findings, metrics)
    notes = (*boundary.listed("the notes", run_notes, facts, metrics), *decay.notes)
    return SegmentResult(facts.window, tuple(metrics), tuple(findings), notes, decay.results)


def _judge_so_far(facts: Facts, boundary: Boundary) -> SegmentResult:
    """Judge one segment for the live view; no trend of a young run is a leak."""
    metrics = _trends_so_far(facts, boundary)
    findings = [
        *_exact(facts, boundary),
        *boundary.listed("growth", growth_findings, facts, metrics, boundary),
    ]
    if facts.window is None:
        findings.append(_no_window(facts))
    notes = tuple(boundary.listed("the notes", run_notes, facts))
    return SegmentResult(facts.window, tuple(metrics), tuple(findings), notes)


def _exact(facts: Facts, boundary: Boundary) -> list[Finding]:
    """Return the findings that need no statistics."""
    run = boundary.listed
    known = [
        *run("instances", instance_findings, facts),
        *run("what waiting requests hold", waiting_findings, facts),
        *run("checkpoints", checkpoint_findings, facts),
        *run("locks", lock_findings, facts),
        *run("containers", container_findings, facts),
        *run("liveness", liveness_findings, facts),
        *run("impossible counts", sanity_findings, facts),
    ]
    # The engine's report is a separate finding only if no exact finding covers it.
    known += run("the engine's own checks", violation_findings, facts, known)
    known += run("the worker's end", crash_findings, facts.record)
    known += run("the worker's log", log_findings, facts.record, known)
    return known


def _trends_so_far(
    facts: Facts, boundary: Boundary, names: frozenset[str] | None = None
) -> list[MetricResult]:
    """Fit coarser trends; before the first look none of them is a leak."""
    metrics = _trends(facts, _QUICK, boundary, names)
    if facts.record.span_s[1] < FIRST_LOOK * planned_s(facts.record):
        return [_not_yet(result) for result in metrics]
    return metrics


def _trends(
    facts: Facts, effort: Effort, boundary: Boundary, names: frozenset[str] | None = None
) -> list[MetricResult]:
    """Fit all gated metrics, or those among ``names``."""
    if facts.window is None:
        return []
    results = []
    for spec in boundary.listed("the gated metrics", gated_metrics, facts.record):
        if names is not None and spec.name not in names:
            continue
        part = f"the trend of {spec.name}"
        found = boundary.value(part, None, judge_trend, facts, spec, effort)
        results += [] if found is None else [found]
    return boundary.value("the number of metrics", results, with_q_values, results)


def _pooled(facts: Facts, parts: Sequence[SegmentResult], boundary: Boundary) -> SegmentResult:
    """Combine the results of all segments; without a resume, return the only segment's."""
    if len(parts) == 1:
        return parts[0]
    # If pooling fails, keep the findings of each segment, without a common rate.
    every = tuple(finding for part in parts for finding in part.findings)
    apart = SegmentResult(None, (), every, ())
    pooled = boundary.value("all segments together", apart, pool_segments, parts)
    # A metric that only all segments together decide has no finding yet.
    named = {finding.subject for finding in pooled.findings}
    untold = [result for result in pooled.metrics if result.metric not in named]
    ended = boundary.listed("how the run ended", _cut_short, facts, pooled.window)
    # If no segment is conclusive, their findings already include how each ended.
    told = {(finding.kind, finding.subject) for finding in pooled.findings}
    findings = (
        *pooled.findings,
        *(finding for finding in ended if (finding.kind, finding.subject) not in told),
        *boundary.listed("growth", growth_findings, facts.longest, untold, boundary),
    )
    return replace(pooled, findings=findings)


def _not_yet(result: MetricResult) -> MetricResult:
    if result.outcome != "LEAK":
        return result
    return msgspec.structs.replace(result, outcome="INCONCLUSIVE", why=YoungRun().why())


def _cut_short(facts: Facts, window: Window | None) -> Iterable[Finding]:
    """Yield what a run that ended early leaves undecided."""
    yield from incomplete_findings(facts)
    if window is None:
        yield _no_window(facts)


def _once_clean(facts: Facts, results: Sequence[MetricResult]) -> Iterable[Finding]:
    """Yield a finding if an extension ended unsettled: one clean look at its end is not enough."""
    ended = facts.last.last_event(ExtensionEnded)
    if ended is None or ended.settled:
        return
    if all(result.outcome == "CLEAN" for result in results):
        basis = Undecided(open="extension")
        yield Finding(basis, VerdictKind.INCONCLUSIVE, "run", since_s=ended.t_s)


def _no_window(facts: Facts) -> Finding:
    stopped = facts.last.last_event(StoppedEarly)
    ended = stopped.text if stopped is not None and stopped.reason == TARGET_ENDED else ""
    return Finding(Undecided(open="no-window", ended=ended), VerdictKind.INCONCLUSIVE, "run")


def _verdict(
    facts: Facts, result: SegmentResult, findings: Sequence[Finding], boundary: Boundary
) -> Verdict:
    """Build the verdict; the worst finding decides, including those about failed analyses."""
    memory = memory_result(result.metrics) or worst_memory(result.metrics)
    if memory is not None and facts.parts:
        memory = msgspec.structs.replace(memory, window_s=(0.0, result.judged_s))
    steady = memory is not None and result.is_steady(memory.metric)
    smallest = boundary.value("the resolution", None, smallest_leak_called, memory)
    missing = boundary.value("what was not seen", (), not_seen, facts)
    serving = boundary.value("what was served", (), serving_results, facts, result.window)
    findings = sorted([*findings, *failure_findings(boundary.failures)], key=_rank)
    kind = findings[0].verdict if findings else VerdictKind.CLEAN
    return Verdict(
        kind=kind,
        headline="",
        findings=tuple(findings),
        metrics=result.metrics,
        window_s=None if result.window is None else (result.window.start_s, result.window.end_s),
        can_rule_out="",
        coverage=facts.coverage.table,
        not_seen=missing,
        notes=result.notes,
        decay=result.decay,
        serving=serving,
        failures=boundary.failures,
        bounds=Bounds(memory, steady, smallest),
    )


def with_failures(verdict: Verdict, failures: Sequence[Failure], file: str) -> Verdict:
    """Return ``verdict`` with the failures of the run's report, without which it is not CLEAN.

    ``file`` has the tracebacks.
    """
    found = (bench_failed(failure.part, failure.said, file) for failure in failures)
    return _worded(_with_findings(verdict, found, failures), Boundary())


def _with_findings(
    verdict: Verdict, further: Iterable[Finding], failures: Sequence[Failure]
) -> Verdict:
    findings = tuple(sorted([*verdict.findings, *further], key=_rank))
    return replace(
        verdict,
        kind=findings[0].verdict if findings else verdict.kind,
        findings=findings,
        failures=(*verdict.failures, *failures),
    )


def _worded(verdict: Verdict, boundary: Boundary) -> Verdict:
    """Write the sentences of ``verdict``; if one fails, report that and use codes instead."""
    said = boundary.value("the sentences of the verdict", None, in_words, verdict)
    if said is not None:
        return said
    failed = boundary.failures[-1:]
    return in_codes(_with_findings(verdict, failure_findings(failed), failed))


def _rank(finding: Finding) -> tuple[int, int, str, int, float, str]:
    specific = not finding.basis.names_mechanism
    place = precedence(finding.verdict, exact=finding.exact)
    other = unlabelled(finding.subject) != MEMORY
    # Of several processes, the one that grows fastest comes first.
    per_hour = 0.0 if other else max((r.value for r in finding.rates if r.per == "h"), default=0.0)
    return place, int(specific), finding.kind, int(other), -per_hour, finding.subject
