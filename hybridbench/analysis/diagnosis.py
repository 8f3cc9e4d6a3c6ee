"""Attribute a run's memory growth: retained, uncollected, cache, allocator, unexplained.

The diagnosis reads memory after each stage at the end of the run, and a forked child rehearsed the
same stages at the first idle baseline.  The growth between the two is the sum of two parts: the
memory that each stage frees beyond what it freed at the baseline, and the memory that no stage
frees.  Heap surveys show which objects those are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import Allocations, DiagnosisBaseline, DiagnosisStages
from hybridbench.records.heap import Cycle, RetainedObjects, StageReading, Survey, ViewedStorage

# Idle memory fluctuates by this much, so splitting smaller growth is meaningless.
GROWTH_MIN_BYTES = 4 * 2**20


class PartKind(StrEnum):
    """What holds the additional memory."""

    RETAINED = "retained"
    COLLECTOR = "waiting for the collector"
    CACHE = "cache"
    ALLOCATOR = "allocator"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Part:
    """One part of the growth; ``share`` is relative to the total."""

    kind: PartKind
    size_bytes: float
    share: float


@dataclass(frozen=True)
class Holding:
    """Objects held at the end but not at the baseline, and whether the cache holds them."""

    objects: RetainedObjects
    in_cache: bool


@dataclass(frozen=True)
class Garbage:
    """Objects that were waiting for a full collection at the end."""

    objects: int = 0
    size_bytes: float = 0.0
    types: tuple[tuple[str, int], ...] = ()
    components: int = 0
    on_cycles: int = 0
    cycle_types: tuple[tuple[str, int], ...] = ()
    cycles: tuple[Cycle, ...] = ()


@dataclass(frozen=True)
class StageRow:
    """One stage: memory after it, and what it freed at the end and at the baseline."""

    name: str
    private_bytes: float
    gave_bytes: float
    gave_at_baseline_bytes: float | None


@dataclass(frozen=True)
class Site:
    """The calls in which a counter was seen to move, and by how much it moved during the run."""

    counter: str
    calls: tuple[str, ...]
    events: float


@dataclass(frozen=True)
class Diagnosis:
    """The complete result of a diagnosis.

    ``growth_bytes`` is the growth of idle private memory from ``from_s`` to ``to_s``; the parts
    add up to it.  ``explained`` is None if there was too little growth to split.
    """

    from_s: float
    to_s: float
    growth_bytes: float
    rest_bytes: float
    parts: tuple[Part, ...]
    explained: float | None
    garbage: Garbage
    holdings: tuple[Holding, ...]
    stages: tuple[StageRow, ...]
    sites: Mapping[str, Site] = field(default_factory=dict)  # by the class that is removed
    views: tuple[ViewedStorage, ...] = ()  # only those that keep much more than at the baseline
    allocations: Allocations | None = None
    notes: tuple[str, ...] = ()


def diagnose(record: RunRecord) -> Diagnosis | None:
    """Evaluate the last diagnosis of ``record``; None if there was none."""
    event = record.last_event(DiagnosisStages)
    if event is None:
        return None
    earlier = [base for base in record.all_events(DiagnosisBaseline) if base.t_s < event.t_s]
    baseline = earlier[-1] if earlier else DiagnosisBaseline()
    readings = _Readings.of(event, baseline)
    survey, survey_then = event.survey, baseline.survey
    # The engine accounts for instances of these classes; a holder among them is in the cache.
    counted = {name.split(".")[1] for name in record.series if name.startswith("instances.")}
    holdings = tuple(_holdings(survey.retained, counted))
    garbage = _garbage(survey)
    parts = _parts(readings, holdings, garbage, survey_then.garbage_bytes)
    return Diagnosis(
        from_s=baseline.t_s,
        to_s=event.t_s,
        growth_bytes=readings.growth,
        rest_bytes=readings.after.get("rest", 0.0),
        parts=parts,
        explained=_explained(parts, readings.growth),
        garbage=garbage,
        holdings=holdings,
        stages=tuple(readings.rows()),
        sites=_sites(record, event, baseline.t_s),
        views=tuple(_views(survey.views, survey_then.views)),
        allocations=record.last_event(Allocations),
        notes=tuple(_notes(survey, survey_then, readings, parts)),
    )


@dataclass(frozen=True)
class _Readings:
    """Private memory after each stage, at the end and in the baseline's rehearsal, in order."""

    after: Mapping[str, float]
    rehearsed: Mapping[str, float]
    rest_then: float | None

    @classmethod
    def of(cls, event: DiagnosisStages, baseline: DiagnosisBaseline) -> _Readings:
        rests = _by_stage(baseline.stages)
        return cls(_by_stage(event.stages), _by_stage(baseline.rehearsal), rests.get("rest"))

    @property
    def growth(self) -> float:
        return self.after.get("rest", 0.0) - self.rest_then if self.rest_then is not None else 0.0

    def more_given(self, stage: str) -> float:
        """Return how much more ``stage`` freed at the end than at the baseline."""
        return _given(self.after, stage) - _given(self.rehearsed, stage)

    def rows(self) -> Iterable[StageRow]:
        for name, private in self.after.items():
            known = name in self.rehearsed and name != "rest"
            then = _given(self.rehearsed, name) if known else None
            yield StageRow(name, private, _given(self.after, name), then)


def _by_stage(readings: Iterable[StageReading]) -> dict[str, float]:
    return {reading.name: float(reading.private_bytes) for reading in readings}


def _given(after: Mapping[str, float], stage: str) -> float:
    """Return how much ``stage`` freed: memory after the previous stage less memory after it."""
    names = list(after)
    position = names.index(stage) if stage in after else 0
    return after[names[position - 1]] - after[stage] if position else 0.0


def _parts(
    readings: _Readings, holdings: Sequence[Holding], garbage: Garbage, weighed_then: float
) -> tuple[Part, ...]:
    growth = readings.growth
    collector, flushed = readings.more_given("collect"), readings.more_given("flush")
    allocator = readings.more_given("trim") + readings.more_given("device")
    kept = growth - collector - flushed - allocator
    dragged = sum(row.objects.size_bytes for row in holdings if row.objects.dragged)
    # A flush also frees objects that cached nodes reach by neighbour pointers; they are not cache.
    hung = min(dragged, max(0.0, flushed))
    held = sum(
        row.objects.size_bytes for row in holdings if not row.objects.dragged and not row.in_cache
    )
    unknown = kept - held - (dragged - hung)
    # Garbage may share arenas with live objects.  Freeing it then returns no memory, but it is
    # still part of the growth.
    stuck = max(0.0, garbage.size_bytes - weighed_then - max(0.0, collector))
    stuck = min(stuck, max(0.0, unknown))

    def part(kind: PartKind, size: float) -> Part:
        return Part(kind, size, size / growth if growth else 0.0)

    return (
        part(PartKind.RETAINED, held + dragged),
        part(PartKind.COLLECTOR, collector + stuck),
        part(PartKind.CACHE, flushed - hung),
        part(PartKind.ALLOCATOR, allocator),
        part(PartKind.UNEXPLAINED, unknown - stuck),
    )


def _explained(parts: Sequence[Part], growth: float) -> float | None:
    if growth < GROWTH_MIN_BYTES:
        return None
    unknown = next(part for part in parts if part.kind is PartKind.UNEXPLAINED)
    return max(0.0, 1.0 - abs(unknown.share))


def _holdings(rows: Iterable[RetainedObjects], counted: set[str]) -> Iterable[Holding]:
    for row in rows:
        classes = {name.strip().removeprefix("~") for name in row.path.split(">")}
        yield Holding(row, in_cache=bool(classes & counted))


def _views(
    views: Iterable[ViewedStorage], views_then: Iterable[ViewedStorage]
) -> Iterable[ViewedStorage]:
    """Yield the views that keep clearly more storage than at the baseline."""
    then = {row.holder: row.storage_bytes for row in views_then}
    for row in views:
        if row.storage_bytes - then.get(row.holder, 0) >= GROWTH_MIN_BYTES:
            yield row


def _garbage(survey: Survey) -> Garbage:
    return Garbage(
        objects=survey.garbage_objects,
        size_bytes=float(survey.garbage_bytes),
        types=tuple((row.type_name.rpartition(".")[2], row.count) for row in survey.garbage_types),
        components=survey.components,
        on_cycles=survey.on_cycles,
        cycle_types=tuple(survey.cycle_types.items()),
        cycles=tuple(survey.cycles),
    )


def _sites(record: RunRecord, event: DiagnosisStages, since_s: float) -> dict[str, Site]:
    """Return the counters whose events remove objects, by the class of those objects."""
    found: dict[str, Site] = {}
    for site in event.sites:
        series = record.series.get(f"events.{site.counter}")
        if site.removes and series is not None and len(series):
            moved = series.between(since_s, event.t_s).value
            events = float(moved[-1] - moved[0]) if moved.size else 0.0
            found[site.removes] = Site(site.counter, tuple(site.calls), events)
    return found


def _notes(
    survey: Survey,
    survey_then: Survey,
    readings: _Readings,
    parts: Sequence[Part],
) -> Iterable[str]:
    if survey.error:
        yield f"the heap could not be surveyed: {survey.error}"
    if readings.rest_then is None:
        yield "the run had no idle baseline: growth cannot be split"
    elif not readings.rehearsed:
        reason = survey_then.error or "its rehearsal gave no result"
        yield (
            f"slack, garbage and cache of the baseline are unknown and assumed to be zero: {reason}"
        )
    unknown = next(part for part in parts if part.kind is PartKind.UNEXPLAINED)
    if unknown.size_bytes < -GROWTH_MIN_BYTES:
        yield (
            "the parts add up to more than the growth, because memory that was free before was "
            "reused"
        )
