"""Results of examining a heap: counts by type, memory after each stage, a survey."""

from __future__ import annotations

from hybridbench.records.wire_record import WireRecord


class TypeCount(WireRecord, frozen=True):
    """Garbage of one type."""

    type_name: str = ""
    count: int = 0
    size_bytes: int = 0


class InstanceCount(WireRecord, frozen=True):
    """Live instances of a class that should die by reference count, and how many are expected.

    Of the rest, ``collectible`` wait for a full collection, and ``retained`` survive one.
    """

    live: int = 0
    expected: int = 0
    collectible: int = 0
    retained: int = 0

    @property
    def stray(self) -> int:
        """Number of live instances beyond those that the engine accounts for."""
        return self.live - self.expected


class StageReading(WireRecord, frozen=True):
    """Memory of the worker after one stage; ``private_bytes`` is RssAnon and swap."""

    name: str = ""
    private_bytes: int = 0
    malloc_in_use_bytes: int = 0
    malloc_arena_bytes: int = 0
    device_allocated_bytes: int = 0
    device_reserved_bytes: int = 0
    seconds: float = 0.0


class Cycle(WireRecord, frozen=True):
    """A cycle as attribute names, and its share of all objects on cycles."""

    edges: tuple[str, ...] = ()
    share: float = 0.0

    def __str__(self) -> str:
        """The edges, followed by the starting point."""
        return " -> ".join((*self.edges, self.edges[0].partition(".")[0])) if self.edges else ""


class RetainedObjects(WireRecord, frozen=True):
    """Objects at one place that were not held at the baseline, or a container that grew.

    ``size_bytes`` includes everything they hold.  ``chain`` is the most frequent path from a root
    to a sample of them, and ``chain_share`` its share of the sample.  ``holder`` is the attribute
    or container that holds them, ``entries`` its length, if any.  ``dragged`` means that only
    neighbour pointers reach them.  A ``count`` of 0 means a container that grew by objects the
    collector does not track; ``item_type`` is then the most frequent class among them.
    """

    type_name: str = ""
    count: int = 0
    size_bytes: int = 0
    path: str = ""
    holder: str = ""
    entries: int = 0
    chain: tuple[str, ...] = ()
    chain_share: float = 0.0
    dragged: bool = False
    item_type: str = ""


class ViewedStorage(WireRecord, frozen=True):
    """Arrays at one attribute (``holder``) that are small views of larger arrays.

    The ``views`` need ``view_bytes``; the ``storages`` that they keep alive take
    ``storage_bytes``.
    """

    holder: str = ""
    views: int = 0
    view_bytes: int = 0
    storages: int = 0
    storage_bytes: int = 0


class Survey(WireRecord, frozen=True):
    """The result of a full heap examination; ``error`` is empty on success."""

    error: str = ""
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
    cycles: list[Cycle] = []
    retained: list[RetainedObjects] = []
    views: list[ViewedStorage] = []


class SurveyRecord(Survey, frozen=True):
    """A survey as the worker sends it, with what only the parent and the next survey need."""

    rehearsal: list[StageReading] = []
    paths: dict[str, tuple[int, int]] = {}
    classes: dict[str, int] = {}


class SiteRecord(WireRecord, frozen=True):
    """The calls in which a counter was seen to move, and the class that its events remove."""

    counter: str = ""
    calls: list[str] = []
    removes: str = ""


class CallSite(WireRecord, frozen=True):
    """One function and its remaining allocations.

    ``stack`` lists "function (file:line)" outwards from it, for the main origin of the memory.
    """

    size_bytes: int = 0
    count: int = 0
    stack: tuple[str, ...] = ()
