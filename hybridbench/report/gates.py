"""A run's gates for CI, each with its answer; the same ones in every nightly run.

A gate passes only if the run can support it: the absence of findings in an invalid or crashed run
is not a pass.  The first gate repeats the verdict, so that no run fails with all its gates green.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Final

from hybridbench.analysis.findings.instances import TOLERANCE, Instances
from hybridbench.analysis.findings.kinds import finding_kinds
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.units import format_count
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.verdict import DecayResult, MetricResult, Verdict
from hybridbench.report.document import Gate, GateState
from hybridbench.report.quantity import SHARE, Quantity, Text, joined, phrase
from hybridbench.report.threshold_gates import has_threshold_gate, threshold_gates
from hybridbench.report.wording import (
    NO_RATE,
    covered,
    finding_rates,
    growth_of,
    metric_label,
    needed_text,
)

_STATE: Final[Mapping[VerdictKind, GateState]] = {
    VerdictKind.CLEAN: GateState.PASSED,
    VerdictKind.LEAK: GateState.FAILED,
    VerdictKind.DEGRADED: GateState.FAILED,
    VerdictKind.INVARIANT: GateState.FAILED,
    VerdictKind.CORRUPT: GateState.FAILED,
    VerdictKind.INCONCLUSIVE: GateState.SKIPPED,
    VerdictKind.CRASHED: GateState.ERROR,
    VerdictKind.INVALID: GateState.ERROR,
}
_DECAY_STATE: Final = {"worse": GateState.FAILED, "no change": GateState.PASSED}
_WORST_FIRST: Final = (GateState.FAILED, GateState.ERROR, GateState.SKIPPED, GateState.PASSED)
_STOPPED: Final = {ExitCode.INTERRUPTED, ExitCode.TERMINATED}


def gates_of(verdict: Verdict, code: ExitCode) -> tuple[Gate, ...]:
    """Return all gates of one judged run that ends with ``code``; the verdict's comes first."""
    gates = [
        *_finding_gates(verdict),
        *threshold_gates(verdict),
        *(_metric_gate(result) for result in verdict.metrics),
        *(_decay_gate(verdict, result) for result in verdict.decay if result.outcome != "shown"),
        *_coverage_gates(verdict),
    ]
    reason = _why_no_pass(verdict)
    if reason:
        gates = [_without_pass(gate, reason) for gate in gates]
    return (_verdict_gate(verdict, code), *gates)


def stopped_short(state: GateState, code: ExitCode) -> bool:
    """Whether a signal cut the run short, so that its ``state`` cannot count as a pass."""
    return code in _STOPPED and state in {GateState.PASSED, GateState.SKIPPED}


def _verdict_gate(verdict: Verdict, code: ExitCode) -> Gate:
    window = verdict.window_s
    judged_s = None if window is None else window[1] - window[0]
    state, text = _STATE[verdict.kind], verdict.full_headline
    if stopped_short(state, code):
        state, text = GateState.ERROR, f"stopped by a signal before the planned end. {text}"
    return Gate("verdict", "run", state, text, verdict.can_rule_out, judged_s)


def questions_asked() -> dict[str, str]:
    """Return the questions that CI asks of every run, by the kind of finding that answers them."""
    return {kind: of.question for kind, of in finding_kinds().items() if of.question}


def _finding_gates(verdict: Verdict) -> Iterator[Gate]:
    questions = questions_asked()
    by_name = {result.metric for result in verdict.metrics} | {d.name for d in verdict.decay}
    # What else is undecided has the gate of its metric, or only the verdict's.
    others = [
        finding
        for finding in verdict.findings
        if (finding.kind in questions or _is_decided_alone(finding, by_name))
        and not has_threshold_gate(verdict, finding)
    ]
    for kind in dict.fromkeys((*questions, *(finding.kind for finding in others))):
        found = [finding for finding in others if finding.kind == kind]
        if not found:
            yield _minority_gate(kind, verdict.findings) or Gate(
                kind, "findings", GateState.PASSED, questions[kind]
            )
            continue
        states = {_STATE[finding.verdict] for finding in found}
        state = next(state for state in _WORST_FIRST if state in states)
        text: list[Text] = [found[0].title]
        if found[0].rates:
            text += [" [", joined("; ", finding_rates(found[0], verdict)), "]"]
        if len(found) > 1:
            text.append(f" (and {len(found) - 1} more)")
        yield Gate(kind, "findings", state, phrase(*text), _lines(found))


def _is_decided_alone(finding: Finding, by_name: Set[str]) -> bool:
    """Whether no gate of a metric in ``by_name`` gives the answer, and there is one."""
    return finding.verdict is not VerdictKind.INCONCLUSIVE and finding.subject not in by_name


def _minority_gate(kind: str, findings: Iterable[Finding]) -> Gate | None:
    """Return a gate for ``kind`` if a finding of the other kind includes a minority of instances
    of this kind; a passed gate would deny them.
    """
    for finding in findings:
        basis = finding.basis
        if isinstance(basis, Instances) and basis.other == kind and basis.others > TOLERANCE:
            text = (
                f"up to {format_count(basis.others)} {finding.subject} objects {basis.others_do} "
                f"(see {finding.kind})"
            )
            return Gate(kind, "findings", _STATE[finding.verdict], text, _lines([finding]))
    return None


def _metric_gate(result: MetricResult) -> Gate:
    state = _STATE[VerdictKind(result.outcome)]
    parts: list[Text] = [growth_of(result) or NO_RATE]
    if state is GateState.SKIPPED:
        parts.insert(0, f"not decided ({result.reason})")
    if result.needed_s is not None:
        parts.append(needed_text(result))
    text = phrase(f"{metric_label(result.metric)}: ", joined("; ", parts))
    start_s, end_s = result.window_s
    return Gate(result.metric, "growth", state, text, result.reason, end_s - start_s)


def _decay_gate(verdict: Verdict, result: DecayResult) -> Gate:
    text: Text = f"{result.label}: {result.outcome}"
    if result.change is not None:
        lower = result.change_lower
        change = Quantity(
            f"change.{result.name}",
            result.change,
            SHARE,
            verdict.window_s,
            # A fitted line may fall below zero, which no measured value does.
            lower=None if lower is None else max(lower, -1.0),
            upper=result.change_upper,
            signed=True,
        )
        text = phrase(text, ", ", change)
    found = [finding for finding in verdict.findings if finding.subject == result.name]
    state = _DECAY_STATE.get(result.outcome, GateState.SKIPPED)
    return Gate(result.name, "decay", state, text, _lines(found), minor=True)


def _coverage_gates(verdict: Verdict) -> Iterator[Gate]:
    for counter, row in verdict.coverage.items():
        if row.required is not None:
            seen, required = covered(counter, row)
            text = phrase(f"{counter} seen ", seen, ", required ", required)
            # Missing coverage is not the engine's fault: the run has no answer.
            state = GateState.PASSED if row.met else GateState.ERROR
            yield Gate(counter, "coverage", state, text)


def _why_no_pass(verdict: Verdict) -> str:
    """Explain why the absence of findings is not a pass; empty if it is one."""
    if verdict.kind is VerdictKind.CRASHED:
        return "the worker did not run to the end"
    return "the run is INVALID" if verdict.invalid else ""


def _without_pass(gate: Gate, reason: str) -> Gate:
    if gate.state is not GateState.PASSED or gate.group == "coverage":
        return gate
    text = phrase(f"{reason}; ", gate.text)
    return replace(gate, state=GateState.SKIPPED, text=text, minor=True)


def _lines(findings: Iterable[Finding]) -> str:
    lines: list[str] = []
    for finding in findings:
        lines += [finding.title, *finding.evidence]
        lines += [finding.cause] if finding.cause else []
    return "\n".join(lines)
