"""What makes two processes one run: the same engine behind the same plan, told in the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridbench.errors import ConfigError
from hybridbench.records.json_value import JsonValue
from hybridbench.rundir.manifest import as_mapping
from hybridbench.runs.plan import Segment, SoakPlan
from hybridbench.targets.messages import Ready

# Of the worker's versions: what decides how memory behaves.
_DECISIVE = ("python", "implementation", "torch")


def check_same_engine(segment: Segment, ready: Ready) -> None:
    """Refuse to go on with another engine: the memory of two engines proves nothing of either.

    Raises:
        ConfigError: engine files, interpreter or torch differ from those of the run so far.
    """
    if segment.manifest.get("engine_hash") != ready.engine_files_sha256:
        raise ConfigError(
            f"{segment.run_dir}: the engine's files have changed since this run began; "
            "put them back to resume it, or start a new run."
        )
    before = as_mapping(segment.manifest.get("versions"))
    for name in _DECISIVE:
        if before.get(name) != ready.versions.get(name):
            raise ConfigError(
                f"{segment.run_dir}: this run began with {name} {before.get(name)}, and here is "
                f"{ready.versions.get(name)}; resume it with the former, or start a new run."
            )


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


def _entries(manifest: Mapping[str, JsonValue]) -> Sequence[JsonValue]:
    entries = manifest.get("segments")
    return entries if isinstance(entries, Sequence) and not isinstance(entries, str) else ()
