"""manifest.json: what ran, on what and how; one record for all who write or read it."""

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
# An integer stays one: a count of slots is not stored as 8192.0.
_Number = int | float
_Duration = Annotated[float, msgspec.Meta(ge=0.0, le=DURATION_MAX_S)]

# The kind of a target that gets its traffic from others and says nothing of itself.
OBSERVED: Final = "observed"
# The name of that capability.
_MEMORY: Final = "process_memory"

# What no process has said before the worker is up, and what is known only at the end or of some
# runs: until then there is no such key.
_OF_WORKER: Final = frozenset(
    {"engine_hash", "gc", "capabilities", "not_seen", "pools", "target", "workload", "segments"}
)
_LATER: Final = frozenset(
    {"ended_wall_s", "workload_counts", "version", "left_to_engine", "prepared"}
)


class Model(OpenRecord, frozen=True):
    """The model: ``name`` as it was asked for, ``preset`` as the worker built it."""

    name: str = ""
    preset: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    note: str = ""


class ResolvedProfile(OpenRecord, frozen=True):
    """The profile: every key with the value that was used, and what it asks of a run this long.

    Attributes:
        limits: growth per hour by metric, each entry from a length ``from_s`` on; None in runs
            stored before limits came by length.
        limits_as_planned: those of the planned length.
        assert_coverage: the least count of each event.
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
    time_unit: str = ""  # of plain numbers; empty for that of its format


class Git(OpenRecord, frozen=True):
    """The source tree."""

    commit: str | None = None
    branch: str | None = None
    dirty: bool = False


class Machine(OpenRecord, frozen=True):
    """Processor, memory, kernel and how busy it was; nothing that names the machine."""

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
    """The Python that runs parent and worker; of a version with its own, the worker's."""

    implementation: str = ""
    version: str = ""
    build: str | None = None
    compiler: str | None = None


class Options(OpenRecord, frozen=True):
    """How the run is watched and ended; what ``soak`` takes as options of the same names.

    Attributes:
        watchdog_s: this long without an engine step, with work pending, is a hang.
        stop: "auto" ends a run early once it surely leaks, "early" also once it surely does not,
            "never" only when the machine is about to run out of memory or disk.
        extend_s: how long the run may go on beyond its planned length while its verdict is
            undecided; 0 ends it on time.
        diagnose: "auto" asks a worker that leaks what it holds, "always" each one, "never" none.
        hold_s: how long a worker that leaks is kept alive before anything of it is destroyed.
        memray_s: how much more traffic a diagnosed worker gets with its allocations recorded; 0 is
            none.
        answers_s: how long finished answers may be computed anew after the traffic; 0 compares
            none, at no time.
        cache_budgets: bytes that a cache of the target may come to hold, by the name that the user
            gave it.
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
    """What was under soak, and what it declared that it can show."""

    kind: str = "bundled"
    pid: int | None = None
    wire_version: int | None = None
    heap_scan: str = msgspec.field(default="", name="census")
    engine_files: int | None = None
    boot_s: float | None = None
    capabilities: tuple[str, ...] = ()
    metrics: tuple[str, ...] | None = None


class SegmentFacts(OpenRecord, frozen=True):
    """One worker process of the run; ``start_s`` is the time of the run at which it begins."""

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
    """What ran.  schemas/manifest.schema.json describes the keys to others.

    Attributes:
        defects: slugs, or paths of files that define one.
        defect_files: SHA-256 of each of these files, by the path that was given.
        defects_as_of: releases of other engines that ``defects`` were taken from.
        thresholds: what the run is held against beyond the analysis.
        malloc: mode and settings of the worker's allocator.
        workload_counts: what the traffic came to, all segments together.
        version: which side of a comparison the run is.
        prepared: the engine that ran, if ``hybridbench target prepare`` installed it.
        left_to_engine: settings that an older engine did not know.
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
        """Whether the memory of the target could be sampled, as far as the target says."""
        shown = self.target.capabilities
        return self.target.kind != OBSERVED or not shown or _MEMORY in shown


def manifest_from_json(stored: Mapping[str, JsonValue]) -> Manifest:
    """The manifest in ``stored``; what is missing has its default.

    Raises:
        msgspec.ValidationError: a value is of another type.
    """
    return from_json(stored, Manifest)


def manifest_to_json(manifest: Manifest) -> dict[str, JsonValue]:
    """``manifest`` as it is stored; numbers that are not finite become null.

    A machine may not know one of its limits.
    """
    known = manifest.engine_hash or manifest.target.kind == OBSERVED
    absent = set() if known else set(_OF_WORKER)
    stored = by_name(manifest)
    absent |= {key for key in _LATER if not stored[key]}
    return plain_mapping({key: value for key, value in stored.items() if key not in absent})
