"""What is found by counting, in words: slots, locks and containers, and counts that cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hybridbench.analysis.facts.pools import pool_unit
from hybridbench.analysis.findings.words import driver_evidence, per_event, readings
from hybridbench.analysis.reading import mappings, number, number_list, text, texts
from hybridbench.records.finding import Words
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Finding
from hybridbench.units import format_count, format_duration, format_percent

_HOLDERS = {
    "REQ": "a request",
    "TREE": "the prefix tree",
    "SESSION": "a session",
    "TRACK": "a track buffer",
    "HOST": "a transfer",
    "FREE": "free in the ledger",
}


def residual(found: Finding) -> Words:
    """Slots that nobody holds."""
    missing, pool = number(found.data, "missing"), text(found.data, "pool")
    if "at_checkpoints" in found.data:
        seen = f"residual at the last checkpoints: {_readings(found)}"
    else:
        samples = number(found.data, "last_samples")
        seen = f"residual over the last {samples:,.0f} samples: at least {missing:,.0f}"
    return Words(
        f"{missing:,.0f} {pool_unit(pool)} are missing{per_event(found)}: neither free nor held by "
        "anyone",
        evidence=(
            seen,
            *_missing_slots(found.data, pool),
            *driver_evidence(found),
            *_losing_steps(found.data),
        ),
    )


def negative_residual(found: Finding) -> Words:
    """More slots in use than there are."""
    surplus, unit = number(found.data, "surplus"), pool_unit(text(found.data, "pool"))
    return Words(
        f"{surplus:,.0f} {unit} have more than one holder while idle{per_event(found)}",
        cause="a slot was freed twice, or is counted by two holders",
        evidence=(
            f"residual at the last checkpoints: {_readings(found)}",
            *driver_evidence(found),
        ),
    )


def held_at_idle(found: Finding) -> Words:
    """Slots of requests that are gone, or of transfers whose end nobody has noticed."""
    held, pool = number(found.data, "held"), text(found.data, "pool")
    holders = "requests that no longer exist"
    if pool.startswith("host_"):
        holders = "transfers that were never acknowledged"
    return Words(
        f"{held:,.0f} {pool_unit(pool)} are held by {holders}{per_event(found)}",
        evidence=(
            f"in flight at the checkpoint at {format_duration(found.since_s or 0.0)}",
            *driver_evidence(found),
        ),
    )


def locks_at_idle(found: Finding) -> Words:
    """Locks that outlived their holders."""
    count, component = number(found.data, "locks"), text(found.data, "component")
    return Words(
        f"{count:,.0f} {component} locks are held with no request in the engine{per_event(found)}",
        cause="a lock was never released",
        evidence=(*_locks(found), *driver_evidence(found)),
    )


def negative_locks(found: Finding) -> Words:
    """Locks that were released more often than taken."""
    count, component = number(found.data, "locks"), text(found.data, "component")
    return Words(
        f"the count of {component} locks is {count:,.0f} with no request in the engine",
        cause="a lock was released twice",
        evidence=tuple(_locks(found)),
    )


def container_grows(found: Finding) -> Words:
    """How much longer it got, and with which event."""
    name, data = text(found.data, "container"), found.data
    first, last = (format_count(number(data, key)) for key in ("first", "last"))
    if found.driver is None:
        grows = f"{name} was longer at each of {number(data, 'checkpoints'):,.0f} checkpoints"
    else:
        grows = f"{name} only grows"
    at_idle = ", ".join(map(format_count, number_list(data, "at_checkpoints")))
    return Words(
        f"{grows}: {first} to {last} entries{per_event(found)}",
        cause="entries are added and never removed",
        evidence=(
            *((f"length at idle checkpoints: {at_idle}",) if at_idle else ()),
            *driver_evidence(found),
        ),
    )


def negative_count(found: Finding) -> Words:
    """Fewer than none."""
    part = text(found.data, "part").replace("_", " ")
    return Words(
        f"{part} is {number(found.data, 'least'):,.0f}: the count fell below zero",
        cause="something was released, or taken off the count, twice",
        evidence=(_looks(found),),
    )


def more_free_than_exist(found: Finding) -> Words:
    """More free slots than slots."""
    most, pool = number(found.data, "most"), text(found.data, "pool")
    return Words(
        f"free {pool_unit(pool)} exceed the size of the {pool} pool by {most:,.0f}",
        cause="a slot was freed twice and is in the free list twice",
        evidence=(_looks(found),),
    )


def _locks(found: Finding) -> Iterable[str]:
    yield f"locks at the last checkpoints: {_readings(found)}"


def _missing_slots(data: Mapping[str, JsonValue], pool: str) -> Iterable[str]:
    """Which slots are missing, with their last holders where the ledger knows them."""
    slots, holders = number_list(data, "slots"), texts(data, "slot_holders")
    if not slots:
        return
    names = [
        f"{slot:.0f} ({_HOLDERS.get(holders[i], holders[i])})"
        if i < len(holders)
        else f"{slot:.0f}"
        for i, slot in enumerate(slots)
    ]
    left = number(data, "slots_reported") - len(names)
    more = f" and {left:,.0f} more" if left > 0 else ""
    known = ", each with its last holder in the allocator's ledger" if holders else ""
    yield f"missing {pool} slots{known}: {', '.join(names)}{more}"


def _losing_steps(data: Mapping[str, JsonValue]) -> Iterable[str]:
    """Several causes, each with its share of the slots."""
    for row in mappings(data, "losing_steps"):
        of_steps = format_percent(number(row, "of_steps"), 1)
        yield (
            f"{format_percent(number(row, 'share'))} of the slots were lost in steps with "
            f"{text(row, 'counter')}, which are {of_steps} of all steps"
        )


def _readings(found: Finding) -> str:
    return readings(number_list(found.data, "at_checkpoints"))


def _looks(found: Finding) -> str:
    seen, every = number(found.data, "looks"), number(found.data, "readings")
    first = format_duration(found.since_s or 0.0)
    return f"in {seen:,.0f} of {every:,.0f} readings, first at {first}"
