"""manifest.json: what ran, where and how; one record for all readers and writers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from hybridbench.foundation.foreign import INT_MAX, INT_MIN, WALL_S_MAX
from hybridbench.foundation.units import DURATION_MAX_S
from hybridbench.records.codec import OpenRecord, by_name, from_json
from hybridbench.records.json_value import JsonValue, plain_mapping
from hybridbench.records.prepared import PreparedTarget

RUN_SCHEMA: Final = "hybridbench.run/1"

Wall = Annotated[float, msgspec.Meta(ge=0.0, le=WALL_S_MAX)]
INT64 = msgspec.Meta(ge=INT_MIN, le=INT_MAX)
Int64 = Annotated[int, INT64]
# Integers stay integers: a count of slots is not stored as 8192.0.
_Number = int | float
_Duration = Annotated[float, msgspec.Meta(ge=0.0, le=DURATION_MAX_S)]

# The kind of a target with external traffic that reports nothing by itself.
OBSERVED: Final = "observed"
# The name of the capability for process memory.
_MEMORY: Final = "process_memory"

# Keys that are absent until the worker is up, and keys known only at the end or for some runs.
_OF_WORKER: Final = frozenset(
    {"engine_hash", "gc", "capabilities", "not_seen", "pools", "target", "workload", "segments"}
)
_LATER: Final = frozenset(
    {"ended_wall_s", "workload_counts", "version", "left_to_engine", "prepared"}
)


class Model(OpenRecord, frozen=True):
    """The model: ``name`` as requested, ``preset`` as the worker built it."""

    name: str = ""
    preset: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    note: str = ""


class ResolvedProfile(OpenRecord, frozen=True):
    """The profile: every key with the value used, and its requirements for this run's length.

    Attributes:
        limits: growth per hour by metric, each entry from a length ``from_s`` on; None in runs
            stored before limits depended on the length.
        limits_as_planned: the limits for the planned length.
        assert_coverage: the minimum count of each event.
    """

    limits: tuple[dict[str, _Number], ...] | None = None
    name: str = ""
    source: str | None = None
    resolved: Mapping[str, JsonValue] = {}
    limits_as_planned: dict[str, _Number] = msgspec.field(name="promise", default_factory=dict)
    assert_coverage: dict[str, _Number] = {}


class Trace(OpenRecord, frozen=True):
    """The trace that was replayed."""

    path: str = ""
    length_scale: str = ""
    speedup: float | None = None
    time_unit: str = ""  # of plain numbers; empty for the default of its format


class Git(OpenRecord, frozen=True):
    """The source tree."""

    commit: str | None = None
    branch: str | None = None
    dirty: bool = False


class Machine(OpenRecord, frozen=True):
    """CPU, memory, kernel and load; nothing that identifies the machine."""

    system: str | None = None
    kernel: str | None = None
    architecture: str | None = None
    cpu: str | None = None
    cpus: int | None = None
    cpus_usable: int | None = None
    memory_total_kib: str | _Number | None = None
    swap_total_kib: str | _Number | None = None
    load_average_1m: float | None = None
    memory_limit_bytes: _Number | None = None
    memory_limit_source: str | None = None


class Interpreter(OpenRecord, frozen=True):
    """The Python of parent and worker; the worker's if the version has its own."""

    implementation: str = ""
    version: str = ""
    build: str | None = None
    compiler: str | None = None


class Options(OpenRecord, frozen=True):
    """How the run is observed and ended: the options of ``soak`` with the same names.

    Attributes:
        watchdog_s: how long without an engine step, with work pending, counts as a hang.
        stop: "auto" ends a run early once a leak is certain, "early" also once its absence is,
            "never" only when the machine is about to run out of memory or disk.
        extend_s: how long the run may continue beyond its planned length while its verdict is
            undecided; 0 ends it on time.
        diagnose: "auto" diagnoses a worker that leaks, "always" every worker, "never" none.
        hold_s: how long a leaking worker is kept alive before anything in it is destroyed.
        memray_s: extra traffic for a diagnosed worker with its allocations recorded; 0 for none.
        answers_s: how long finished answers may be recomputed after the traffic; 0 compares no
            answers at all.
        cache_budgets: allowed size in bytes of each of the target's caches, by the user's name for
            it.
    """

    watchdog_s: _Duration = 30.0
    stop: str = "never"
    extend_s: _Duration = 0.0
    diagnose: str = "auto"
    hold_s: _Duration = 0.0
    memray_s: _Duration = 0.0
    answers_s: _Duration = 0.0
    cache_budgets: Mapping[str, int] = {}


class Intervals(OpenRecord, frozen=True):
    """How often the run was probed."""

    sample_s: float | None = None
    heap_scan_s: float | None = msgspec.field(default=None, name="census_s")
    checkpoint_s: float | None = None


class ProcessLimits(OpenRecord, frozen=True):
    """What the system allows the worker; ``device_bytes`` is memory of its device."""

    memory_bytes: _Number | None = None
    memory_source: str | None = None
    open_files: int | None = None
    device_bytes: _Number | None = None


class TargetFacts(OpenRecord, frozen=True):
    """The target, and what it declared to be observable."""

    kind: str = "bundled"
    pid: int | None = None
    wire_version: int | None = None
    heap_scan: str = msgspec.field(default="", name="census")
    engine_files: int | None = None
    boot_s: float | None = None
    capabilities: tuple[str, ...] = ()
    metrics: tuple[str, ...] | None = None


class SegmentFacts(OpenRecord, frozen=True):
    """One worker process of the run; ``start_s`` is the run time at which it begins."""

    index: int = 0
    started_wall_s: Wall | None = None
    start_s: float = 0.0
    traffic_s: float = 0.0
    traffic_seed: int | None = None
    pid: int | None = None
    engine_hash: str = ""
    versions: Mapping[str, JsonValue] = {}
    gc: Mapping[str, JsonValue] = {}
    malloc: Mapping[str, JsonValue] = {}
    command: tuple[str, ...] = ()


class Manifest(OpenRecord, frozen=True):
    """What ran.  schemas/manifest.schema.json is the public description of the keys.

    Attributes:
        defects: slugs, or paths of files that define one.
        defect_files: SHA-256 of each of these files, by its path as given.
        defects_as_of: releases of other engines from which ``defects`` were chosen.
        thresholds: pass/fail thresholds of the user.
        malloc: mode and settings of the worker's allocator.
        workload_counts: totals of the traffic, over all segments.
        version: which side of a comparison the run is.
        prepared: the engine that ran, if ``hybridbench target prepare`` installed it.
        left_to_engine: settings that an older engine did not support.
    """

    schema: str = RUN_SCHEMA
    run_id: str = ""
    started_wall_s: Wall | None = None
    planned_duration_s: float | None = None
    command: tuple[str, ...] = ()
    model: Model = Model()
    profile: ResolvedProfile = ResolvedProfile()
    seed: Int64 | None = None
    defects: tuple[str, ...] = ()
    defects_as_of: tuple[str, ...] = ()
    defect_files: dict[str, str] = {}
    trace: Trace | None = None
    versions: Mapping[str, JsonValue] = {}
    git: Git | None = None
    machine: Machine = Machine()
    interpreter: Interpreter = Interpreter()
    malloc: Mapping[str, JsonValue] = {}
    thresholds: tuple[str, ...] = ()
    options: Options = Options()
    cadence: Intervals = Intervals()
    limits: ProcessLimits = ProcessLimits()
    engine_hash: str = ""
    gc: Mapping[str, JsonValue] = {}
    capabilities: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()
    pools: dict[str, _Number] = {}
    target: TargetFacts = TargetFacts()
    prepared: PreparedTarget | None = None
    workload: Mapping[str, JsonValue] = {}
    segments: tuple[SegmentFacts, ...] = ()
    workload_counts: dict[str, int] = {}
    ended_wall_s: Wall | None = None
    version: Mapping[str, JsonValue] = {}
    left_to_engine: tuple[str, ...] = ()

    @property
    def sees_memory(self) -> bool:
        """Whether the target's memory could be sampled, as far as the target declares."""
        shown = self.target.capabilities
        return self.target.kind != OBSERVED or not shown or _MEMORY in shown


def manifest_from_json(stored: Mapping[str, JsonValue]) -> Manifest:
    """Return the manifest in ``stored``, with defaults for missing keys.

    Raises:
        msgspec.ValidationError: a value is of another type.
    """
    return from_json(stored, Manifest)


def manifest_to_json(manifest: Manifest) -> dict[str, JsonValue]:
    """Return ``manifest`` as it is stored; non-finite numbers become null.

    A limit that the machine does not report is not finite.
    """
    known = manifest.engine_hash or manifest.target.kind == OBSERVED
    absent = set() if known else set(_OF_WORKER)
    stored = by_name(manifest)
    absent |= {key for key in _LATER if not stored[key]}
    return plain_mapping({key: value for key, value in stored.items() if key not in absent})
