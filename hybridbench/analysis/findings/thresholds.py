"""Findings about thresholds of the user or the profile that are missed, undecided or unusable.

Also the sentences about a threshold's result: the measured value, or why there is none.
"""

from __future__ import annotations

from hybridbench.analysis.facts.counters import singular
from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.thresholds import HOUR, limit_text
from hybridbench.foundation.units import format_bytes, format_count, format_duration
from hybridbench.records.codec import to_json
from hybridbench.records.finding import Basis, Evidence, Finding, Words
from hybridbench.records.json_value import JsonValue
from hybridbench.records.threshold_result import (
    ThresholdOutcome,
    ThresholdResult,
    Unmeasured,
    UnmeasuredCode,
)

_SMALL_COUNT = 10.0
# From here on, four figures would be printed with an exponent.
_EXPONENT_FROM = 9999.5


class ThresholdNotMet(Basis, frozen=True, kw_only=True):
    """A threshold that is missed or undecided, as ``measured`` shows, or that cannot be checked.

    Attributes:
        threshold: the threshold as the user wrote it.
        needed_s: the length of a judged window that would decide it, if any.
        settling_s: set if it is missed in a window shorter than this, in which growth may still
            settle.
        error: why it cannot be checked at all.
    """

    kind = "threshold"
    meaning = "A threshold of the user or the profile is missed or undecided."
    evidence = Evidence.STATISTICAL
    leads_to = (
        "LEAK for a missed `slope` of something held, otherwise DEGRADED; INCONCLUSIVE if undecided"
    )

    threshold: str
    measured: ThresholdResult | None = None
    needed_s: float | None = None
    settling_s: float | None = None
    error: str | None = None

    def words(self, found: Finding) -> Words:
        if self.measured is None:
            return Words(f"the threshold {self.error}, and is not checked")
        title = threshold_text(self.measured)
        if self.settling_s is not None:
            settling = format_duration(self.settling_s)
            title += f", but in less than {settling} growth may be settling"
        return Words(title, evidence=(f"the user's threshold: {self.threshold}",))

    def as_data(self) -> dict[str, JsonValue]:
        stored = super().as_data()
        if self.measured is None:
            return stored
        measured = to_json(self.measured)
        del measured["said"]
        return {**stored, "measured": measured, "needed_s": self.needed_s}


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
