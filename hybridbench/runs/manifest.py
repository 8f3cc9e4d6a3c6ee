"""The manifest of a soak: what is asked for, then, once the worker is up, what really runs."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence

from hybridbench import __version__
from hybridbench.records.json_value import JsonValue, as_mapping, plain_mapping
from hybridbench.records.messages import Ready
from hybridbench.runs.defect_files import DEFECT_FILES, hashes_of
from hybridbench.runs.machine import git_state, interpreter_facts, machine_facts
from hybridbench.runs.plan import SoakPlan
from hybridbench.sampling.headroom import memory_limit
from hybridbench.targets.target import NOT_SHOWN
from hybridbench.targets.wire import PROTOCOL_VERSION


def planned_manifest(plan: SoakPlan, run_id: str, started_wall_s: float) -> dict[str, JsonValue]:
    """Everything that is known before the worker has said a word."""
    limit = memory_limit()
    return {
        "run_id": run_id,
        "started_wall_s": started_wall_s,
        "planned_duration_s": plan.duration_s,
        "command": list(plan.command),
        "model": {
            "name": plan.model,
            "device": plan.device,
            "dtype": plan.dtype,
        },
        "profile": _profile(plan),
        "seed": plan.seed,
        "defects": list(plan.defects),
        "defects_as_of": list(plan.defects_as_of),
        DEFECT_FILES: hashes_of(plan.defects),
        "trace": _trace(plan),
        "versions": {"hybridbench": __version__},
        "git": git_state(),
        "machine": machine_facts(),
        "interpreter": interpreter_facts(),
        "malloc": {"mode": plan.malloc},
        "thresholds": list(dict.fromkeys((*plan.profile.thresholds, *plan.thresholds))),
        "options": {
            "census": plan.census,
            "watchdog_s": plan.watchdog_s,
            "stop": plan.stop,
            "extend_s": plan.extend_s,
            "diagnose": plan.diagnose,
            "hold_s": plan.hold_s,
            "memray_s": plan.memray_s,
        },
        "cadence": {
            "sample_s": plan.cadence.sample_every_s,
            "census_s": plan.cadence.collectible_every_s,
            "checkpoint_s": plan.cadence.checkpoint_every_s,
        },
        "limits": {
            "memory_bytes": None if limit is None else limit.size_bytes,
            "memory_source": None if limit is None else limit.source,
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        },
    }


def with_worker(
    manifest: Mapping[str, JsonValue], plan: SoakPlan, ready: Ready, traffic: Mapping[str, object]
) -> dict[str, JsonValue]:
    """``manifest`` completed with what the worker declared and the traffic it will get."""
    model = {
        "name": plan.model,
        "preset": ready.model,
        "device": plan.device,
        "dtype": plan.dtype,
        "note": ready.model_note,
    }
    can = set(ready.capabilities)
    return {
        **manifest,
        "model": model,
        "versions": {**ready.versions, "hybridbench": __version__},
        "engine_hash": ready.engine_files_sha256,
        "gc": dict(ready.gc),
        "malloc": {"mode": plan.malloc, **ready.malloc},
        "capabilities": sorted(can),
        "not_seen": [text for name, text in NOT_SHOWN.items() if name not in can],
        "pools": dict(ready.pools),
        "target": {
            "kind": "bundled",
            "pid": ready.pid,
            "wire_version": PROTOCOL_VERSION,
            "census": ready.census,
            "engine_files": ready.engine_files,
            "boot_s": round(ready.boot_s, 3),
            "capabilities": sorted(can),
            "metrics": list(ready.metrics),
        },
        "workload": plain_mapping(traffic),  # type: ignore[arg-type]  # plain JSON by its contract
    }


def with_segment(
    manifest: Mapping[str, JsonValue], plan: SoakPlan, ready: Ready, started_wall_s: float
) -> dict[str, JsonValue]:
    """``manifest`` with this process as the last entry of its segments."""
    segment = plan.segment
    entry: dict[str, JsonValue] = {
        "index": 0 if segment is None else segment.index,
        "started_wall_s": started_wall_s,
        "start_s": 0.0 if segment is None else segment.start_s,
        "traffic_s": plan.traffic_s,
        "traffic_seed": plan.traffic_seed,
        "pid": ready.pid,
        "engine_hash": ready.engine_files_sha256,
        "versions": dict(ready.versions),
        "gc": dict(ready.gc),
        "malloc": dict(ready.malloc),
        "command": list(plan.command),
    }
    return {**manifest, "segments": [*_entries(manifest), entry]}


def with_counts(
    manifest: Mapping[str, JsonValue], counts: Mapping[str, int]
) -> dict[str, JsonValue]:
    """``manifest`` with what the workload did in this segment added to what it did before."""
    before = as_mapping(manifest.get("workload_counts"))
    summed: dict[str, JsonValue] = dict(before)
    for name, count in counts.items():
        earlier = before.get(name)
        summed[name] = count + (int(earlier) if isinstance(earlier, int | float) else 0)
    return {**manifest, "workload_counts": summed}


def _profile(plan: SoakPlan) -> dict[str, JsonValue]:
    profile = plan.profile
    promise = profile.promise_for(plan.duration_s)
    return {
        # An extended run is held to the limits of the length that it reached.
        "limits": [{"from_s": e.from_s, **e.by_metric()} for e in profile.promise],
        "name": profile.name,
        "source": plan.profile_source,
        "resolved": plain_mapping(profile.resolved()),  # type: ignore[arg-type]  # plain JSON
        "promise": dict(promise.by_metric()),
        "assert_coverage": dict(profile.coverage_minimums(plan.duration_s)),
    }


def _trace(plan: SoakPlan) -> dict[str, JsonValue] | None:
    trace = plan.trace
    if trace is None:
        return None
    return {
        "path": str(trace.path),
        "length_scale": str(trace.length_scale),
        "speedup": trace.speedup,
    }


def _entries(manifest: Mapping[str, JsonValue]) -> Sequence[JsonValue]:
    entries = manifest.get("segments")
    return entries if isinstance(entries, Sequence) and not isinstance(entries, str) else ()
