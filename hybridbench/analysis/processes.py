"""Judge the trends of every process with a role, each like a run with a single process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

import msgspec

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.drivers.growing import Growing
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.processes import ProcessView, process_views
from hybridbench.analysis.findings.growth import growth_findings
from hybridbench.analysis.findings.kept import kept_findings, without_parts
from hybridbench.analysis.notes import without_steady
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.segment_pooling import SegmentResult, pool_metric
from hybridbench.analysis.trend.allowance import Allowance, allowance_of
from hybridbench.analysis.trend.at_rest import decided_at_rest
from hybridbench.analysis.trend.metric_trend import with_q_values
from hybridbench.foundation.labels import labelled, unlabelled, whose
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import Segment
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.verdict import MetricResult

# A process whose last sample is this much older than another's ended earlier.
_OVER_S: Final = 10.0
_OVER_SHARE: Final = 0.05
# A process that was replaced this often before it could be judged will never be judged.
_REPLACED: Final = 4

Judged = Callable[[Facts, frozenset[str]], Sequence[MetricResult]]


def with_processes(
    record: RunRecord,
    result: SegmentResult,
    judged: Judged,
    growing: Sequence[Growing],
    boundary: Boundary,
) -> SegmentResult:
    """Add to ``result`` the trends of the run's processes, and findings on what they keep.

    Metrics and subjects get the labels of their process.  ``judged`` returns the trends of one
    segment of a process, for some of its metrics; ``growing`` has the growth in their heaps.
    """
    views = boundary.value("the processes", [], process_views, record)
    allowed = Allowance()
    if views:
        result, allowed = _with_views(record, result, judged, growing, views, boundary)
    kept = boundary.listed("what processes keep", kept_findings, growing, result.metrics, allowed)
    return replace(result, findings=(*without_parts(result.findings, kept), *kept))


def _with_views(
    record: RunRecord,
    result: SegmentResult,
    judged: Judged,
    growing: Sequence[Growing],
    views: Sequence[ProcessView],
    boundary: Boundary,
) -> tuple[SegmentResult, Allowance]:
    owned = [
        (view, facts, _trends(view, facts, judged))
        for view in views
        for facts in [Facts.of(view.record, boundary)]
    ]
    adjusted = with_q_values([*result.metrics, *(r for _, _, rs in owned for r in rs)])
    tested = sum(one.q_value is not None for one in adjusted)
    each = iter(adjusted)
    metrics = [next(each) for _ in result.metrics]
    findings = list(result.findings)
    every = [[next(each) for _ in results] for _, _, results in owned]
    allowed = boundary.value(
        "the sizes of caches", Allowance(), allowance_of, record, _start_s(owned), every, growing
    )
    last_s = max(view.last_s for view in views)
    more_come = any(map(_piles_up, chain.from_iterable(every)))
    for (view, facts, _), results in zip(owned, every, strict=True):
        decided = decided_at_rest(record, allowed.applied(results, view.labels), view.labels)
        own = _decidable(view, decided, last_s, more_come)
        grown = boundary.listed("growth", growth_findings, facts.longest, own, boundary, tested)
        metrics += [_named(one, view) for one in own]
        findings += [_about(finding, view) for finding in grown]
    warm, cold = _warm_and_cold(owned)
    notes = (*result.notes, *([without_steady(() if not warm else cold)] if cold else ()))
    judged_all = replace(
        result, metrics=tuple(metrics), findings=tuple(findings), notes=notes, warm=warm
    )
    return judged_all, allowed


def _warm_and_cold(
    owned: Sequence[tuple[ProcessView, Facts, Sequence[MetricResult]]],
) -> tuple[frozenset[str], list[str]]:
    """Return the labels of judged processes after a steady event, and the names of the others."""
    windows = [(labelled("", view.labels), facts.longest.window) for view, facts, _ in owned]
    judged = [(labels, window.steady) for labels, window in windows if window is not None]
    warm = frozenset(labels for labels, steady in judged if steady)
    return warm, [whose(labels) for labels, _ in judged if labels not in warm]


def _start_s(owned: Sequence[tuple[ProcessView, Facts, Sequence[MetricResult]]]) -> float:
    """Return when the first judged window begins; memory growth is measured from there."""
    windows = [facts.window for _, facts, _ in owned if facts.window is not None]
    return min((window.start_s for window in windows), default=0.0)


def _piles_up(result: MetricResult) -> bool:
    """Whether a process has more and more children, some of which are always too young to judge."""
    rate = result.rate_per_hour
    growing = rate is not None and rate.lower > 0 and result.outcome != VerdictKind.CLEAN
    return growing and unlabelled(result.metric) == "children"


def _decidable(
    view: ProcessView, results: Sequence[MetricResult], last_s: float, more_come: bool
) -> Sequence[MetricResult]:
    """Drop the undecided results that a longer run would not decide.

    These are results without a rate if the process ended before the others, is replaced again and
    again, or ``more_come``; and those of an ended process that continues under another name, where
    it is judged.
    """
    over = view.last_s < last_s - max(_OVER_S, _OVER_SHARE * last_s)
    young = over or more_come or len(view.record.all_events(Segment)) >= _REPLACED
    return [
        one
        for one in results
        if one.outcome != VerdictKind.INCONCLUSIVE
        or not ((one.rate_per_hour is None and young) or (over and view.renamed))
    ]


def worst_memory(results: Sequence[MetricResult]) -> MetricResult | None:
    """Return private memory of the process that leaks or may grow the most, or None."""
    found = [one for one in results if unlabelled(one.metric) == MEMORY]
    return max(found, key=_growth, default=None)


def _growth(result: MetricResult) -> tuple[bool, float]:
    rate = result.rate_per_hour
    return result.outcome == "LEAK", -math.inf if rate is None else rate.upper


def _trends(view: ProcessView, facts: Facts, judged: Judged) -> list[MetricResult]:
    """Return one trend per metric, over all segments of the process together."""
    parts = [result for part in facts.segments for result in judged(part, view.metrics)]
    names = dict.fromkeys(result.metric for result in parts)
    return [pool_metric([r for r in parts if r.metric == name]) for name in names]


def _named(result: MetricResult, view: ProcessView) -> MetricResult:
    return msgspec.structs.replace(result, metric=labelled(result.metric, view.labels))


def _about(finding: Finding, view: ProcessView) -> Finding:
    return replace(finding, subject=labelled(finding.subject, view.labels))
