"""The trends of every process that has a role: each is judged as a run of one process is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.processes import ProcessView, process_views
from hybridbench.analysis.findings.growth import growth_findings
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.segment_pooling import SegmentResult, pool_metric
from hybridbench.analysis.trend.metric_trend import with_q_values
from hybridbench.labels import labelled, unlabelled
from hybridbench.metrics import MEMORY
from hybridbench.records.verdict import Finding, MetricResult, VerdictKind

# A process whose last sample is so much older than that of another has ended before it.
_OVER_S: Final = 10.0
_OVER_SHARE: Final = 0.05

Judged = Callable[[Facts, frozenset[str]], Sequence[MetricResult]]


def with_processes(
    record: RunRecord, result: SegmentResult, judged: Judged, boundary: Boundary
) -> SegmentResult:
    """``result`` of the run with the trends of its processes, each named with its labels.

    ``judged`` gives the trends of one segment of a process, for some of its metrics.
    """
    views = boundary.value("the processes", [], process_views, record)
    if not views:
        return result
    owned = [
        (view, facts, _trends(view, facts, judged))
        for view in views
        for facts in [Facts.of(view.record, boundary)]
    ]
    tested = iter(with_q_values([*result.metrics, *(r for _, _, rs in owned for r in rs)]))
    metrics = [next(tested) for _ in result.metrics]
    findings = list(result.findings)
    last_s = max(view.last_s for view in views)
    for view, facts, results in owned:
        own = [next(tested) for _ in results]
        if view.last_s < last_s - max(_OVER_S, _OVER_SHARE * last_s):
            # It ended while others went on: what it had no time for, no longer run would decide;
            # and one that goes on under another name is judged there.
            own = [
                one
                for one in own
                if one.outcome != VerdictKind.INCONCLUSIVE
                or not (one.rate_per_hour is None or view.renamed)
            ]
        grown = boundary.listed("growth", growth_findings, facts.longest, own, boundary)
        metrics += [_named(one, view) for one in own]
        findings += [_about(finding, view) for finding in grown]
    return replace(result, metrics=tuple(metrics), findings=tuple(findings))


def worst_memory(results: Sequence[MetricResult]) -> MetricResult | None:
    """Private memory of the process that leaks, or else may grow, by most; None without any."""
    found = [one for one in results if unlabelled(one.metric) == MEMORY and one.rate_per_hour]
    return max(found, key=_growth, default=None)


def _growth(result: MetricResult) -> tuple[bool, float]:
    rate = result.rate_per_hour
    return result.outcome == "LEAK", -math.inf if rate is None else rate.upper


def _trends(view: ProcessView, facts: Facts, judged: Judged) -> list[MetricResult]:
    """One for each metric, of all segments of the process together."""
    parts = [result for part in facts.segments for result in judged(part, view.metrics)]
    names = dict.fromkeys(result.metric for result in parts)
    return [pool_metric([r for r in parts if r.metric == name]) for name in names]


def _named(result: MetricResult, view: ProcessView) -> MetricResult:
    return msgspec.structs.replace(result, metric=labelled(result.metric, view.labels))


def _about(finding: Finding, view: ProcessView) -> Finding:
    return replace(finding, subject=labelled(finding.subject, view.labels))
