"""A comparison's gates for CI, and its numbers for tools that store them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hybridbench.analysis.comparison.metrics import COMPARED
from hybridbench.analysis.comparison.records import (
    Call,
    Change,
    Comparison,
    ComparisonVerdict,
    LeakComparison,
    MetricComparison,
    Outcome,
    Role,
    SideComparison,
)
from hybridbench.analysis.comparison.words import unjudged_runs, unjudged_text
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.metrics import label_of
from hybridbench.records.finding import VerdictKind
from hybridbench.report.comparison_tables import change, leak_rates, letter
from hybridbench.report.document import Gate, GateState, Measure
from hybridbench.report.gates import stopped_short
from hybridbench.report.quantity import TIMES, Text, phrase, share_text

_OUTCOME: Final = {
    Outcome.REGRESSION: GateState.FAILED,
    Outcome.INCONCLUSIVE: GateState.SKIPPED,
    Outcome.SAME: GateState.PASSED,
    Outcome.BETTER: GateState.PASSED,
}
_CALL: Final = {Call.WORSE: GateState.FAILED, Call.INCONCLUSIVE: GateState.SKIPPED}
_SMALLER: Final = {metric.name: metric.higher_is_worse for metric in COMPARED}


def comparison_gates(
    comparison: Comparison, verdict: ComparisonVerdict, code: ExitCode
) -> tuple[Gate, ...]:
    """Return gates for the result and, per version, every gated metric, leaks, and the worker."""
    state = _OUTCOME[verdict.outcome]
    if stopped_short(state, code):
        state = GateState.ERROR
    gates = [Gate("answer", "comparison", state, verdict.full_headline)]
    for side in verdict.sides:
        group = f"{side_name(verdict, side.version)} against {comparison.versions[0].name}"
        gates += _metric_gates(side, group)
        gates.append(_leak_gate(comparison, side, group))
        gates.append(_life_gate(comparison, side, group))
    return tuple(gates)


def comparison_measures(comparison: Comparison, verdict: ComparisonVerdict) -> tuple[Measure, ...]:
    """Return the ratio of every gated metric."""
    base = comparison.versions[0].name
    return tuple(
        Measure(
            f"{side_name(verdict, side.version)} against {base}: {metric.label}",
            change(metric, letter(side.version)),
            TIMES,
            _SMALLER[metric.metric],
        )
        for side in verdict.sides
        for metric in side.metrics
        if metric.role is not Role.SHOWN
    )


def side_name(verdict: ComparisonVerdict, version: int) -> str:
    """Return the name of a version compared with the first; append its letter if another has the
    same name, as in ``compare . . .``.
    """
    names = {side.version: side.name for side in verdict.sides}
    name = names[version]
    alike = sum(other == name for other in names.values())
    return name if alike == 1 else f"{name} ({letter(version)})"


def _metric_gates(side: SideComparison, group: str) -> Iterator[Gate]:
    for metric in side.metrics:
        if metric.role is not Role.SHOWN:
            state = _CALL.get(metric.call, GateState.PASSED)
            yield Gate(
                metric.metric,
                group,
                state,
                _metric_text(metric, letter(side.version)),
                metric.reason,
                minor=metric.role is Role.GUARD,
            )


def _metric_text(metric: MetricComparison, other: str) -> Text:
    within = f", same within {share_text(metric.margin)}"
    text = phrase(f"{metric.label} {metric.word}: ", change(metric, other), within)
    return text if metric.call is not Call.INCONCLUSIVE else phrase("not decided. ", text)


def _leak_gate(comparison: Comparison, side: SideComparison, group: str) -> Gate:
    red = [row for row in side.leaks if row.change in (Change.INTRODUCED, Change.WORSE)]
    open_ = [row for row in side.leaks if row.change is Change.UNDECIDED]
    texts = [_leak_line(row, letter(side.version)) for row in (*red, *open_)]
    lines = "\n".join(map(str, texts))
    if red:
        return Gate("leaks", group, GateState.FAILED, texts[0], lines)
    if open_:
        return Gate("leaks", group, GateState.SKIPPED, f"not decided. {open_[0].title}", lines)
    open_runs = unjudged_runs(comparison.versions[0], comparison.versions[side.version])
    if open_runs:
        return Gate("leaks", group, GateState.SKIPPED, f"not judged: {unjudged_text(open_runs)}")
    faster = [label_of(row.subject) for row in side.leaks if row.change is Change.GROWS_FASTER]
    grow = "grows" if len(faster) == 1 else "grow"
    beside = f"; {', '.join(faster)} {grow} faster, below the limit" if faster else ""
    return Gate("leaks", group, GateState.PASSED, f"no finding is new and none grew{beside}")


def _leak_line(row: LeakComparison, other: str) -> Text:
    difference = leak_rates(row, other)[-1]
    text = f"{row.change.value}: {row.title}"
    return text if difference is None else phrase(f"{text} [", difference, "]")


def _life_gate(comparison: Comparison, side: SideComparison, group: str) -> Gate:
    own = comparison.versions[side.version].verdict
    if own.kind is VerdictKind.CRASHED:
        return Gate("worker", group, GateState.ERROR, own.full_headline)
    return Gate("worker", group, GateState.PASSED, "the worker lived to the end")
