"""When a stored run could first have been called what it was called in the end."""

from __future__ import annotations

from hybridbench.analysis.judge import judge_so_far
from hybridbench.analysis.record import RunRecord
from hybridbench.records.verdict import VerdictKind

_LOOKS = 16


def time_to_detect_s(record: RunRecord, verdict: VerdictKind) -> float | None:
    """The earliest of ``16`` evenly spaced looks from which on every look says ``verdict``.

    Seconds since the run began; None if even the last look does not say so.
    """
    end_s = record.span_s[1]
    found: float | None = None
    for look in range(_LOOKS, 0, -1):
        at_s = end_s * look / _LOOKS
        if judge_so_far(record.until(at_s)).kind is not verdict:
            break
        found = at_s
    return found
