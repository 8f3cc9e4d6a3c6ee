"""Sentences about thresholds: the measured value and the outcome, or why there is none."""

from __future__ import annotations

from hybridbench.analysis.facts.counters import singular
from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.units import format_bytes, format_count, format_duration
from hybridbench.thresholds.grammar import HOUR, limit_text
from hybridbench.thresholds.result import (
    ThresholdOutcome,
    ThresholdResult,
    Unmeasured,
    UnmeasuredCode,
)

_SMALL_COUNT = 10.0
# From here on, four figures would be printed with an exponent.
_EXPONENT_FROM = 9999.5


def threshold_text(result: ThresholdResult) -> str:
    """One sentence with the numbers."""
    name, seen = result.text, measured_text(result)
    if result.unmeasured is not None:
        return f"{name} was not checked: {seen}"
    match result.outcome:
        case ThresholdOutcome.MET:
            return f"{name} is met: {seen}"
        case ThresholdOutcome.MISSED:
            return f"{name} is missed: {seen}"
        case ThresholdOutcome.NOT_GATED:
            return f"{name} does not gate, {result.metric} is erratic: {seen}"
    longer = ""
    if result.needed_s is not None:
        longer = f"; a judged window of about {format_duration(result.needed_s)} would decide"
    return f"{name} is undecided: {seen} includes {limit_text(name)}{longer}"


def measured_text(result: ThresholdResult) -> str:
    """``190 MiB/h (150 MiB/h to 230 MiB/h, 95%)``, or why nothing was measured."""
    if result.unmeasured is not None:
        return _unmeasured_text(result.unmeasured)
    seen = _quantity(result, result.value)
    if (result.lower, result.upper) == (result.value, result.value):
        return seen
    return f"{seen} ({_quantity(result, result.lower)} to {_quantity(result, result.upper)}, 95%)"


def _quantity(result: ThresholdResult, value: float | None) -> str:
    """``3.45 GiB/h``, ``0.980``, ``12 per request``."""
    if value is None:
        return "unbounded"
    per = ""
    if result.per:
        per = "/h" if result.per == HOUR else f" per {singular(result.per)}"
    value += 0.0  # no minus before a zero
    match result.unit:
        case Unit.BYTES:
            return f"{format_bytes(value)}{per}"
        case Unit.RATIO:
            return f"{_figures(value)}{per}"
        case Unit.PER_SECOND:
            return f"{_figures(value)}/s{per}"
        case Unit.COUNT:
            plain = f"{value:.3g}" if abs(value) < _SMALL_COUNT else format_count(value)
            return f"{plain}{per}"
    return f"{_figures(value)} {result.unit}{per}"


def _figures(value: float) -> str:
    """At least four figures, without an exponent from 10,000 on."""
    return f"{value:,.0f}" if abs(value) >= _EXPONENT_FROM else f"{value:.4g}"


def _unmeasured_text(why: Unmeasured) -> str:
    """Why nothing was measured; the bare code if only a later version knows it."""
    missing = why.data
    near = "".join(f"; did you mean {name}?" for name in missing.near or ())
    match why.code:
        case UnmeasuredCode.NEEDS_TWO_VERSIONS:
            return "a ratio needs two versions: use it with `hybridbench compare`"
        case UnmeasuredCode.NO_WINDOW:
            return "the run ended before anything could be judged"
        case UnmeasuredCode.NEVER_SAMPLED:
            return f"{missing.metric} was never sampled in this run{near}"
        case UnmeasuredCode.TOO_FEW_SAMPLES:
            return "too few samples in the judged window"
        case UnmeasuredCode.NOT_COUNTED:
            return f"the engine counts no {missing.counter}{near}"
        case UnmeasuredCode.NO_EVENT:
            return f"no {singular(missing.counter)} happened in the judged window"
        case UnmeasuredCode.TOO_LITTLE_WORK:
            return "too little of that work in the judged window"
    return why.code
