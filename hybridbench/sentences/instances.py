"""Removed objects that are still alive, in words."""

from __future__ import annotations

from collections.abc import Iterable

from hybridbench.analysis.findings.instances import TOLERANCE
from hybridbench.analysis.findings.words import bare_rate_text, certain, driver_evidence, times
from hybridbench.analysis.reading import number, text
from hybridbench.metrics import Unit
from hybridbench.records.codes import FindingCode
from hybridbench.records.finding import Words
from hybridbench.records.verdict import Finding
from hybridbench.sentences.trend import collectible_split
from hybridbench.units import format_bytes, format_count, format_duration


def instances(found: Finding) -> Words:
    """What becomes of them, and how many there are: for each event and by the hour, or in all."""
    objects = f"removed {found.subject} objects {_fate(found)}"
    rates = list(_certain_rates(found))
    most = format_count(number(found.data, "most"))
    return Words(
        f"{objects}: {', '.join(rates)}" if rates else f"up to {most} {objects}",
        cause=_cause(found),
        evidence=(*_evidence(found), *driver_evidence(found)),
    )


def parts(found: Finding) -> tuple[str, str] | None:
    """The shares that a full collection frees and that survive it; None where all do the same."""
    if "retained_share" not in found.data or not _is_mixed(found):
        return None
    kept = round(100.0 * number(found.data, "retained_share"))
    if not 0 < kept < 100:
        few, most = "less than 1%", "more than 99%"
        return (few, most) if kept else (most, few)
    return f"{100 - kept}%", f"{kept}%"


def _survive(found: Finding) -> float:
    return number(found.data, "retained_most")


def _freed(found: Finding) -> float:
    return number(found.data, "collectible_most")


def _is_mixed(found: Finding) -> bool:
    return min(_survive(found), _freed(found)) > TOLERANCE


def _fate(found: Finding) -> str:
    shares = parts(found)
    if shares is not None:
        return f"stay alive ({shares[1]} survive a full gc.collect())"
    if _is_mixed(found):
        return "stay alive (some survive a full gc.collect())"
    if _survive(found) > TOLERANCE:
        return "survive a full gc.collect()"
    if found.kind == FindingCode.INSTANCES_WAIT_FOR_COLLECTOR:
        return "wait for the garbage collector"
    return "stay alive, and something still refers to them"


def _certain_rates(found: Finding) -> Iterable[str]:
    """``0.99 per evicted node``, ``131 k/h``: those that are certainly more than zero."""
    for rate in found.rates:
        if rate.unit != Unit.BYTES and certain(rate):
            yield bare_rate_text(rate)


def _cause(found: Finding) -> str:
    shares = parts(found)
    if shares is not None:
        return (
            f"{shares[0]} form reference cycles or hang from one, which only a full collection "
            f"frees; the other {shares[1]} are still referenced by objects in use, so a collection "
            "keeps them"
        )
    if _is_mixed(found):
        return (
            "some form reference cycles or hang from one, which only a full collection frees; "
            "the others are still referenced by objects in use, so a collection keeps them"
        )
    if _freed(found) <= TOLERANCE:
        return "something still refers to objects that the engine has removed"
    return "removed objects still refer to each other: only a full collection frees them"


def _evidence(found: Finding) -> Iterable[str]:
    data, unit = found.data, text(found.data, "unit")
    yield (
        f"removed objects alive in {number(data, 'probes_with_strays'):,.0f} of "
        f"{number(data, 'probes'):,.0f} heap scans, first at "
        f"{format_duration(found.since_s or 0.0)}; at most {format_count(number(data, 'most'))} "
        f"at once, {format_count(number(data, 'last'))} in the last"
    )
    if _is_mixed(found):
        yield from _both_parts(found)
    elif _survive(found) > TOLERANCE:
        yield f"up to {format_count(_survive(found))} {unit} survive a full collection"
    elif data.get("retained_measured"):
        yield "a full collection would free all of them: nothing else refers to them"
    if "collections" in data:
        yield _collections(number(data, "collections"), number(data, "stretches"))
    if "collectible_bytes_most" in data:
        size = format_bytes(number(data, "collectible_bytes_most"))
        until = " before a full collection" if data.get("collections") else ""
        yield f"collectible memory reached {size}{until}"
    split = collectible_split(data)
    if split:
        yield split


def _both_parts(found: Finding) -> Iterable[str]:
    """What a collection frees and what survives it: shares of all scans, counts of one."""
    data, shares = found.data, parts(found)
    if shares is None or "fullest_s" not in data:
        return
    freed, kept = (
        format_count(number(data, f"fullest_{of}")) for of in ("collectible", "retained")
    )
    tried = times(number(data, "probes_tried"), "heap scan")
    yield (
        f"in {tried} with a trial collection, all together: it frees {shares[0]} of the removed "
        f"objects, {shares[1]} survive it"
    )
    at = format_duration(number(data, "fullest_s"))
    yield f"in the fullest of them, at {at}: {freed} freed, {kept} survive"


def _collections(count: float, stretches: float) -> str:
    if not count:
        return "no full collection during the run"
    parts = f"{stretches:,.0f} stretch{'es' * (stretches != 1)}"
    return f"{times(count, 'full collection')} during the run; rates are from {parts} between them"
