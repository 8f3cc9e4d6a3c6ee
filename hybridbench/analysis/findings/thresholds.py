"""Findings about thresholds of the user or the profile that are missed, undecided or unusable."""

from __future__ import annotations

from typing import ClassVar

from hybridbench.foundation.units import format_duration
from hybridbench.records.codec import to_json
from hybridbench.records.finding import Basis, Evidence, Words
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Finding
from hybridbench.thresholds.result import ThresholdResult
from hybridbench.thresholds.words import threshold_text


class ThresholdNotMet(Basis, frozen=True, kw_only=True):
    """A threshold that is missed or undecided, as ``measured`` shows, or that cannot be checked.

    Attributes:
        threshold: the threshold as the user wrote it.
        needed_s: the length of a judged window that would decide it, if any.
        settling_s: set if it is missed in a window shorter than this, in which growth may still
            settle.
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
