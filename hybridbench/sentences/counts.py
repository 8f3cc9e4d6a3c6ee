"""Counts that cannot be, in words."""

from __future__ import annotations

from hybridbench.analysis.facts.pools import pool_unit
from hybridbench.analysis.reading import number, text
from hybridbench.records.verdict import Finding
from hybridbench.sentences.words import Words
from hybridbench.units import format_duration


def negative_count(found: Finding) -> Words:
    """Fewer than none."""
    part = text(found.data, "part").replace("_", " ")
    return Words(
        f"{part} is {number(found.data, 'least'):,.0f}: the count fell below zero",
        cause="something was released, or taken off the count, twice",
        evidence=(_readings(found),),
    )


def more_free_than_exist(found: Finding) -> Words:
    """More free slots than slots."""
    most, pool = number(found.data, "most"), text(found.data, "pool")
    return Words(
        f"free {pool_unit(pool)} exceed the size of the {pool} pool by {most:,.0f}",
        cause="a slot was freed twice and is in the free list twice",
        evidence=(_readings(found),),
    )


def _readings(found: Finding) -> str:
    seen, every = number(found.data, "looks"), number(found.data, "readings")
    first = format_duration(found.since_s or 0.0)
    return f"in {seen:,.0f} of {every:,.0f} readings, first at {first}"
