"""What a look at the heap found: counts by type, memory after each stage, a survey."""

from __future__ import annotations

from hybridbench.records.wire_record import WireRecord


class TypeCount(WireRecord, frozen=True):
    """Garbage of one type."""

    type_name: str
    count: int
    size_bytes: int


class StageReading(WireRecord, frozen=True):
    """Memory of the worker after one stage; ``private_bytes`` is RssAnon and swap."""

    name: str
    private_bytes: int
    malloc_in_use_bytes: int
    malloc_arena_bytes: int
    device_allocated_bytes: int
    device_reserved_bytes: int
    seconds: float


class CycleRecord(WireRecord, frozen=True):
    """A way round by attribute names, and the share of the objects on cycles that have it."""

    edges: list[str]
    share: float


class RetainedRecord(WireRecord, frozen=True):
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


class SurveyRecord(WireRecord, frozen=True):
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


class SiteRecord(WireRecord, frozen=True):
    """The calls in which a counter was seen to move, and the class that its events remove."""

    counter: str
    calls: list[str]
    removes: str
