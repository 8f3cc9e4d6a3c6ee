"""The rare events of a run: what each carries, and the lines of events.jsonl they are stored as.

An event without a record here, of another engine or a later version, is kept as it is, and so is a
damaged one.  A field that is None is not stored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from hybridbench.foundation.labels import of_process
from hybridbench.records.codec import OpenRecord, by_name, from_json
from hybridbench.records.heap import CallSite, InstanceCount, SiteRecord, StageReading, Survey
from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import CrashSearch, Repeated

_BEFORE_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def _kind_of_class(name: str) -> str:
    return _BEFORE_CAPITAL.sub("_", name).lower()


class Event(OpenRecord, frozen=True, kw_only=True, tag=_kind_of_class):
    """Something rare that happened ``t_s`` after the start; who records an event stamps it."""

    t_s: float = 0.0


class Phase(Event, frozen=True):
    """From this moment on.  Both fields hold it."""

    name: str = ""
    phase: str = ""


class Steady(Event, frozen=True):
    """The engine is warm."""

    reason: str | None = None


class Segment(Event, frozen=True):
    """A new worker goes on with a run that was cut off, ``away_s`` after it."""

    index: int = 0
    away_s: float | None = None


class ProcessStarted(Event, frozen=True):
    """A process of that role was first seen; not the first one is a segment of its series."""

    role: str = ""
    pid: int = 0
    host: str = ""
    rank: str = ""

    @property
    def labels(self) -> Mapping[str, str]:
        """Of its series."""
        return of_process(self.role, self.host, self.rank)


class ProcessEnded(Event, frozen=True):
    """A process of that role is gone, by an exit code or a signal where that is known."""

    role: str = ""
    pid: int = 0
    host: str = ""
    rank: str = ""
    code: int | None = None
    signal: int | None = None


class Note(Event, frozen=True):
    """Something that a reader of the report must know; shown beneath the verdict."""

    text: str = ""


class Interrupted(Event, frozen=True):
    """A signal ended the run; a second one killed the worker."""

    signal: str = ""
    killed: bool | None = None


class StoppedEarly(Event, frozen=True):
    """The run ended before its planned end: ``reason`` for machines, ``text`` for people."""

    reason: str = ""
    text: str = ""


class WorkloadFailed(Event, frozen=True):
    """No request came after it."""

    text: str = "the workload failed"


class DiskFull(Event, frozen=True):
    """The disk refused a write: what came afterwards is nowhere."""

    text: str = "the disk refused a write"


class BenchFailed(Event, frozen=True):
    """hybridbench itself failed, in ``part``; with ``ended_run`` the traffic ended by that.

    ``file`` of the run directory has the traceback.
    """

    part: str = ""
    error: str = ""
    file: str = ""
    ended_run: bool = False


class Crash(Event, frozen=True):
    """How the worker ended, with the last lines of its stderr."""

    reason: str = "exit"
    detail: str = ""
    stderr_tail: tuple[str, ...] = ()


class EngineLog(Event, frozen=True):
    """A line of the engine; ``count`` is how often it had been said by then."""

    text: str = ""
    count: int = 1


class EngineViolation(Event, frozen=True):
    """The engine's own check objected, in the step or at the checkpoint that is named.

    ``count`` is negative for slots counted twice; ``owners`` had the ``slots`` that it names last,
    by the allocator's ledger.
    """

    kind: str = "unknown"
    pool: str = ""
    message: str = ""
    slots: tuple[int, ...] = ()
    count: int | float = 0
    owners: tuple[str, ...] = ()
    step: int | None = None
    checkpoint: int | None = None


class GarbageOfType(msgspec.Struct, frozen=True):
    """Uncollected instances of one type."""

    type: str = ""
    count: int = 0
    bytes: int = 0


# The part of a pool that a server's gauges call in use, where its account has no more parts.
IN_USE: Final = "in_use"


class Checkpoint(Event, frozen=True):
    """The engine between two steps, after it was given time to come to rest."""

    index: int = 0
    idle: bool | None = None
    pools: dict[str, dict[str, int | float]] = {}
    locks: dict[str, int | float] = {}
    containers: dict[str, int | float] = {}
    running: int | float = 0
    waiting: int | float = 0
    counters: dict[str, int | float] = {}
    collectible: tuple[GarbageOfType, ...] | None = None
    instances: dict[str, InstanceCount] | None = None

    def pool(self, name: str, part: str) -> float:
        """``part`` of the counts of one pool; 0 where it was not counted."""
        return self.pools.get(name, {}).get(part, 0)


# The role under which a server's metrics page is looked at: its metrics are containers of series.
PAGE: Final = "/metrics"


class Census(Event, frozen=True):
    """A look of a probe at the heap of one process.

    A name that is left out has the count that it had in the census of this process before, and 0 in
    its first one.

    Attributes:
        index: of this process's censuses; the first is 0.
        whole: whether dictionaries that the collector does not track were searched for; only such
            censuses can be compared for what is found in no other way.
        types: live instances by the name of their type.
        entries: entries of all containers at one attribute path, such as ``server.App.pending``.
        containers: how many containers there are at a path, where that is not one.
        bounds: the most entries that the containers at a path can have, where they have a bound.
        holds: the name of the type that most values at a path have.
        pause_s: how long the process stood still.
        cpu_s: processor time of the look, in the process or in its forked child.
        way: "fork" or "slices".
        at_rest: nothing ran that the pause could hold up.
    """

    role: str = ""
    pid: int = 0
    host: str = ""
    rank: str = ""
    index: int = 0
    whole: bool = False
    types: dict[str, int] = {}
    entries: dict[str, int] = {}
    containers: dict[str, int] = {}
    bounds: dict[str, int] = {}
    holds: dict[str, str] = {}
    pause_s: float = 0.0
    cpu_s: float = 0.0
    way: str = "fork"
    at_rest: bool = False

    @property
    def labels(self) -> Mapping[str, str]:
        """Of the series of its process."""
        return of_process(self.role, self.host, self.rank)


class IdleLook(Event, frozen=True):
    """What one process holds at a point at which nothing runs, after a collection.

    Attributes:
        index: of the idle point, which all processes of the run share.
        idle: whether the target's own gauges, or else its processor time, said that nothing ran.
        blocks: what Python's small-object allocator has handed out; None without a probe.
        malloc_bytes: what the C allocator has handed out; None where it does not tell.
        unreachable: objects that the collection found; None if it was left out.
        counters: the target's counters of work at this point, by the names of their series.
        cache_reset: whether the target's cache was emptied before.
        pause_s: how long the process stood still.
    """

    role: str = ""
    pid: int = 0
    host: str = ""
    rank: str = ""
    index: int = 0
    idle: bool = True
    blocks: int | None = None
    malloc_bytes: int | None = None
    unreachable: int | None = None
    counters: dict[str, float] = {}
    cache_reset: bool = False
    pause_s: float = 0.0

    @property
    def labels(self) -> Mapping[str, str]:
        """Of the series of its process."""
        return of_process(self.role, self.host, self.rank)


class Gap(Event, frozen=True):
    """The sampler was late."""

    seconds: float = 0.0


class ClockJump(Event, frozen=True):
    """The wall clock went against the steady one."""

    seconds: float = 0.0


class ProbeLeftOut(Event, frozen=True):
    """The run gave up a probe that held the engine for too long."""

    metrics: tuple[str, ...] = ()
    stall_s: float | None = None
    max_stall_s: float | None = None


class Extended(Event, frozen=True):
    """Traffic goes on beyond the planned end, at most so long."""

    limit_s: float = 0.0
    text: str = ""


class ExtensionEnded(Event, frozen=True):
    """Whether the verdict was settled by then."""

    settled: bool = False


class Hold(Event, frozen=True):
    """The leaking worker is kept as it is, for a person to look at."""

    pid: int = 0
    seconds: float = 0.0


class WrongAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that differs from the reference's by more than rounding can explain.

    ``place`` counts from its first token; ``distance`` is as of ``Recomputed``.
    """

    rid: str = ""
    prompt_tokens: int = 0
    place: int = 0
    distance: float = 0.0
    emitted: int = 0
    best: int = 0
    traits: tuple[str, ...] = ()


class Lineages(msgspec.Struct, frozen=True, kw_only=True):
    """Compared answers of one kind, with what the requests that they go on from went through.

    Attributes:
        ancestors: of each, known requests: the one that computed what it reused, the one that that
            had gone on from, and so on.
        heirs: whether they go on from a wrong answer.
        chosen: whether they were compared because a wrong answer goes on from them.
        chosen_for: the rare trait that they were compared for; empty if they were drawn.  They
            count for this trait alone.
        wrong: how many of them are wrong.
        right: how many are right.
        wrong_traits: how many of ``wrong`` have a trait, or a request that they go on from has it,
            by its name; those that have it from the same request count once.
        right_traits: the same of ``right``; all count.
        repeated: those of ``wrong`` that have a trait from a request that is counted already.
    """

    ancestors: int = 0
    heirs: bool = False
    chosen: bool = False
    chosen_for: str = ""
    wrong: int = 0
    right: int = 0
    wrong_traits: dict[str, int] = {}
    right_traits: dict[str, int] = {}
    repeated: dict[str, int] = {}


class AnswersCompared(Event, frozen=True):
    """Finished answers were computed anew by a reference; all of this worker's time.

    Attributes:
        compared: answers, and their ``tokens`` up to the first difference.
        tolerance: the largest distance that counts as rounding.
        largest: the largest distance among those that are right.
        wrong: of those that are not, the first hundred.
        wrong_answers: all of them.
        wrong_first: how many wrong ones had reused nothing that another wrong one had computed;
            None, as in older runs, is all.
        right_first: the same of the right ones.
        wrong_traits: how many of ``wrong_first`` have a trait, by its name.
        right_traits: the same of ``right_first``.
        wrong_for: wrong ones beside ``wrong_first`` that were compared for a rare trait, by its
            name; all of them have it.
        right_for: the same of right ones.
        lineages: all answers by what they go on from.
        left_out: finished requests that were not compared, by the reason.
        cpu_s: processor time of the reference while the run went on.
        run_s: how long the run went on.
    """

    compared: int = 0
    tokens: int = 0
    tolerance: float = 0.0
    largest: float = 0.0
    wrong: tuple[WrongAnswer, ...] = ()
    wrong_answers: int = 0
    wrong_first: int | None = None
    right_first: int | None = None
    wrong_traits: dict[str, int] = {}
    right_traits: dict[str, int] = {}
    wrong_for: dict[str, int] = {}
    right_for: dict[str, int] = {}
    lineages: tuple[Lineages, ...] = ()
    left_out: dict[str, int] = {}
    cpu_s: float = 0.0
    run_s: float = 0.0


class AnswersRepeated(Event, frozen=True):
    """What has come so far of answers that a server was asked for again, without its cache."""

    so_far: Repeated = Repeated()


class CulpritsSought(Event, frozen=True):
    """Which of the requests in flight when a server ended it has ended of again.

    ``file`` of the run directory has the same.
    """

    so_far: CrashSearch = CrashSearch()
    file: str = ""


class Reclaim(Event, frozen=True):
    """Private memory of the worker at rest and after each step of giving back."""

    at_rest_bytes: int | float = 0
    after_trim_bytes: int | float = 0
    after_flush_bytes: int | float = 0
    after_collect_bytes: int | float = 0


class DiagnosisBaseline(Event, frozen=True):
    """The first rest: its readings, and what a forked child found when it rehearsed the stages."""

    rungs: tuple[StageReading, ...] = ()
    rehearsal: tuple[StageReading, ...] = ()
    survey: Survey = Survey()


class DiagnosisStages(Event, frozen=True, tag="diagnosis"):
    """The stages of a leak diagnosis: memory after each, the heap, and which calls free what."""

    trigger: str | None = None
    rungs: tuple[StageReading, ...] = ()
    survey: Survey = Survey()
    sites: tuple[SiteRecord, ...] = ()


class Allocations(Event, frozen=True):
    """The largest call sites after ``seconds`` of traffic with ``requests`` finished, flushed."""

    seconds: float = 0.0
    requests: int = 0
    file: str | None = None
    sites: tuple[CallSite, ...] = ()


_BY_KIND = {str(kind.__struct_config__.tag): kind for kind in Event.__subclasses__()}


class OtherEvent(Event, frozen=True):
    """An event that no record here fits; ``unknown`` has all its data."""

    @property
    def is_damaged(self) -> bool:
        """Whether there is a record of its kind, and its data is not of that form."""
        return self.kind in _BY_KIND

    kind: str


def kind_of(event: Event | type[Event]) -> str:
    """The kind as it is stored."""
    if isinstance(event, OtherEvent):
        return event.kind
    return str(event.__struct_config__.tag)


def event_data(event: Event) -> dict[str, JsonValue]:
    """What the event carries, as it is stored."""
    if isinstance(event, OtherEvent):
        return {**event.unknown}
    stored = by_name(event)
    del stored["t_s"]
    return {key: value for key, value in stored.items() if value is not None}


def read_event(t_s: float, kind: str, data: Mapping[str, JsonValue]) -> Event:
    """The event that was stored; one of another kind, or of another form, is an ``OtherEvent``."""
    record = _BY_KIND.get(kind)
    if record is not None:
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.structs.replace(from_json(data, record), t_s=t_s)
    return OtherEvent(kind, unknown=data, t_s=t_s)
