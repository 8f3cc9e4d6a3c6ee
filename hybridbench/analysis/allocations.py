"""What a stretch of traffic allocated and nobody gave back, as a run recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hybridbench.analysis.reading import number
from hybridbench.analysis.record import RunRecord

ALLOCATIONS_EVENT: Final = "allocations"


@dataclass(frozen=True)
class CallSite:
    """One function and what is left of its allocations; ``stack`` goes from it outwards."""

    size_bytes: int
    count: int
    stack: tuple[str, ...]


@dataclass(frozen=True)
class Allocations:
    """The largest call sites after ``seconds`` of traffic with ``requests`` finished, flushed."""

    seconds: float
    requests: int
    sites: tuple[CallSite, ...]


def read_allocations(record: RunRecord) -> Allocations | None:
    """Of the last record of ``record``; None where none was made."""
    event = record.last_event(ALLOCATIONS_EVENT)
    if event is None:
        return None
    rows = event.data.get("sites")
    sites: list[CallSite] = []
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping):
            stack = row.get("stack")
            frames = tuple(str(frame) for frame in stack) if isinstance(stack, list) else ()
            sites.append(
                CallSite(int(number(row, "size_bytes")), int(number(row, "count")), frames)
            )
    requests = int(number(event.data, "requests"))
    return Allocations(number(event.data, "seconds"), requests, tuple(sites))
