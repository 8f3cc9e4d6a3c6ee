"""Thresholds on ratios, told in a comparison's document: a gate and a row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridbench.analysis.comparison.answer import CheckedRatio
from hybridbench.records.verdict import ThresholdOutcome
from hybridbench.report.document import Document, Gate, GateState, Table
from hybridbench.report.thresholds import STATE


def with_ratios(document: Document, held: Sequence[CheckedRatio]) -> Document:
    """``document`` with what the thresholds came to; itself where there are none."""
    if not held:
        return document
    gates = [Gate(h.text, f"thresholds of {h.version}", _state(h), h.said) for h in held]
    rows = tuple((h.version, h.text, _word(h), h.said) for h in held)
    table = Table("Thresholds on ratios", ("version", "threshold", "outcome", "measured"), rows)
    return replace(document, gates=(*document.gates, *gates), tables=(*document.tables, table))


def _state(held: CheckedRatio) -> GateState:
    return GateState.SKIPPED if held.result is None else STATE[held.result.outcome]


def _word(held: CheckedRatio) -> str:
    return (ThresholdOutcome.UNDECIDED if held.result is None else held.result.outcome).value
