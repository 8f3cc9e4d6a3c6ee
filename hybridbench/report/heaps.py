"""Tables from the probes of watched processes: growth in their heaps, and the cost of looking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hybridbench.analysis.drivers.growing import Growing, GrowthKind, Sort
from hybridbench.analysis.drivers.heap_growth import growing_heaps
from hybridbench.analysis.drivers.search import TIME
from hybridbench.analysis.drivers.under_traffic import FEWEST_CENSUSES
from hybridbench.analysis.facts.censuses import Heap, heaps_of
from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.processes import process_views
from hybridbench.analysis.findings.words import times
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import Unit, declared
from hybridbench.records.events import PAGE
from hybridbench.report.document import Table
from hybridbench.report.quantity import SHARE, Form, Quantity, Text, length, phrase

# Rows for each process: leaks come first; the rest grows with them or is a cache.
_MOST_ROWS: Final = 6
_ORDER: Final = (GrowthKind.KEPT, GrowthKind.OPEN, GrowthKind.FILLS, GrowthKind.FULL)
_WHAT: Final[Mapping[Sort, str]] = {
    Sort.ENTRIES: "entries of {}",
    Sort.OBJECTS: "{} objects",
    Sort.BLOCKS: "Python's blocks",
    Sort.BYTES: "malloc",
    Sort.HANDLES: "{}",
}


def heap_tables(record: RunRecord) -> tuple[Table, ...]:
    """Return what grew, and what was seen of each process; empty without heap scans."""
    facts = Facts.of(record)
    heaps = heaps_of(record, facts.counters)
    probed = [heap for heap in heaps if heap.probed]
    growing = growing_heaps(facts)
    if not probed:
        return (_growth(heaps, growing),) if growing else ()
    return _growth(heaps, growing), _probes(record, probed)


def _growth(heaps: Sequence[Heap], growing: Sequence[Growing]) -> Table:
    rows: list[tuple[Text, ...]] = []
    left = 0
    for heap in heaps:
        own = [one for one in growing if one.heap.labels == heap.labels]
        own.sort(key=lambda one: (_ORDER.index(one.kind), -one.per_second))
        left += len(own[_MOST_ROWS:])
        rows += [_row(one) for one in own[:_MOST_ROWS]]
    note: Text = "Of caches and undecided names the rate is that of the second half of the time."
    if left:
        names = "name" if left == 1 else "names"
        note = phrase(note, " ", _count("more names", left, ""), f" more {names} grew.")
    columns = ("process", "what", "in the end", "rate", "it is")
    empty = "No container and no type of object grew steadily in any process."
    fewest = min((len(heap.censuses) for heap in heaps if heap.probed), default=0)
    if fewest < FEWEST_CENSUSES:
        empty = (
            f"A process had only {times(fewest, 'heap scan')}; {FEWEST_CENSUSES} are needed to "
            "tell what grows."
        )
    title = "Growth in the heaps of processes"
    return Table(title, columns, tuple(rows), frozenset({2, 3}), note, empty)


def _row(one: Growing) -> tuple[Text, ...]:
    role = one.heap.role
    what = "series of {}" if role == PAGE else _WHAT[one.sort]
    name = what.format(declared(one.name).label if one.sort is Sort.HANDLES else one.name)
    held = Quantity(f"held.{name}", one.last, _unit(one), of=role, form=Form.VALUE)
    return role, name, held, _rate(one, name), _kind_text(one)


def _unit(one: Growing) -> str:
    return Unit.BYTES.value if one.unit == Unit.BYTES else Unit.COUNT.value


def _rate(one: Growing, name: str) -> Quantity:
    driver, timed = one.kept.driver, one.kept.driver.counter == TIME
    value = driver.per_event if one.kind is GrowthKind.KEPT else one.kept.late
    return Quantity(
        f"kept.{name}",
        value * (3600.0 if timed else 1.0),
        _unit(one),
        (one.since_s, one.until_s),
        "h" if timed else singular(driver.counter),
        of=one.heap.role,
        form=Form.VALUE,
    )


def _kind_text(one: Growing) -> Text:
    if one.kind is GrowthKind.KEPT:
        return "a leak"
    if one.kind is GrowthKind.FULL:
        return "a cache, full"
    if one.kind is GrowthKind.FILLS and one.bound is not None:
        most = Quantity(
            f"bound.{one.name}", one.bound, _unit(one), of=one.heap.role, form=Form.VALUE
        )
        said: list[Text] = ["a cache of at most ", most]
        if one.full_in_s is not None:
            said += [
                ", full in ",
                length(f"until {one.name} is full", one.full_in_s, of=one.heap.role),
            ]
        return phrase(*said)
    return "a cache that slows down" if one.kind is GrowthKind.FILLS else "undecided"


def _count(name: str, value: float, role: str) -> Quantity:
    return Quantity(f"probe.{name}", value, Unit.COUNT.value, of=role, form=Form.VALUE)


def _probes(record: RunRecord, heaps: Sequence[Heap]) -> Table:
    first_s, last_s = record.span_s
    rows = tuple(_cost(heap, max(last_s - first_s, 1e-9)) for heap in heaps)
    seen = {labelled("", heap.labels) for heap in heaps}
    missing = [
        view.labels.get("role", "")
        for view in process_views(record)
        if labelled("", view.labels) not in seen
    ]
    note = "Pauses at idle points delay no request and are left out."
    if missing:
        note += f" Without a probe, so that their heaps were not seen: {', '.join(missing)}."
    columns = (
        *("process", "heap scans", "idle points", "objects"),
        *("longest pause", "paused", "CPU of scans"),
    )
    return Table("What the probes saw and cost", columns, rows, frozenset(range(1, 7)), note)


def _cost(heap: Heap, span_s: float) -> tuple[Text, ...]:
    role = heap.role
    pauses = [one.pause_s for one in heap.censuses if not one.at_rest]
    objects = float(heap.types.value[:, -1].sum()) if heap.censuses else float("nan")
    cpu_s = sum(one.cpu_s for one in heap.censuses)
    return (
        role,
        _count("heap scans", len(heap.censuses), role),
        _count("idle points", len(heap.looks), role),
        _count("objects", objects, role),
        length("longest pause", max(pauses, default=0.0), of=role),
        Quantity("probe.paused", sum(pauses) / span_s, SHARE, of=role),
        Quantity("probe.cpu", cpu_s / span_s, SHARE, of=role),
    )
