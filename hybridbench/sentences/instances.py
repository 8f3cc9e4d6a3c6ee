"""Removed objects that are still alive, in words."""

from __future__ import annotations

from collections.abc import Iterable

from hybridbench.analysis.exact.instances import TOLERANCE
from hybridbench.analysis.reading import number, text
from hybridbench.records.codes import FindingCode
from hybridbench.records.verdict import Finding
from hybridbench.sentences.rates import full_rate_text
from hybridbench.sentences.trend import collectible_split
from hybridbench.sentences.words import Words, driver_evidence, times
from hybridbench.units import format_bytes, format_count, format_duration, format_percent


def instances(found: Finding) -> Words:
    """How many were found, and what a full collection does to them."""
    most = format_count(number(found.data, "most"))
    alive = f"up to {most} removed {found.subject} objects are still alive"
    return Words(
        f"{alive}: {_fate(found)}{_per_event(found)}",
        cause=_cause(found),
        evidence=(*_evidence(found), *driver_evidence(found)),
    )


def _survive(found: Finding) -> float:
    return number(found.data, "retained_most")


def _freed(found: Finding) -> float:
    return number(found.data, "collectible_most")


def _fate(found: Finding) -> str:
    waits = found.kind == FindingCode.INSTANCES_WAIT_FOR_COLLECTOR
    kept = f"{format_count(_survive(found))} survive a full gc.collect()"
    freed = f"{format_count(_freed(found))} wait for the garbage collector"
    if _survive(found) <= TOLERANCE:
        return freed if waits else "something still refers to them"
    if _freed(found) <= TOLERANCE:
        return kept
    if "retained_share" in found.data:
        share = number(found.data, "retained_share")
        kept = f"{format_percent(share)} survive a full gc.collect()"
        freed = f"{format_percent(1.0 - share)} wait for the garbage collector"
    return f"{freed}, {kept}" if waits else f"{kept}, {freed}"


def _per_event(found: Finding) -> str:
    if found.driver is None:
        return ""
    return f"; {full_rate_text(found.rates[0], signed=False)}"


def _cause(found: Finding) -> str:
    if _freed(found) <= TOLERANCE:
        return "something still refers to objects that the engine has removed"
    if found.kind == FindingCode.INSTANCES_WAIT_FOR_COLLECTOR:
        return "removed objects still refer to each other: only a full collection frees them"
    return (
        "removed objects still refer to each other and to objects in use: some form cycles, which "
        "only a full collection frees; most are still referred to from objects in use, so nothing "
        "frees them"
    )


def _evidence(found: Finding) -> Iterable[str]:
    data, unit = found.data, text(found.data, "unit")
    yield (
        f"removed objects alive in {number(data, 'probes_with_strays'):,.0f} of "
        f"{number(data, 'probes'):,.0f} heap scans, first at "
        f"{format_duration(found.since_s or 0.0)}, {format_count(number(data, 'last'))} in the last"
    )
    if _survive(found) > TOLERANCE:
        if _freed(found) > TOLERANCE:
            yield (
                f"in single heap scans up to {format_count(_survive(found))} {unit} survive a full "
                f"collection, and up to {format_count(_freed(found))} are freed by one"
            )
        else:
            yield f"up to {format_count(_survive(found))} {unit} survive a full collection"
    elif data.get("retained_measured"):
        yield "a full collection would free all of them: nothing else refers to them"
    if "collections" in data:
        yield _collections(number(data, "collections"), number(data, "stretches"))
    if "collectible_bytes_most" in data:
        size = format_bytes(number(data, "collectible_bytes_most"))
        yield f"collectible memory reached {size}"
    split = collectible_split(data)
    if split:
        yield split


def _collections(count: float, stretches: float) -> str:
    if not count:
        return "no full collection during the run"
    parts = f"{stretches:,.0f} stretch{'es' * (stretches != 1)}"
    return f"{times(count, 'full collection')} during the run; rates are from {parts} between them"
