"""Thresholds reported: one gate and one row each, and their numbers in verdict.json."""

from __future__ import annotations

from typing import Final

from hybridbench.analysis.findings.thresholds import ThresholdNotMet
from hybridbench.records.verdict import Finding, Verdict
from hybridbench.report.document import Gate, GateState, Table
from hybridbench.thresholds.result import ThresholdOutcome, ThresholdResult
from hybridbench.thresholds.words import measured_text
from hybridbench.units import format_duration

STATE: Final = {
    ThresholdOutcome.MET: GateState.PASSED,
    ThresholdOutcome.MISSED: GateState.FAILED,
    ThresholdOutcome.UNDECIDED: GateState.SKIPPED,
    ThresholdOutcome.NOT_GATED: GateState.SKIPPED,
}


def threshold_gates(verdict: Verdict) -> list[Gate]:
    """One gate for each threshold, under the words in which it was set."""
    window = verdict.window_s
    judged_s = None if window is None else window[1] - window[0]
    return [
        Gate(result.text, "thresholds", STATE[result.outcome], result.said, "", judged_s)
        for result in verdict.thresholds
    ]


def has_threshold_gate(verdict: Verdict, finding: Finding) -> bool:
    """Whether ``finding`` is in the gate of its threshold already."""
    return isinstance(finding.basis, ThresholdNotMet) and finding.basis.threshold in {
        result.text for result in verdict.thresholds
    }


def thresholds_table(verdict: Verdict) -> Table:
    """Threshold, outcome, and what was measured; without rows if none was set."""
    rows = tuple(
        (result.text, result.outcome.value, measured_text(result), _needed(result))
        for result in verdict.thresholds
    )
    return Table("Thresholds", ("threshold", "outcome", "measured", "would decide"), rows)


def _needed(result: ThresholdResult) -> str:
    return "" if result.needed_s is None else format_duration(result.needed_s)
