"""Which findings a plan waives: a known leak stays green until its date, and hides no other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from typing import Final

from hybridbench.nightly.plan import Waiver
from hybridbench.records.verdict import PRECEDENCE, Finding, Rate, VerdictKind, leak_kind
from hybridbench.units import parse_byte_rate, parse_bytes

_GROWTH: Final = "growth"
_UNDECIDED: Final = "undecided"
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z][\w ]*?)/([\w ]+)")


@dataclass(frozen=True)
class MaxRate:
    """``value`` of ``unit`` for each ``per``, in the words of a finding's rates."""

    value: float
    unit: str
    per: str


@dataclass(frozen=True)
class Judged:
    """A finding and what the plan says of it: waived by ``waiver``, or why not if one is near."""

    finding: Finding
    waiver: Waiver | None = None
    why_not: str = ""


def parse_max_rate(text: str) -> MaxRate:
    """``2GiB/h`` or ``0.9 nodes/evicted node``: in the words of the finding.

    Raises:
        ValueError: half a sentence with the accepted forms.
    """
    try:
        return MaxRate(parse_byte_rate(text), "B", "h")
    except ValueError:
        match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a rate; write 200MiB/h, 4KiB/request or 1.1 slots/retract"
        )
    amount, unit, per = match.groups()
    try:
        return MaxRate(parse_bytes(f"{amount}{unit}"), "B", per)
    except ValueError:
        return MaxRate(float(amount), unit, per)


def judged(
    findings: Iterable[Finding], waivers: Sequence[Waiver], cell: tuple[str, str], today: date
) -> tuple[Judged, ...]:
    """Each finding with the waiver that covers it.

    Args:
        findings: of one run.
        waivers: of the plan.
        cell: profile and model.
        today: the day of the run; a waiver holds to the end of the day on which it expires.
    """
    return tuple(_judge_one(finding, waivers, cell, today) for finding in findings)


def kind_left(findings: Iterable[Judged]) -> VerdictKind:
    """The verdict that the findings come to which nobody waived."""
    left = {entry.finding.verdict for entry in findings if entry.waiver is None}
    return next((kind for kind in PRECEDENCE if kind in left), VerdictKind.CLEAN)


def expired(waivers: Sequence[Waiver], today: date) -> tuple[Waiver, ...]:
    """Those that waive nothing any more."""
    return tuple(waiver for waiver in waivers if waiver.expires < today)


def _judge_one(
    finding: Finding, waivers: Sequence[Waiver], cell: tuple[str, str], today: date
) -> Judged:
    reasons = []
    for waiver in waivers:
        if not _names(waiver, finding, cell):
            continue
        why_not = _refusal(waiver, finding, today)
        if not why_not:
            return Judged(finding, waiver)
        reasons.append(why_not)
    return Judged(finding, None, "; ".join(reasons))


def _names(waiver: Waiver, finding: Finding, cell: tuple[str, str]) -> bool:
    profile, model = cell
    of_kind = leak_kind(waiver.kind) == leak_kind(finding.kind) and fnmatchcase(
        finding.driver or "", waiver.driver
    )
    return (
        (of_kind or _leaves_open(waiver, finding))
        and fnmatchcase(finding.subject, waiver.subject)
        and fnmatchcase(profile, waiver.profile)
        and fnmatchcase(model, waiver.model)
    )


def _leaves_open(waiver: Waiver, finding: Finding) -> bool:
    """Whether ``finding`` says that it is undecided how fast something grows that may grow.

    A known leak moves memory, and a run that is too short to call that a growth would never pass.
    """
    return waiver.kind == _GROWTH and finding.kind == _UNDECIDED


def _refusal(waiver: Waiver, finding: Finding, today: date) -> str:
    """Why ``waiver`` does not hold for a finding that it names; empty if it does."""
    if waiver.expires < today:
        return f"its waiver expired on {waiver.expires.isoformat()} ({waiver.link})"
    if waiver.max_rate is None:
        return ""
    most = parse_max_rate(waiver.max_rate)
    rate = _comparable(finding.rates, most)
    if rate is None:
        return f"its waiver allows {waiver.max_rate}, and the finding has no such rate"
    if finding.kind == _UNDECIDED and not rate.upper <= most.value:
        return f"it may grow faster than its waiver allows ({waiver.max_rate}, {waiver.link})"
    if rate.value > most.value:
        return f"it grows faster than its waiver allows ({waiver.max_rate}, {waiver.link})"
    return ""


def _comparable(rates: Sequence[Rate], most: MaxRate) -> Rate | None:
    return next(
        (rate for rate in rates if (rate.unit, rate.per) == (most.unit, most.per)),
        None,
    )
