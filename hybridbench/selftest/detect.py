"""Find when a stored run could first have reached its final verdict."""

from __future__ import annotations

from hybridbench.analysis.judge import judge_so_far
from hybridbench.analysis.record import RunRecord
from hybridbench.records.finding import VerdictKind

_LOOKS = 16


def time_to_detect_s(record: RunRecord, verdict: VerdictKind) -> float | None:
    """Return the time of the first of 16 evenly spaced looks from which all give ``verdict``.

    It is in seconds since the run began; None if even the last look gives another verdict.
    """
    end_s = record.span_s[1]
    found: float | None = None
    for look in range(_LOOKS, 0, -1):
        at_s = end_s * look / _LOOKS
        if judge_so_far(record.until(at_s)).kind is not verdict:
            break
        found = at_s
    return found
