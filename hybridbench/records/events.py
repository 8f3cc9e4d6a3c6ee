"""The rare events of a run, with the data of each as stored in a line of events.jsonl.

Events without a record here (from another engine or a later version) and damaged ones are kept
unchanged.  Fields that are None are not stored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from hybridbench.foundation.labels import labelled, of_process
from hybridbench.records.codec import OpenRecord, by_name, from_json
from hybridbench.records.heap import CallSite, InstanceCount, SiteRecord, StageReading, Survey
from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import CrashSearch, Repeated

_BEFORE_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def _kind_of_class(name: str) -> str:
    return _BEFORE_CAPITAL.sub("_", name).lower()


class Event(OpenRecord, frozen=True, kw_only=True, tag=_kind_of_class):
    """A rare event at ``t_s`` seconds after the start; the recorder sets the time."""

    t_s: float = 0.0


class Phase(Event, frozen=True):
    """A phase begins.  Both fields hold its name."""

    name: str = ""
    phase: str = ""


class Steady(Event, frozen=True):
    """The engine is warm; ``reason`` is ``CACHE_FULL`` if only its KV cache shows it."""

    CACHE_FULL: ClassVar[str] = "the KV cache is full"

    reason: str | None = None


class Segment(Event, frozen=True):
    """A new worker resumes an interrupted run, ``away_s`` seconds after it stopped."""

    index: int = 0
    away_s: float | None = None


class OfProcess(Event, frozen=True):
    """Base of the events of one process; only ``pid`` changes when it is restarted."""

    role: str = ""
    pid: int = 0
    host: str = ""
    rank: str = ""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of its series."""
        return of_process(self.role, self.host, self.rank)

    @property
    def process(self) -> str:
        """The labels as they end the names of its series; equal after a restart."""
        return labelled("", self.labels)


class ProcessStarted(OfProcess, frozen=True):
    """A process of that role was first seen; each after the first begins a new segment."""


class ProcessEnded(OfProcess, frozen=True):
    """A process of that role ended; with its exit code or signal, if known."""

    code: int | None = None
    signal: int | None = None


class Note(Event, frozen=True):
    """Something that a reader of the report must know; shown beneath the verdict."""

    text: str = ""


class Interrupted(Event, frozen=True):
    """A signal ended the run; a second one killed the worker."""

    signal: str = ""
    killed: bool | None = None


# A reason of `StoppedEarly`: the watched program ended, without an error.
TARGET_ENDED: Final = "target-ended"


class StoppedEarly(Event, frozen=True):
    """The run ended before its planned end: ``reason`` for programs, ``text`` for readers."""

    reason: str = ""
    text: str = ""


class RequestRefused(Event, frozen=True):
    """Why the engine refused a request that is valid under its profile; only for the first one."""

    text: str = ""


class WorkloadFailed(Event, frozen=True):
    """The workload can send no more requests."""

    text: str = "the workload failed"


class DiskFull(Event, frozen=True):
    """The disk refused a write: later data is lost."""

    text: str = "the disk refused a write"


class BenchFailed(Event, frozen=True):
    """hybridbench itself failed, in ``part``; ``ended_run`` if that ended the traffic.

    ``file`` in the run directory has the traceback.
    """

    part: str = ""
    error: str = ""
    file: str = ""
    ended_run: bool = False


class Crash(Event, frozen=True):
    """How the worker ended, with the last lines of its stderr.

    ``stacks`` says where the threads and coroutines of a watched program waited, by its probes.
    """

    reason: str = "exit"
    detail: str = ""
    stderr_tail: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()


class EngineLog(Event, frozen=True):
    """A line of the engine's log; ``count`` is how often it had occurred by then."""

    text: str = ""
    count: int = 1


class EngineViolation(Event, frozen=True):
    """A violation reported by the engine's own check, at a step or a checkpoint.

    ``count`` is negative for slots counted twice; ``owners`` are the last owners of ``slots``
    according to the allocator's ledger.
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


# The part of a pool that a server's gauges report as in use, if there is no further breakdown.
IN_USE: Final = "in_use"
# The pool of which a page reports only what share is in use, not how many slots there are.
KV_SHARE: Final = "kv_cache"


class Checkpoint(Event, frozen=True):
    """The state of the engine between two steps, after it was given time to become idle."""

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
        """Return ``part`` of the counts of one pool; 0 if it was not counted."""
        return self.pools.get(name, {}).get(part, 0)


# A census's limit of a container from which code removes old entries, by their age for example.
NOT_A_NUMBER: Final = 10**9
# What a census says that a ``bytearray`` holds, instead of a type.
BYTES: Final = "bytes"

# The role of a server's metrics page, which is treated like a heap: metrics contain series.
PAGE: Final = "/metrics"


class Census(OfProcess, frozen=True):
    """A probe's heap scan of one process.

    A name that is left out has the same count as in the previous scan of this process, or 0 in the
    first one.

    Attributes:
        index: number of this process's scan, from 0.
        whole: whether dictionaries that the collector does not track were also searched; counts
            found only there can be compared only between such scans.
        types: live instances by type name.
        entries: total entries of the containers at an attribute path, as ``server.App.pending``.
        containers: number of containers at a path, if not one.
        bounds: maximum entries of the containers at a path, if bounded.
        limits: the same, if a number such as ``max_size`` of their owner or in the code only
            suggests it; ``NOT_A_NUMBER`` if code removes old entries by another rule.
        holds: name of the most frequent value type at a path; ``BYTES`` for a buffer, whose
            entries are bytes.
        pause_s: how long the process was stopped.
        cpu_s: CPU time of the scan, in the process or in its forked child.
        way: "fork" or "slices".
        at_rest: the process was idle, so that the pause delayed nothing.
    """

    index: int = 0
    whole: bool = False
    types: dict[str, int] = {}
    entries: dict[str, int] = {}
    containers: dict[str, int] = {}
    bounds: dict[str, int] = {}
    limits: dict[str, int] = {}
    holds: dict[str, str] = {}
    pause_s: float = 0.0
    cpu_s: float = 0.0
    way: str = "fork"
    at_rest: bool = False


class IdleLook(OfProcess, frozen=True):
    """What one process holds at an idle point, after a collection.

    Attributes:
        index: the idle point's index, common to all processes of the run.
        idle: whether the target's own gauges, or else its CPU time, showed that nothing ran.
        blocks: blocks in use in Python's small-object allocator; None without a probe.
        malloc_bytes: bytes in use in the C allocator; None if it does not report them.
        unreachable: objects that the collection found; None if it was skipped.
        handles: open files, threads, child processes and zombies, by metric.
        counters: the target's work counters at this point, by series name.
        cache_reset: whether the target's cache was emptied first.
        pause_s: how long the process was stopped.
    """

    index: int = 0
    idle: bool = True
    blocks: int | None = None
    malloc_bytes: int | None = None
    unreachable: int | None = None
    handles: dict[str, float] = {}
    counters: dict[str, float] = {}
    cache_reset: bool = False
    pause_s: float = 0.0


class Gap(Event, frozen=True):
    """The sampler was late."""

    seconds: float = 0.0


class ClockJump(Event, frozen=True):
    """The wall clock deviated from the monotonic clock."""

    seconds: float = 0.0


class ProbeLeftOut(Event, frozen=True):
    """The run disabled a probe that stopped the engine for too long."""

    metrics: tuple[str, ...] = ()
    stall_s: float | None = None
    max_stall_s: float | None = None


class Extended(Event, frozen=True):
    """Traffic continues beyond the planned end, for at most ``limit_s``."""

    limit_s: float = 0.0
    text: str = ""


class ExtensionEnded(Event, frozen=True):
    """The extension ended; ``settled`` if the verdict was settled by then."""

    settled: bool = False


class Hold(Event, frozen=True):
    """The leaking worker is kept unchanged for inspection by the user."""

    pid: int = 0
    seconds: float = 0.0


class WrongAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that differs from the reference's by more than rounding can explain.

    ``place`` counts from its first token; ``distance`` is defined in ``Recomputed``.
    """

    rid: str = ""
    prompt_tokens: int = 0
    place: int = 0
    distance: float = 0.0
    emitted: int = 0
    best: int = 0
    traits: tuple[str, ...] = ()


class Lineages(msgspec.Struct, frozen=True, kw_only=True):
    """Compared answers of one kind, by the history of the requests that they continue from.

    Attributes:
        ancestors: number of known ancestors of each: the request whose computation it reused, the
            one that this request in turn reused, and so on.
        heirs: whether they continue from a wrong answer.
        chosen: whether they were compared because a wrong answer continues from them.
        chosen_for: the rare trait that they were compared for; empty if they were drawn at random.
            They count for this trait alone.
        wrong: number of wrong answers.
        right: number of right answers.
        wrong_traits: for each trait, by name, how many of ``wrong`` have it or inherit it from an
            ancestor; those that inherit it from the same request count once.
        right_traits: the same for ``right``, but all count.
        repeated: how many of ``wrong`` inherit a trait from a request already counted.
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
    """The result of recomputing a worker's finished answers with a reference.

    Attributes:
        compared: number of answers, with ``tokens`` up to the first difference.
        tolerance: the largest distance that counts as rounding.
        largest: the largest distance among right answers.
        wrong: the first hundred wrong answers.
        wrong_answers: the number of wrong answers.
        wrong_at_start: how many of them differ at their first token; None in older runs.
        greedy: how many of ``compared`` are greedy; None in older runs.
        wrong_greedy: how many of those are wrong.
        wrong_first: wrong ones that reused nothing computed by another wrong one; None, in older
            runs, means all.
        right_first: the same for right ones.
        wrong_traits: how many of ``wrong_first`` have a trait, by its name.
        right_traits: the same for ``right_first``.
        wrong_for: further wrong ones, compared for a rare trait, by its name; all of them have it.
        right_for: the same for right ones.
        lineages: all answers, grouped by their ancestry.
        left_out: finished requests that were not compared, by reason.
        cpu_s: CPU time of the reference during the run.
        run_s: duration of the run.
    """

    compared: int = 0
    tokens: int = 0
    tolerance: float = 0.0
    largest: float = 0.0
    wrong: tuple[WrongAnswer, ...] = ()
    wrong_answers: int = 0
    wrong_at_start: int | None = None
    greedy: int | None = None
    wrong_greedy: int = 0
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
    """Results so far of repeating requests to a server without its cache."""

    so_far: Repeated = Repeated()


class CulpritsSought(Event, frozen=True):
    """Results of resending the requests in flight at a server's crash, to find the cause.

    ``file`` in the run directory has the same.
    """

    so_far: CrashSearch = CrashSearch()
    file: str = ""


class Reclaim(Event, frozen=True):
    """Private memory of the idle worker, before and after each step of freeing memory."""

    at_rest_bytes: int | float = 0
    after_trim_bytes: int | float = 0
    after_flush_bytes: int | float = 0
    after_collect_bytes: int | float = 0


class DiagnosisBaseline(Event, frozen=True):
    """The first idle baseline: its readings, and a forked child's rehearsal of the stages."""

    stages: tuple[StageReading, ...] = msgspec.field(name="rungs", default=())
    rehearsal: tuple[StageReading, ...] = ()
    survey: Survey = Survey()


class DiagnosisStages(Event, frozen=True, tag="diagnosis"):
    """The stages of a leak diagnosis: memory after each, the heap, and which calls free what."""

    trigger: str | None = None
    stages: tuple[StageReading, ...] = msgspec.field(name="rungs", default=())
    survey: Survey = Survey()
    sites: tuple[SiteRecord, ...] = ()


class Allocations(Event, frozen=True):
    """The largest call sites after a flush; traffic took ``seconds``, with ``requests`` done."""

    seconds: float = 0.0
    requests: int = 0
    file: str | None = None
    sites: tuple[CallSite, ...] = ()


# Every event's record, by its kind as it is stored.
EVENTS: Final[Mapping[str, type[Event]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (*Event.__subclasses__(), *OfProcess.__subclasses__())
    if kind is not OfProcess
}


class OtherEvent(Event, frozen=True):
    """An event that matches no record here; ``unknown`` has all its data."""

    @property
    def is_damaged(self) -> bool:
        """Whether its kind has a record, but its data does not match."""
        return self.kind in EVENTS

    kind: str


def kind_of(event: Event | type[Event]) -> str:
    """Return the kind as it is stored."""
    if isinstance(event, OtherEvent):
        return event.kind
    return str(event.__struct_config__.tag)


def event_data(event: Event) -> dict[str, JsonValue]:
    """Return the event's data as it is stored."""
    if isinstance(event, OtherEvent):
        return {**event.unknown}
    stored = by_name(event)
    del stored["t_s"]
    return {key: value for key, value in stored.items() if value is not None}


def read_event(t_s: float, kind: str, data: Mapping[str, JsonValue]) -> Event:
    """Return the stored event, as an ``OtherEvent`` if its kind or form is unknown."""
    record = EVENTS.get(kind)
    if record is not None:
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.structs.replace(from_json(data, record), t_s=t_s)
    return OtherEvent(kind, unknown=data, t_s=t_s)
