"""The manifest of a soak: first the plan, then, once the worker is up, what actually runs."""

from __future__ import annotations

import dataclasses
import resource
from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from hybridbench import __version__
from hybridbench.records.json_value import JsonValue, plain_mapping
from hybridbench.records.manifest import (
    Intervals,
    Manifest,
    Model,
    ProcessLimits,
    ResolvedProfile,
    SegmentFacts,
    TargetFacts,
    Trace,
)
from hybridbench.records.messages import Ready
from hybridbench.runs.defect_files import hashes_of
from hybridbench.runs.machine import git_state, interpreter_facts, machine_facts
from hybridbench.runs.plan import RunPlan, SoakPlan
from hybridbench.sampling.headroom import memory_limit
from hybridbench.targets.target import NOT_SHOWN
from hybridbench.targets.wire import PROTOCOL_VERSION
from hybridbench.workload.coverage import OF_HOST_TIER, OF_STATES, OF_TREES, OF_WINDOWS


def begun_manifest(plan: RunPlan, run_id: str, started_wall_s: float) -> Manifest:
    """Return what is known about any run before its target starts."""
    limit = memory_limit()
    return Manifest(
        run_id=run_id,
        started_wall_s=started_wall_s,
        planned_duration_s=plan.duration_s,
        command=plan.command,
        versions={"hybridbench": __version__},
        git=git_state(),
        machine=machine_facts(),
        interpreter=interpreter_facts(),
        thresholds=plan.thresholds,
        options=plan.options,
        cadence=Intervals(sample_s=plan.cadence.sample_every_s),
        limits=ProcessLimits(
            memory_bytes=None if limit is None else limit.size_bytes,
            memory_source=None if limit is None else limit.source,
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
    )


def planned_manifest(plan: SoakPlan, run_id: str, started_wall_s: float) -> Manifest:
    """Return everything known before the worker's first message."""
    return replace(
        begun_manifest(plan, run_id, started_wall_s),
        model=Model(name=plan.model, device=plan.device, dtype=plan.dtype),
        prepared=plan.program.prepared,
        profile=resolved_profile(plan),
        seed=plan.seed,
        defects=plan.defects,
        defects_as_of=plan.defects_as_of,
        defect_files=hashes_of(plan.defects),
        trace=_trace(plan),
        malloc={"mode": plan.malloc},
        thresholds=tuple(dict.fromkeys((*plan.profile.thresholds, *plan.thresholds))),
        cadence=Intervals(
            sample_s=plan.cadence.sample_every_s,
            heap_scan_s=plan.cadence.collectible_every_s,
            checkpoint_s=plan.cadence.checkpoint_every_s,
        ),
    )


def resolved_profile(plan: SoakPlan) -> ResolvedProfile:
    """Return every key of the profile, and its requirements for the planned length."""
    profile = plan.profile
    return ResolvedProfile(
        limits=profile.limits_by_metric(),
        name=profile.name,
        source=plan.profile_source,
        resolved=plain_mapping(profile.resolved()),  # type: ignore[arg-type]  # plain JSON
        limits_as_planned=dict(profile.limits_as_planned(plan.duration_s).by_metric()),
        assert_coverage=dict(profile.coverage_minimums(plan.duration_s)),
    )


def profile_of_length(manifest: Manifest, plan: SoakPlan, traffic_s: float) -> ResolvedProfile:
    """Return the requirements for ``traffic_s`` of traffic, without floors on events that cannot
    occur in the engine of ``manifest``.
    """
    resolved = resolved_profile(dataclasses.replace(plan, duration_s=traffic_s))
    kept = manifest.profile.assert_coverage
    floors = {name: floor for name, floor in resolved.assert_coverage.items() if name in kept}
    return replace(resolved, assert_coverage=floors)


def with_worker(
    manifest: Manifest, plan: SoakPlan, ready: Ready, traffic: Mapping[str, JsonValue]
) -> Manifest:
    """Complete ``manifest`` with what the worker declared and the traffic it will get."""
    can = set(ready.capabilities)
    floors = manifest.profile.assert_coverage
    # With "kv_blocks", one pool of blocks serves all kinds of layers, and hashes replace the tree.
    of_trees = OF_TREES | OF_STATES | OF_WINDOWS if "kv_blocks" in ready.pools else frozenset()
    without_tree = of_trees & floors.keys()
    without_states = set() if "mamba" in ready.pools else OF_STATES & floors.keys() - of_trees
    without_windows = set() if "swa" in ready.pools else OF_WINDOWS & floors.keys() - of_trees
    without_host_tier = set() if "host_kv" in ready.pools else OF_HOST_TIER & floors.keys()
    unreachable = without_states | without_windows | without_host_tier | without_tree
    uncounted = set(ready.uncounted) & floors.keys() - unreachable
    unreachable |= uncounted
    kept = {name: floor for name, floor in floors.items() if name not in unreachable}
    missing = [text for name, text in NOT_SHOWN.items() if name not in can]
    for names, kept_none in (
        (without_states, "no recurrent states"),
        (without_windows, "no KV in sliding windows"),
        (without_host_tier, "no KV in a host tier"),
        (without_tree, "no prefix tree"),
    ):
        if names:
            missing.append(
                f"{', '.join(sorted(names))}: {ready.model} keeps {kept_none}, so the "
                "profile's floors on them do not apply"
            )
    if uncounted:
        missing.append(
            f"{', '.join(sorted(uncounted))}: not counted in this target, so the profile's floors "
            "on them do not apply"
        )
    return replace(
        manifest,
        profile=replace(manifest.profile, assert_coverage=kept),
        model=replace(manifest.model, preset=ready.model, note=ready.model_note),
        versions={**ready.versions, "hybridbench": __version__},
        engine_hash=ready.engine_files_sha256,
        gc=ready.gc,
        limits=replace(manifest.limits, device_bytes=ready.device_bytes or None),
        malloc={"mode": plan.malloc, **ready.malloc},
        capabilities=tuple(sorted(can)),
        not_seen=tuple(missing),
        pools=dict(ready.pools),
        target=TargetFacts(
            pid=ready.pid,
            wire_version=PROTOCOL_VERSION,
            heap_scan=ready.heap_scan,
            engine_files=ready.engine_files,
            boot_s=round(ready.boot_s, 3),
            capabilities=tuple(sorted(can)),
            metrics=tuple(ready.metrics),
        ),
        workload=traffic,
    )


def with_segment(
    manifest: Manifest, plan: SoakPlan, ready: Ready, started_wall_s: float
) -> Manifest:
    """Add this process to ``manifest`` as its last segment."""
    segment = plan.segment
    entry = SegmentFacts(
        index=0 if segment is None else segment.index,
        started_wall_s=started_wall_s,
        start_s=0.0 if segment is None else segment.start_s,
        traffic_s=plan.traffic_s,
        traffic_seed=plan.traffic_seed,
        pid=ready.pid,
        engine_hash=ready.engine_files_sha256,
        versions=ready.versions,
        gc=ready.gc,
        malloc=ready.malloc,
        command=plan.command,
    )
    return replace(manifest, segments=(*manifest.segments, entry))


def with_counts(manifest: Manifest, counts: Mapping[str, int]) -> Manifest:
    """Add the workload's counts from this segment to those from earlier ones."""
    summed = Counter(manifest.workload_counts)
    summed.update(counts)
    return replace(manifest, workload_counts=dict(summed))


def _trace(plan: SoakPlan) -> Trace | None:
    trace = plan.trace
    if trace is None:
        return None
    return Trace(
        path=str(trace.path),
        length_scale=str(trace.length_scale),
        speedup=trace.speedup,
        time_unit=trace.time_unit,
    )
