"""Containers that only grow, in words."""

from __future__ import annotations

from hybridbench.analysis.reading import number, number_list, text
from hybridbench.records.verdict import Finding
from hybridbench.sentences.words import Words, driver_evidence, per_event
from hybridbench.units import format_count


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
