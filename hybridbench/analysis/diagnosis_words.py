"""A diagnosis in words: a paragraph to paste into a bug report, and the detail of each part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hybridbench.analysis.diagnosis import Diagnosis, Garbage, Holding, PartKind, Site
from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.findings.words import times
from hybridbench.foundation.units import format_bytes, format_duration, format_percent
from hybridbench.records.heap import RetainedObjects, ViewedStorage

_HOLDINGS_MAX = 3
_SHARE_NAMED = 0.01  # minimum share of the growth; imports and library caches stay below it
OBJECTS_MIN = 32
_PARTS: Final[Mapping[PartKind, str]] = {
    PartKind.RETAINED: "is still referenced",
    PartKind.COLLECTOR: "waited for a full collection",
    PartKind.CACHE: "is cache",
    PartKind.ALLOCATOR: "is free memory of malloc",
    PartKind.UNEXPLAINED: "is unexplained",
}


def bug_report(diagnosis: Diagnosis) -> str:
    """Describe what grew, by how much, its parts, its holders, and the calls behind it."""
    return " ".join(_sentences(diagnosis))


def part_detail(found: Diagnosis, kind: PartKind) -> str:
    """Describe one part of the growth."""
    match kind:
        case PartKind.RETAINED:
            return "; ".join(_held_rows(found.holdings))
        case PartKind.COLLECTOR:
            return _garbage(found.garbage)
        case PartKind.CACHE:
            return "freed by a cache flush, beyond the baseline"
        case PartKind.ALLOCATOR:
            return "free memory of malloc"
        case PartKind.UNEXPLAINED:
            return ""


def _held_rows(holdings: Sequence[Holding]) -> Iterable[str]:
    for holding in holdings:
        row = holding.objects
        if holding.in_cache and not row.dragged:
            continue
        if row.count == 0:
            yield f"{row.type_name} {row.holder} ({times(row.entries, 'entry', 'entries')})"
        else:
            yield f"{row.count:,} {row.type_name} by {row.holder}"


def _garbage(garbage: Garbage) -> str:
    counted = ", ".join(f"{count:,} {name}" for name, count in garbage.types[:3])
    if not garbage.cycles:
        return counted
    return f"{counted}; on cycles {garbage.cycles[0]}"


def _sentences(found: Diagnosis) -> Iterable[str]:
    yield _growth(found)
    yield from _waiting(found)
    yield from map(_viewed, found.views)
    yield from _held(found)
    yield from _calls(found)
    yield from _allocated(found)
    yield from _rest(found)


def _growth(found: Diagnosis) -> str:
    length = format_duration(found.to_s - found.from_s)
    events = [f" and {site.events:,.0f} {_plural(site.counter)}" for site in _relevant_sites(found)]
    if found.growth_bytes < 0:
        moved = f"shrank by {format_bytes(-found.growth_bytes)}"
    else:
        moved = f"grew by {format_bytes(found.growth_bytes)}"
    return (
        f"Over {length}{''.join(events[:1])} the idle worker's private memory {moved}, "
        f"to {format_bytes(found.rest_bytes)}."
    )


def _waiting(found: Diagnosis) -> Iterable[str]:
    garbage = found.garbage
    if garbage.objects < OBJECTS_MIN:
        yield "There was almost no uncollected garbage."
        return
    types = ", ".join(f"{count:,} {name}" for name, count in garbage.types[:4])
    gave = next((row.gave_bytes for row in found.stages if row.name == "collect"), 0.0)
    yield (
        f"{garbage.objects:,} objects ({format_bytes(garbage.size_bytes)}) waited for a full "
        f"garbage collection: {types}; gc.collect() returned {format_bytes(max(0.0, gave))} to the "
        "system."
    )
    if garbage.cycles:
        kinds = ", ".join(f"{count:,} {name}" for name, count in garbage.cycle_types[:2])
        first = garbage.cycles[0]
        yield (
            f"They form {garbage.components:,} reference cycles of {kinds}; "
            f"{format_percent(first.share)} of the sampled cycles go through {first}."
        )


def _held(found: Diagnosis) -> Iterable[str]:
    named = [row.objects for row in found.holdings if _is_named(row, found)][:_HOLDINGS_MAX]
    if named:
        yield "Still referenced are:"
        yield "; ".join(_holding(row) for row in named) + "."


def _is_named(row: Holding, found: Diagnosis) -> bool:
    """Whether these objects are worth naming.

    They are if they left their structure but stay reachable, or if they are outside the cache and
    above a minimum share of the growth.
    """
    if row.objects.dragged:
        return True
    is_much = row.objects.size_bytes >= _SHARE_NAMED * found.growth_bytes
    return found.explained is not None and is_much and not row.in_cache


def _holding(row: RetainedObjects) -> str:
    size = format_bytes(row.size_bytes)
    chain = " -> ".join(row.chain) or row.holder
    if row.dragged:
        return (
            f"{row.count:,} {row.type_name} ({size}) removed from their structure and still "
            f"reachable through pointers of neighbours, mostly {row.holder} (for example {chain})"
        )
    if row.count == 0:
        items = f" of {row.item_type}" if row.item_type else ""
        entries = times(row.entries, "entry", "entries")
        return f"the {row.type_name} {chain} grew by {size} to {entries}{items}"
    entries = f", a container of {times(row.entries, 'entry', 'entries')}" if row.entries else ""
    return f"{row.count:,} {row.type_name} ({size}) by {row.holder}{entries} ({chain})"


def _viewed(row: ViewedStorage) -> str:
    return (
        f"{row.views:,} arrays in {row.holder} ({format_bytes(row.view_bytes)}) are views of "
        f"{row.storages:,} larger arrays and keep all of these alive, "
        f"{format_bytes(row.storage_bytes)}; a copy of each view would not."
    )


def _calls(found: Diagnosis) -> Iterable[str]:
    for site in _relevant_sites(found):
        kinds = [name for name, of in found.sites.items() if of is site]
        seen = f", in the calls {', '.join(site.calls)}" if site.calls else ""
        yield (
            f"{kinds[0]} objects were removed {site.events:,.0f} times in this run "
            f"(counter {site.counter}){seen}; look there for pointers that are not cleared."
        )


def _allocated(found: Diagnosis) -> Iterable[str]:
    record = found.allocations
    if record is None or not record.sites:
        return
    first = record.sites[0]
    callers = f", called by {', '.join(first.stack[1:4])}" if first.stack[1:] else ""
    yield (
        f"{format_duration(record.seconds)} of further traffic ({record.requests:,} requests) was "
        "served with every allocation recorded. The most memory that a cache flush did not free, "
        f"{format_bytes(first.size_bytes)} in {first.count:,} blocks, was allocated in "
        f"{first.stack[0]}{callers}."
    )


def _relevant_sites(found: Diagnosis) -> list[Site]:
    """The sites of classes on cycles, in the garbage, or dragged along."""
    names = [name for name, _ in (*found.garbage.cycle_types, *found.garbage.types)]
    names += [row.objects.type_name for row in found.holdings if row.objects.dragged]
    if found.garbage.objects < OBJECTS_MIN:
        names = [row.objects.type_name for row in found.holdings if row.objects.dragged]
    sites = [found.sites[name] for name in dict.fromkeys(names) if name in found.sites]
    return [site for site in sites if site.events > 0]


def _rest(found: Diagnosis) -> Iterable[str]:
    """Describe all parts of the growth in one sentence; they add up to the total."""
    if found.explained is None:
        yield "The growth is too small to attribute."
        return
    # A negligible share prints as "0.0%", whatever its sign.
    said = [
        f"{format_percent(round(part.share, 3) + 0.0, 1)} {_PARTS[part.kind]}"
        for part in found.parts
    ]
    yield f"Of the growth, {', '.join(said[:-1])} and {said[-1]}."


def _plural(counter: str) -> str:
    word = singular(counter)
    return word if word.endswith("s") else f"{word}s"
