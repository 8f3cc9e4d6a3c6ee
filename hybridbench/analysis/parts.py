"""A part of the process's memory beside the whole: where the part grows by more, the page says why.

Bytes of a class are counted as they are made, or as they wait for a collection; private memory is
what the process holds.  Memory that was freed is used again, so a part may grow by more than the
whole does.  Then its bytes an hour are not a bound of the process, and must not stand there alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridbench.analysis.findings import Finding, MetricResult, Rate
from hybridbench.analysis.validity import MEMORY
from hybridbench.metrics import Unit
from hybridbench.units import digits_apart, format_bytes


def exceeds(part: Rate, whole: Rate) -> bool:
    """Whether ``part`` is estimated at more than all that the interval of ``whole`` allows."""
    in_bytes = part.unit == Unit.BYTES.value and part.per == "h"
    return in_bytes and part.value > max(whole.upper, 0.0)


def part_and_whole(part: Rate, whole: Rate) -> str:
    """Why a part can grow by more than the process does."""
    most = max(whole.upper, 0.0)
    digits = digits_apart(format_bytes, (part.value, part.lower, part.upper))
    value, lower, upper = (
        format_bytes(end, digits) for end in (part.value, part.lower, part.upper)
    )
    return (
        f"these objects accumulate {value}/h between collections ({lower} to {upper}), more than "
        f"private memory grows by (at most {format_bytes(most)}/h, 95 %): they reuse memory that "
        "was freed before, so this is not growth of the process"
    )


def with_whole(findings: Sequence[Finding], results: Sequence[MetricResult]) -> list[Finding]:
    """``findings``, each explained where its bytes an hour exceed the bound of private memory."""
    memory = next((result for result in results if result.metric == MEMORY), None)
    whole = None if memory is None else memory.rate_per_hour
    if whole is None:
        return list(findings)
    return [_explained(finding, whole) for finding in findings]


def _explained(finding: Finding, whole: Rate) -> Finding:
    if finding.subject == MEMORY or finding.kind in ("undecided", "threshold"):
        return finding
    part = next((rate for rate in finding.rates if exceeds(rate, whole)), None)
    if part is None:
        return finding
    return replace(finding, evidence=(part_and_whole(part, whole), *finding.evidence))
