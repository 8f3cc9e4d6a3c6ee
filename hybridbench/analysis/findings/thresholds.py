"""Thresholds of the user or the profile: what was measured, on which side of the limit, or why
nothing was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.reading import text, texts
from hybridbench.metrics import Unit
from hybridbench.records.codec import to_json
from hybridbench.records.codes import Evidence, UnmeasuredCode
from hybridbench.records.finding import Basis, Words
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Finding, ThresholdOutcome, ThresholdResult
from hybridbench.thresholds import HOUR, limit_text
from hybridbench.units import format_bytes, format_count, format_duration

_Data = Mapping[str, JsonValue]
_SMALL_COUNT = 10.0


class ThresholdNotMet(Basis, frozen=True, kw_only=True):
    """A threshold that is missed or undecided, as its ``measured`` says, or that is not understood.

    Attributes:
        threshold: as it was set.
        needed_s: how long a judged window would decide it, where one would.
        settling_s: it is missed in a shorter window than this, in which growth may settle.
        error: why it cannot be checked at all.
    """

    kind: ClassVar[str] = "threshold"
    meaning: ClassVar[str] = "A threshold of the user or the profile is missed or undecided."
    evidence: ClassVar[Evidence] = Evidence.STATISTICAL
    leads_to: ClassVar[str] = (
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
    why = result.unmeasured
    if why is not None:
        sentence = _UNMEASURED.get(why.code)
        return why.code if sentence is None else sentence(why.data)
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
            return f"{value:.4g}{per}"
        case Unit.PER_SECOND:
            return f"{value:.4g}/s{per}"
        case Unit.COUNT:
            plain = f"{value:.3g}" if abs(value) < _SMALL_COUNT else format_count(value)
            return f"{plain}{per}"
    return f"{value:.4g} {result.unit}{per}"


def _near(data: _Data) -> str:
    return "".join(f"; did you mean {name}?" for name in texts(data, "near"))


_UNMEASURED: Final[Mapping[str, Callable[[_Data], str]]] = {
    UnmeasuredCode.NEEDS_TWO_VERSIONS: lambda _: (
        "a ratio needs two versions: use it with `hybridbench compare`"
    ),
    UnmeasuredCode.NO_WINDOW: lambda _: "the run ended before anything could be judged",
    UnmeasuredCode.NEVER_SAMPLED: lambda data: (
        f"{text(data, 'metric')} was never sampled in this run{_near(data)}"
    ),
    UnmeasuredCode.TOO_FEW_SAMPLES: lambda _: "too few samples in the judged window",
    UnmeasuredCode.NOT_COUNTED: lambda data: (
        f"the engine counts no {text(data, 'counter')}{_near(data)}"
    ),
    UnmeasuredCode.NO_EVENT: lambda data: (
        f"no {singular(text(data, 'counter'))} happened in the judged window"
    ),
    UnmeasuredCode.TOO_LITTLE_WORK: lambda _: "too little of that work in the judged window",
}
