"""Resume an interrupted soak, with the plan from its manifest, in its run directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from hybridbench.analysis.reading import text
from hybridbench.foundation.clock import SystemClock
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.foundation.foreign import SEED_MAX
from hybridbench.foundation.units import DURATION_MAX_S
from hybridbench.records.manifest import Manifest, Trace
from hybridbench.rundir.cut import read_cut_run
from hybridbench.rundir.layout import MANIFEST
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.manifest import read_manifest
from hybridbench.runs.defect_files import defects_to_resume
from hybridbench.runs.interrupts import handled_interrupts
from hybridbench.runs.plan import Segment, SoakOutcome, SoakPlan
from hybridbench.runs.soak import continue_soak
from hybridbench.workload.profile import Profile
from hybridbench.workload.trace_replay import (
    TraceOptions,
    parse_length_scale,
    parse_speedup,
)

# An interruption takes at most this much run time: charts do not show a night's absence, which the
# report states in words.
_GAP_S_MAX = 60.0
_GAP_S_MIN = 1.0


@dataclass(frozen=True)
class Resumption:
    """What the user may change when resuming a run; everything else comes from the manifest.

    ``options`` are fields of ``Options``.  ``defects`` are those on the command line: they must
    include all files among the recorded ones.
    """

    run_dir: Path
    ui: str = "auto"
    options: Mapping[str, str | float] = field(default_factory=dict)
    defects: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def resume_soak(wanted: Resumption) -> SoakOutcome:
    """Serve the rest of an interrupted run as its next segment.

    Raises:
        RunDirectoryError: there is nothing to resume, or another process is using it.
        ConfigError: the engine, the interpreter or a file that the plan names has changed.
        WorkerFailedError: the worker process cannot be started.
    """
    clock = SystemClock()
    # Check before locking: a directory without a run must not get a lock file.
    read_manifest(wanted.run_dir)
    with handled_interrupts() as interrupts, locked_run(wanted.run_dir):
        segment = read_segment(wanted.run_dir, clock.wall_s())
        return continue_soak(resumed_plan(wanted, segment), segment, clock, interrupts)


def resumed_plan(wanted: Resumption, segment: Segment) -> SoakPlan:
    """Return the plan in the manifest, with the remaining work.

    Raises:
        RunDirectoryError: the manifest lacks a part of the plan, or the engine is a released one.
        ConfigError: its profile is not valid for this version.
        UsageError: a defect of the run is a file that is not named again.
    """
    prepared = segment.manifest.prepared
    if prepared is not None:
        raise RunDirectoryError(
            f"{wanted.run_dir} is a run of {prepared.name}, which cannot be resumed: start a new "
            f"one with --target {prepared.name}"
        )
    plan = plan_of_manifest(segment.manifest, wanted.run_dir)
    return replace(
        plan,
        defects=defects_to_resume(segment.manifest.defect_files, plan.defects, wanted.defects),
        ui=wanted.ui,
        options=msgspec.structs.replace(plan.options, **wanted.options),
        segment=segment,
        command=wanted.command,
    )


def plan_of_manifest(manifest: Manifest, run_dir: Path) -> SoakPlan:
    """Return the plan with which the run in ``run_dir`` began.

    Raises:
        RunDirectoryError: the manifest lacks a part of the plan.
        ConfigError: its profile is not valid for this version.
    """
    profile = manifest.profile
    if not profile.resolved:
        raise _lacks(run_dir, "profile.resolved")
    return SoakPlan(
        profile=Profile.from_resolved(profile.resolved, str(run_dir / MANIFEST)),
        model=manifest.model.name,
        store=run_dir.parent,
        duration_s=_duration(manifest, run_dir),
        seed=_seed(manifest, run_dir),
        device=manifest.model.device,
        dtype=manifest.model.dtype,
        defects=manifest.defects,
        defects_as_of=manifest.defects_as_of,
        trace=_trace(manifest.trace, run_dir),
        profile_source=profile.source,
        malloc=text(manifest.malloc, "mode", "pinned"),
        options=manifest.options,
    )


def read_segment(run_dir: Path, now_wall_s: float) -> Segment:
    """Return where the run in ``run_dir`` resumes.

    Raises:
        RunDirectoryError: there is nothing to resume.
    """
    cut = read_cut_run(run_dir)
    away_s = None if cut.end_wall_s is None else max(0.0, now_wall_s - cut.end_wall_s)
    gap_s = min(max(away_s or 0.0, _GAP_S_MIN), _GAP_S_MAX)
    return Segment(run_dir, cut.segments, cut.end_s + gap_s, away_s, cut.served_s, cut.manifest)


def _trace(stored: Trace | None, run_dir: Path) -> TraceOptions | None:
    if stored is None:
        return None
    for key, value in (
        ("path", stored.path),
        ("length_scale", stored.length_scale),
        ("speedup", stored.speedup),
    ):
        if not value:
            raise _lacks(run_dir, f"trace.{key}")
    scale, speedup = parse_length_scale(stored.length_scale), parse_speedup(str(stored.speedup))
    return TraceOptions(Path(stored.path), scale, speedup, stored.time_unit)


def _duration(manifest: Manifest, run_dir: Path) -> float:
    value = manifest.planned_duration_s
    if value is None:
        raise _lacks(run_dir, "planned_duration_s")
    if not 0 < value <= DURATION_MAX_S:
        raise _is_no(run_dir, "planned_duration_s", value, "duration of at most 3650d")
    return value


def _seed(manifest: Manifest, run_dir: Path) -> int:
    value = manifest.seed
    if value is None:
        raise _lacks(run_dir, "seed")
    if not 0 <= value <= SEED_MAX:
        raise _is_no(run_dir, "seed", value, "seed")
    return value


def _is_no(run_dir: Path, key: str, value: float, kind: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{run_dir / MANIFEST}: {key!r} is {value!r}, which is not a valid {kind}: the run "
        "cannot be resumed; start a new one"
    )


def _lacks(run_dir: Path, key: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{run_dir / MANIFEST} lacks {key!r}, without which the run cannot be resumed: start a new "
        "one"
    )
