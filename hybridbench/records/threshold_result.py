"""Results of thresholds, as stored in verdict.json."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class ThresholdOutcome(StrEnum):
    """Outcome of a threshold."""

    MET = "MET"  # the whole interval is on the right side
    MISSED = "MISSED"  # the whole interval is on the wrong side
    UNDECIDED = "UNDECIDED"
    NOT_GATED = "NOT GATED"  # the metric is erratic: displayed, without effect on the verdict


class UnmeasuredCode(StrEnum):
    """Why there is no measurement to check a threshold against."""

    NEEDS_TWO_VERSIONS = "needs-two-versions"
    NO_WINDOW = "no-window"
    NEVER_SAMPLED = "never-sampled"
    TOO_FEW_SAMPLES = "too-few-samples"
    NOT_COUNTED = "not-counted"
    NO_EVENT = "no-event"
    TOO_LITTLE_WORK = "too-little-work"


class Missing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A metric or event counter that was not measured, and similar names that were."""

    metric: str = ""
    counter: str = ""
    near: tuple[str, ...] | None = None


class Unmeasured(msgspec.Struct, frozen=True):
    """Why there is no measurement to check a threshold against, and what is missing."""

    code: str  # an UnmeasuredCode; a later version may have more
    data: Missing = Missing()


@dataclass(frozen=True)
class ThresholdResult:
    """The result of one threshold.

    Numbers are None if unmeasured; ``lower`` and ``upper`` are also None if unbounded.  ``unit``
    and ``per`` apply to ``value``, ``lower``, ``upper`` and ``limit``.
    """

    text: str  # as the user wrote it
    metric: str
    stat: str
    outcome: ThresholdOutcome
    limit: float
    unit: str
    per: str = ""
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    needed_s: float | None = None  # UNDECIDED: a judged window of this length would decide
    unmeasured: Unmeasured | None = None  # why there is no value
    said: str = ""  # one sentence with the numbers
