"""Findings for tests: of a kind with its values, or with chosen sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec

from hybridbench.analysis.findings.engine_reports import EngineCheck
from hybridbench.analysis.findings.growth import Growth, Undecided, faster_than
from hybridbench.analysis.findings.kinds import evidence_of, finding_kinds
from hybridbench.analysis.trend import reasons
from hybridbench.records.codec import from_json
from hybridbench.records.finding import (
    Basis,
    Evidence,
    Faster,
    Finding,
    HowDriven,
    Rate,
    Recorded,
    VerdictKind,
)
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Reason

_Named = TypeVar("_Named", bound=msgspec.Struct)

_NOTHING: dict[object, JsonValue] = {int: 0, float: 0.0, str: "", bool: False}
_DRIVEN = {field.encode_name for field in msgspec.structs.fields(HowDriven)}


class _Ends(msgspec.Struct, frozen=True):
    value: float
    lower: float
    upper: float
    memory_upper: float


class _Stored(msgspec.Struct, frozen=True):
    faster_than_memory: _Ends | None = None
    segments: tuple[int, ...] = ()


def a_finding(
    kind: str,
    verdict: VerdictKind,
    subject: str,
    title: str = "",
    driver: str | None = None,
    rates: tuple[Rate, ...] = (),
    *,
    cause: str = "",
    evidence: tuple[str, ...] = (),
    since_s: float | None = None,
    data: Mapping[str, JsonValue] | None = None,
) -> Finding:
    """Return a finding with these sentences; it is exact if its kind is."""
    basis = Recorded(
        name=str(kind),
        title=title,
        cause=cause,
        lines=evidence,
        data=data or {},
        exact=_is_exact(kind),
    )
    return Finding(basis, verdict, subject, driver, rates, since_s)


def typed_finding(
    kind: str,
    data: Mapping[str, JsonValue],
    rates: tuple[Rate, ...] = (),
    subject: str = "subject",
    driver: str | None = None,
) -> Finding:
    """Return a finding of ``kind`` with stored values, whose sentences follow from them."""
    stored = from_json(data, _Stored)
    faster = stored.faster_than_memory
    added = {"faster_than_memory", "segments"}
    own = {key: value for key, value in data.items() if key not in _DRIVEN | added}
    return Finding(
        _basis(kind, own),
        VerdictKind.LEAK,
        subject,
        driver,
        rates,
        75.0,
        from_json({"driver_share": 0.0, **data}, HowDriven) if "driver_events" in data else None,
        None if faster is None else _faster(faster),
        stored.segments,
    )


def _faster(ends: _Ends) -> Faster:
    rate = Rate(ends.value, ends.lower, ends.upper, "B", "h")
    return faster_than(rate, ends.memory_upper)


def changed(finding: Finding, **changes: object) -> Finding:
    """Return ``finding`` with other sentences or another kind."""
    basis = finding.basis
    if not isinstance(basis, Recorded):
        basis = Recorded(
            name=finding.kind,
            title=finding.title,
            cause=finding.cause,
            lines=finding.evidence,
            data=finding.data,
            exact=finding.exact,
        )
    names = {
        "kind": "name",
        "title": "title",
        "cause": "cause",
        "evidence": "lines",
        "data": "data",
    }
    own = {names[key]: value for key, value in changes.items() if key in names}
    if "kind" in changes:
        own["exact"] = _is_exact(str(changes["kind"]))
    others = {key: value for key, value in changes.items() if key not in names}
    return replace(finding, basis=msgspec.structs.replace(basis, **own), **others)  # type: ignore[arg-type]


def _basis(kind: str, data: Mapping[str, JsonValue]) -> Basis:
    of = finding_kinds().get(kind)
    if of is None:
        return _made(EngineCheck, data)
    basis = _made(of, data)
    # Stored data has a reason's code and values, but not its text.
    if isinstance(basis, Growth | Undecided) and basis.why is not None:
        known = {kind.code: kind for kind in reason_kinds()}
        why = _made(known[basis.why.code], basis.why.data).why()
        return msgspec.structs.replace(basis, why=why)
    return basis


def reason_kinds(base: type[Reason] = Reason) -> Iterator[type[Reason]]:
    """Yield every kind of reason that a trend may have."""
    for kind in base.__subclasses__():
        if "code" in vars(kind) and kind.__module__ == reasons.__name__:
            yield kind
        yield from reason_kinds(kind)


def _made(of: type[_Named], data: Mapping[str, JsonValue]) -> _Named:
    """Return a record with the values in ``data``; all others are 0 or empty."""
    required = (field for field in msgspec.structs.fields(of) if field.required)
    unnamed = {field.encode_name: _NOTHING.get(field.type) for field in required}
    return from_json({**unnamed, **data}, of)


def _is_exact(kind: str) -> bool:
    return evidence_of(kind) is Evidence.EXACT
