"""Compare runs that are not interleaved: stored runs, live versions soaked with the settings of a
stored run, and third-party servers, soaked one after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from hybridbench.analysis.comparison.records import ComparisonTerms
from hybridbench.compare.plan import of_one_run
from hybridbench.compare.run import CompareOutcome, refuse_mismatches
from hybridbench.compare.sides import Side
from hybridbench.compare.store import ComparisonWriter, opened_comparison
from hybridbench.foundation.clock import SystemClock
from hybridbench.foundation.errors import ErrorCode, ExitCode, UsageError
from hybridbench.foundation.units import format_duration
from hybridbench.records.comparison import ComparedVersion, ComparisonManifest
from hybridbench.records.manifest import OBSERVED, Manifest
from hybridbench.rundir.manifest import read_manifest
from hybridbench.runs.machine import machine_facts
from hybridbench.runs.manifest import resolved_profile
from hybridbench.runs.plan import SoakOutcome, SoakPlan
from hybridbench.runs.resume import plan_of_manifest
from hybridbench.runs.soak import run_soak
from hybridbench.runs.watch import WatchPlan, run_watched


@dataclass(frozen=True)
class StoredPlan:
    """A comparison whose sides run at different times, without interleaving.

    A live version is soaked with the settings and duration of the first stored run, if
    ``max_time_s`` allows it.  A server is soaked by its plan in ``soaks``, keyed by the side's
    name.  ``settings`` is a digest of everything except the versions; None if stored runs determine
    the settings.
    """

    sides: tuple[Side, ...]
    store: Path
    terms: ComparisonTerms
    allowed: frozenset[str]
    max_time_s: float
    thresholds: tuple[str, ...] = ()
    ui: str = "auto"
    command: tuple[str, ...] = ()
    soaks: Mapping[str, WatchPlan] = field(default_factory=dict)
    settings: str | None = None


# Makes the run of a side without one, in the comparison's directory.
_MakeRun: TypeAlias = Callable[[Side, Path], SoakOutcome]


def compare_stored(plan: StoredPlan) -> CompareOutcome:
    """Compare the sides, after running those without a stored run.

    Raises:
        UsageError: the sides are not comparable, a run is given twice, or the soak of a live
            version would take too long.
        RunDirectoryError: a run cannot be read, or the store cannot be written.
    """
    stored = [(side, side.run_dir) for side in plan.sides if side.run_dir is not None]
    _refuse_twice([run_dir for _, run_dir in stored])
    manifests = [(side, read_manifest(run_dir)) for side, run_dir in stored]
    if manifests:
        # Refuse incomparable stored runs before making or running anything for the others.
        _refuse(manifests, plan)
    make_run: _MakeRun | None = None
    if plan.soaks:
        first = next(iter(plan.soaks.values()))
        model, profile, _ = first.named_by
        make_run = partial(_soak_server, plan)
    else:
        model, profile = manifests[0][1].model.name, manifests[0][1].profile.name
        if len(stored) < len(plan.sides):
            like = _like_the_first(plan, *manifests[0])
            _refuse_live(like, plan, manifests)
            make_run = partial(_run_like, like, plan)
    manifest = ComparisonManifest(
        command=plan.command,
        model=model,
        profile=profile,
        thresholds=plan.thresholds,
        allowed_mismatches=tuple(sorted(plan.allowed)),
        settings=plan.settings,
    )
    with opened_comparison(plan.store, SystemClock(), plan.terms, manifest) as writer:
        return _side_by_side(plan, make_run, writer)


def _refuse_twice(run_dirs: Sequence[Path]) -> None:
    for place, run_dir in enumerate(run_dirs):
        if any(run_dir.samefile(earlier) for earlier in run_dirs[:place]):
            raise UsageError(
                f"{run_dir} is on both sides: compare it with another run.",
                code=ErrorCode.BAD_VALUE,
            )


def _like_the_first(plan: StoredPlan, stored: Side, manifest: Manifest) -> SoakPlan:
    """Return the soak plan for live versions, taken from the first stored run.

    Raises:
        UsageError: the soak would take too long, or the stored run is of another program.
    """
    assert stored.run_dir is not None
    if manifest.target.kind == OBSERVED:
        raise UsageError(
            f"{stored.name} is a run of another program, which a live version cannot repeat: "
            "compare it with another run of a program.",
            code=ErrorCode.MISMATCH,
        )
    like = plan_of_manifest(manifest, stored.run_dir)
    if like.duration_s > plan.max_time_s:
        raise UsageError(
            f"{stored.name} was planned for {format_duration(like.duration_s)}, and a "
            f"live version must run as long: pass --max-time "
            f"{format_duration(like.duration_s)} or compare stored runs only.",
            code=ErrorCode.OPTION_CONFLICT,
        )
    return like


def _side_by_side(
    plan: StoredPlan, make_run: _MakeRun | None, writer: ComparisonWriter
) -> CompareOutcome:
    directory = writer.directory
    versions: tuple[ComparedVersion, ...] = ()
    manifests: list[tuple[Side, Manifest]] = []
    hint: ExitCode | None = None
    for side in plan.sides:
        run_dir = side.run_dir
        if run_dir is None:
            assert make_run is not None  # as there is a version without a run
            outcome = make_run(side, directory)
            run_dir, hint = outcome.run_dir, outcome.exit_hint
        manifest = read_manifest(run_dir)
        manifests.append((side, manifest))
        # A relative path, so that the store can be moved as a whole.
        run = os.path.relpath(run_dir.resolve(), directory.resolve())
        versions = (*versions, side.compared(run, manifest.engine_hash))
        writer.store(msgspec.structs.replace(writer.manifest, versions=versions))
        if hint is not None:
            break
    if hint is None:
        _refuse(manifests, plan)
    ended = "rounds" if hint is None else "interrupted"
    ended_wall_s = SystemClock().wall_s()
    writer.store(
        msgspec.structs.replace(
            writer.manifest, ended=ended, exit_code=hint, ended_wall_s=ended_wall_s
        )
    )
    return CompareOutcome(directory, hint)


def _soak_server(plan: StoredPlan, side: Side, directory: Path) -> SoakOutcome:
    return run_watched(replace(plan.soaks[side.name], store=directory))


def _run_like(like: SoakPlan, plan: StoredPlan, side: Side, directory: Path) -> SoakOutcome:
    return run_soak(_like(like, side, plan, directory))


def _like(like: SoakPlan, side: Side, plan: StoredPlan, directory: Path) -> SoakPlan:
    """Return the soak plan of a live version: the stored run's plan with this version's changes."""
    return replace(
        like,
        store=directory,
        defects=side.defects,
        defects_as_of=side.releases,
        program=side.program,
        options=msgspec.structs.replace(like.options, stop="never", diagnose="never", hold_s=0.0),
        thresholds=of_one_run(plan.thresholds),
        ui=plan.ui,
        command=plan.command,
    )


def _refuse_live(like: SoakPlan, plan: StoredPlan, stored: Sequence[tuple[Side, Manifest]]) -> None:
    """Refuse a live version that this machine or the profile's present settings make incomparable.

    Its soak is as long as the stored run, so this is checked before it, not only after.
    """
    manifests = {side.run_dir: manifest for side, manifest in stored}
    known = []
    for side in plan.sides:
        manifest = manifests.get(side.run_dir)
        if manifest is None:
            profile = resolved_profile(_like(like, side, plan, plan.store))
            facts = {"machine": machine_facts(), "profile": profile}
            manifest = msgspec.structs.replace(stored[0][1], **facts)
        known.append((side, manifest))
    _refuse(known, plan)


def _refuse(manifests: Sequence[tuple[Side, Manifest]], plan: StoredPlan) -> None:
    refuse_mismatches([(s.name, s.kind, manifest) for s, manifest in manifests], plan.allowed)
