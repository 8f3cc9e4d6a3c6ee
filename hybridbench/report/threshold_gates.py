"""Thresholds in reports: each has a gate and a table row."""

from __future__ import annotations

import math
from typing import Final

from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.findings.thresholds import ThresholdNotMet, measured_text
from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.thresholds import Stat
from hybridbench.records.finding import Finding
from hybridbench.records.rates import TIME_UNITS
from hybridbench.records.threshold_result import ThresholdOutcome, ThresholdResult
from hybridbench.records.verdict import Verdict
from hybridbench.report.document import Gate, GateState, Table
from hybridbench.report.quantity import Quantity, Text, length

STATE: Final = {
    ThresholdOutcome.MET: GateState.PASSED,
    ThresholdOutcome.MISSED: GateState.FAILED,
    ThresholdOutcome.UNDECIDED: GateState.SKIPPED,
    ThresholdOutcome.NOT_GATED: GateState.SKIPPED,
}


def threshold_gates(verdict: Verdict) -> list[Gate]:
    """One gate for each threshold, named by its text."""
    window = verdict.window_s
    judged_s = None if window is None else window[1] - window[0]
    return [
        Gate(result.text, "thresholds", STATE[result.outcome], result.said, "", judged_s)
        for result in verdict.thresholds
    ]


def has_threshold_gate(verdict: Verdict, finding: Finding) -> bool:
    """Whether the gate of its threshold already includes ``finding``."""
    return isinstance(finding.basis, ThresholdNotMet) and finding.basis.threshold in {
        result.text for result in verdict.thresholds
    }


def thresholds_table(verdict: Verdict) -> Table:
    """Table of threshold, outcome and measured value; empty without thresholds."""
    rows = tuple(
        (result.text, result.outcome.value, _measured(result, verdict), _needed(result))
        for result in verdict.thresholds
    )
    columns = ("threshold", "outcome", "measured", "would decide")
    return Table("Thresholds", columns, rows, optional=frozenset({3}))


def _measured(result: ThresholdResult, verdict: Verdict) -> Text:
    if result.value is None:
        return measured_text(result)
    exact = (result.lower, result.upper) == (result.value, result.value)
    per = singular(result.per) if result.per else ""
    return Quantity(
        f"{result.metric}.{result.stat}" + (f" per {per}" if per and per not in TIME_UNITS else ""),
        result.value + 0.0,  # no minus before a zero
        "" if result.unit == Unit.RATIO else result.unit,
        verdict.window_s,
        per,
        None if exact else -math.inf if result.lower is None else result.lower,
        None if exact else math.inf if result.upper is None else result.upper,
        signed=result.stat.startswith(Stat.SLOPE),  # including slope.lower and slope.upper
    )


def _needed(result: ThresholdResult) -> Text:
    needed_s = result.needed_s
    return "" if needed_s is None else length(f"needed for {result.text}", needed_s)
