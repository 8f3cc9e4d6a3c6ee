"""Going on with a soak that was cut off: its manifest is the plan, its directory the place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hybridbench.clock import Clock, SystemClock
from hybridbench.errors import RunDirectoryError
from hybridbench.foreign import SEED_MAX
from hybridbench.records.json_value import JsonValue, as_mapping
from hybridbench.rundir.cut import read_cut_run
from hybridbench.rundir.layout import MANIFEST
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.manifest import read_manifest
from hybridbench.runs.defect_files import defects_to_resume
from hybridbench.runs.interrupts import handled_interrupts
from hybridbench.runs.plan import WATCHDOG_S, Segment, SoakOutcome, SoakPlan
from hybridbench.runs.soak import continue_soak
from hybridbench.units import DURATION_MAX_S
from hybridbench.workload.profile import Profile
from hybridbench.workload.trace_replay import (
    TraceOptions,
    parse_length_scale,
    parse_speedup,
)

# The time of a run is that in which it ran: a night's absence would leave nothing to see on its
# charts, and is told in words.
_GAP_S_MAX = 60.0
_GAP_S_MIN = 1.0


@dataclass(frozen=True)
class Resumption:
    """What a person may choose anew when a run goes on; everything else is the manifest's.

    None means: as it began.  ``defects`` are those that the command line names: files among the
    recorded ones must be there.
    """

    run_dir: Path
    ui: str = "auto"
    stop: str | None = None
    diagnose: str | None = None
    hold_s: float | None = None
    defects: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def resume_soak(wanted: Resumption, clock: Clock | None = None) -> SoakOutcome:
    """Serve what is left of a run that was cut off, as one more segment of it.

    Raises:
        RunDirectoryError: there is nothing to resume, or another process is at it.
        ConfigError: the engine, the interpreter or a file that the plan names has changed.
        WorkerFailedError: the worker process cannot be started.
    """
    clock = clock if clock is not None else SystemClock()
    # Before the lock: a directory that holds no run must not get a file either.
    read_manifest(wanted.run_dir)
    with handled_interrupts() as interrupts, locked_run(wanted.run_dir):
        segment = read_segment(wanted.run_dir, clock.wall_s())
        return continue_soak(resumed_plan(wanted, segment), segment, clock, interrupts)


def resumed_plan(wanted: Resumption, segment: Segment) -> SoakPlan:
    """The plan in the manifest, with what is left to do of it.

    Raises:
        RunDirectoryError: the manifest lacks a part of the plan.
        ConfigError: its profile is none for this version.
        UsageError: a defect of the run is a file, which is not named again.
    """
    plan = plan_of_manifest(segment.manifest, wanted.run_dir)
    return replace(
        plan,
        defects=defects_to_resume(segment.manifest, plan.defects, wanted.defects),
        ui=wanted.ui,
        stop=wanted.stop or plan.stop,
        diagnose=wanted.diagnose or plan.diagnose,
        hold_s=plan.hold_s if wanted.hold_s is None else wanted.hold_s,
        segment=segment,
        command=wanted.command,
    )


def plan_of_manifest(manifest: Mapping[str, JsonValue], run_dir: Path) -> SoakPlan:
    """The plan that the run in ``run_dir`` began with, as if it had not begun.

    Raises:
        RunDirectoryError: the manifest lacks a part of the plan.
        ConfigError: its profile is none for this version.
    """
    profile, model = as_mapping(manifest.get("profile")), as_mapping(manifest.get("model"))
    resolved = profile.get("resolved")
    if not isinstance(resolved, Mapping):
        raise _lacks(run_dir, "profile.resolved")
    options = as_mapping(manifest.get("options"))
    source = profile.get("source")
    return SoakPlan(
        profile=Profile.from_resolved(resolved, str(run_dir / MANIFEST)),
        model=str(model["name"]),
        store=run_dir.parent,
        duration_s=_duration(manifest, "planned_duration_s", run_dir),
        seed=_seed(manifest, run_dir),
        device=str(model.get("device", "cpu")),
        dtype=str(model.get("dtype", "float32")),
        defects=_texts(manifest.get("defects")),
        defects_as_of=_texts(manifest.get("defects_as_of")),
        trace=_trace(as_mapping(manifest.get("trace")), run_dir),
        profile_source=str(source) if isinstance(source, str) else None,
        malloc=str(as_mapping(manifest.get("malloc")).get("mode", "pinned")),
        census=str(options.get("census", "auto")),
        watchdog_s=_or(options.get("watchdog_s"), WATCHDOG_S),
        stop=str(options.get("stop", "never")),
        extend_s=_or(options.get("extend_s"), 0.0),
        diagnose=str(options.get("diagnose", "auto")),
        hold_s=_or(options.get("hold_s"), 0.0),
        memray_s=_or(options.get("memray_s"), 0.0),
    )


def read_segment(run_dir: Path, now_wall_s: float) -> Segment:
    """Where the run in ``run_dir`` goes on.

    Raises:
        RunDirectoryError: there is nothing to resume.
    """
    cut = read_cut_run(run_dir)
    away_s = None if cut.end_wall_s is None else max(0.0, now_wall_s - cut.end_wall_s)
    gap_s = min(max(away_s or 0.0, _GAP_S_MIN), _GAP_S_MAX)
    return Segment(run_dir, cut.segments, cut.end_s + gap_s, away_s, cut.served_s, cut.manifest)


def _trace(stored: Mapping[str, JsonValue], run_dir: Path) -> TraceOptions | None:
    if not stored:
        return None
    for key in ("path", "length_scale", "speedup"):
        if key not in stored:
            raise _lacks(run_dir, f"trace.{key}")
    return TraceOptions(
        Path(str(stored["path"])),
        parse_length_scale(str(stored["length_scale"])),
        parse_speedup(str(stored["speedup"])),
    )


def _duration(manifest: Mapping[str, JsonValue], key: str, run_dir: Path) -> float:
    value = manifest.get(key)
    if not isinstance(value, int | float):
        raise _lacks(run_dir, key)
    if not 0 < value <= DURATION_MAX_S:
        raise _is_no(run_dir, key, value, "duration of at most 3650d")
    return float(value)


def _seed(manifest: Mapping[str, JsonValue], run_dir: Path) -> int:
    value = manifest.get("seed")
    if not isinstance(value, int):
        raise _lacks(run_dir, "seed")
    if not 0 <= value <= SEED_MAX:
        raise _is_no(run_dir, "seed", value, "seed")
    return value


def _or(value: JsonValue, default: float) -> float:
    if isinstance(value, int | float) and 0 <= value <= DURATION_MAX_S:
        return float(value)
    return default


def _is_no(run_dir: Path, key: str, value: float, kind: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{run_dir / MANIFEST}: {key!r} is {value!r}, which is no {kind}: the run cannot go on; "
        "start a new one"
    )


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _lacks(run_dir: Path, key: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{run_dir / MANIFEST} lacks {key!r}, without which the run cannot go on: start a new one"
    )
