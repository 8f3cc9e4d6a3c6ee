"""What became of a threshold, as verdict.json has it; ``words`` has the sentences."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class ThresholdOutcome(StrEnum):
    """What became of a threshold that a user set."""

    MET = "MET"  # the whole interval is on the right side
    MISSED = "MISSED"  # the whole interval is on the wrong side
    UNDECIDED = "UNDECIDED"
    NOT_GATED = "NOT GATED"  # the metric is erratic: shown, and nothing rests on it


class UnmeasuredCode(StrEnum):
    """Why there is nothing to hold a threshold against."""

    NEEDS_TWO_VERSIONS = "needs-two-versions"
    NO_WINDOW = "no-window"
    NEVER_SAMPLED = "never-sampled"
    TOO_FEW_SAMPLES = "too-few-samples"
    NOT_COUNTED = "not-counted"
    NO_EVENT = "no-event"
    TOO_LITTLE_WORK = "too-little-work"


class Missing(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was not measured: a metric or an event counter, and names like it that were."""

    metric: str = ""
    counter: str = ""
    near: tuple[str, ...] | None = None


class Unmeasured(msgspec.Struct, frozen=True):
    """Why there is nothing to hold a threshold against, and what is missing."""

    code: str  # of UnmeasuredCode; a later version may know more
    data: Missing = Missing()


@dataclass(frozen=True)
class ThresholdResult:
    """One threshold against what was measured; numbers are None where nothing was, or no bound.

    ``unit`` and ``per`` are those of ``value``, ``lower``, ``upper`` and ``limit``.
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
