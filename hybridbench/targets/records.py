"""Parts of messages that are looks at the heap: counts by type, stages of a diagnosis, a survey.

``messages`` names them as its own.
"""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a message: an array without a tag.  Fields may only be added at the end."""


class TypeCount(Record, frozen=True):
    """Garbage of one type."""

    type_name: str
    count: int
    size_bytes: int


class StageReading(Record, frozen=True):
    """Memory of the worker after one stage; ``private_bytes`` is RssAnon and swap."""

    name: str
    private_bytes: int
    malloc_in_use_bytes: int
    malloc_arena_bytes: int
    device_allocated_bytes: int
    device_reserved_bytes: int
    seconds: float


class CycleRecord(Record, frozen=True):
    """A way round by attribute names, and the share of the objects on cycles that have it."""

    edges: list[str]
    share: float


class RetainedRecord(Record, frozen=True):
    """Objects that are held and were not at the baseline; see ``sampling/retained_growth.py``."""

    type_name: str
    count: int
    size_bytes: int
    path: str
    holder: str
    entries: int
    chain: list[str]
    chain_share: float
    dragged: bool
    item_type: str


class SurveyRecord(Record, frozen=True):
    """What a full look at the heap found.  ``error`` is empty when it worked."""

    error: str
    stop_s: float = 0.0
    child_s: float = 0.0
    tracked_objects: int = 0
    garbage_objects: int = 0
    garbage_bytes: int = 0
    garbage_types: list[TypeCount] = []
    components: int = 0
    on_cycles: int = 0
    hanging: int = 0
    cycle_types: dict[str, int] = {}
    cycles: list[CycleRecord] = []
    retained: list[RetainedRecord] = []
    rehearsal: list[StageReading] = []
    paths: dict[str, tuple[int, int]] = {}
    classes: dict[str, int] = {}


class SiteRecord(Record, frozen=True):
    """The calls in which a counter was seen to move, and the class that its events remove."""

    counter: str
    calls: list[str]
    removes: str
