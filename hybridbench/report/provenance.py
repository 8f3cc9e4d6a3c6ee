"""How a run was made: the manifest as tables, with the note on its model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

import yaml

from hybridbench.foundation.metrics import Unit
from hybridbench.records.json_value import JsonValue, as_mapping, plain_value
from hybridbench.records.manifest import (
    Manifest,
    Model,
    ResolvedProfile,
    SegmentFacts,
    manifest_to_json,
)
from hybridbench.records.prepared import PreparedTarget
from hybridbench.records.rates import amount
from hybridbench.report.document import Table
from hybridbench.report.quantity import Text, length
from hybridbench.report.wording import plain_text

_SECTIONS: Final = (
    ("model", "Model"),
    ("versions", "Versions"),
    ("gc", "Garbage collector of the worker"),
    ("malloc", "Allocator of the worker"),
    ("interpreter", "Interpreter"),
    ("machine", "Machine"),
    ("git", "Source tree"),
    ("target", "Target"),
)
# Shown elsewhere in the report, or in the table of the run itself.
_ELSEWHERE: Final = frozenset(
    {
        "schema",
        "run_id",
        "started_wall_s",
        "ended_wall_s",
        "planned_duration_s",
        "command",
        "profile",
        "seed",
        "defects",
        "engine_hash",
        "segments",
        "prepared",
        "capabilities",  # those of the target
    }
)
# Names in the manifest that are unclear outside of it.
_NAMES: Final = {
    "census": "heap scan",
    "census_s": "heap scan_s",
    "cpus_usable": "usable cpus",
    "threshold_0": "gen-0 threshold",
    "threshold_1": "gen-1 threshold",
    "threshold_2": "gen-2 threshold",
    "load_average_1m": "load average (1 min)",
}
# Suffixes of the manifest's names, the unit that each denotes, and its multiple.
_UNITS: Final = (("_bytes", Unit.BYTES, 1), ("_kib", Unit.BYTES, 1024), ("_s", "s", 1))


def provenance_tables(manifest: Manifest, recorded_s: float) -> tuple[Table, ...]:
    """Return the manifest in two-column tables; keys unknown to this version come last."""
    stored = {key: value for key, value in manifest_to_json(manifest).items() if value}
    tables = [_run_table(manifest, recorded_s)]
    known = {key for key, _ in _SECTIONS}
    for key, title in _SECTIONS:
        section = as_mapping(stored.get(key))
        if section:
            note = model_note(manifest.model) if key == "model" else ""
            tables.append(_table(title, section, note))
    tables += _prepared(manifest.prepared)
    tables += _segments(manifest.segments)
    rest = {key: v for key, v in stored.items() if key not in known | _ELSEWHERE}
    if rest:
        tables.append(_table("More", rest, ""))
    return tuple(tables)


def model_note(model: Model) -> str:
    """Return what a reader must know about the model, above all that a CPU run uses a tiny one."""
    if model.note:
        return model.note
    if model.device == "cpu" and model.preset == "tiny":
        return (
            f"On a CPU {model.name} means the tiny preset: the same layers, pools and "
            "caches at small widths. Times say nothing about the full model."
        )
    return ""


def started_text(started: float | None) -> str:
    """Format a wall-clock time in UTC."""
    if started is None:
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(started))


def profile_yaml(profile: ResolvedProfile) -> str:
    """Return the resolved profile as YAML, every key with the value used."""
    if not profile.resolved:
        return ""
    return yaml.safe_dump(plain_value(profile.resolved), sort_keys=False, allow_unicode=True)


def _run_table(manifest: Manifest, recorded_s: float) -> Table:
    planned = manifest.planned_duration_s
    rows: list[tuple[Text, ...]] = [
        ("run", manifest.run_id),
        ("started", started_text(manifest.started_wall_s)),
        ("recorded", length("recorded", recorded_s)),
        ("profile", manifest.profile.name),
        ("seed", plain_text(manifest.seed)),
        ("defects", plain_text(manifest.defects)),
    ]
    forced = _forced_text(as_mapping(manifest.profile.resolved.get("force")))
    if forced:
        rows.append(("forced", forced))
    if planned is not None:
        rows.insert(2, ("planned", length("planned", planned)))
    if manifest.engine_hash:
        rows.append(("engine hash", manifest.engine_hash))
    return Table("Run", ("", ""), tuple(rows))


def _prepared(target: PreparedTarget | None) -> list[Table]:
    """List the engine's packages, for a run of an engine that this tool installed."""
    if target is None:
        return []
    rows = tuple((one.name, one.version, one.sha256) for one in target.packages)
    title = f"{target.name}, prepared with Python {target.python}"
    return [Table(title, ("package", "version", "SHA-256 of the wheel"), rows, note=target.note)]


def _forced_text(force: Mapping[str, object]) -> str:
    """Describe what the profile forces, and how often: ``retract 1 of 300``."""
    return ", ".join(
        f"{plain_text(name).replace('_', ' ')} 1 of {every}"
        for name, every in force.items()
        if isinstance(every, int)
    )


def _segments(entries: Sequence[SegmentFacts]) -> list[Table]:
    """List when each worker ran, for a run with more than one."""
    if len(entries) < 2:
        return []
    rows = tuple(
        (
            str(position),
            started_text(entry.started_wall_s),
            length(f"before segment {position}", entry.start_s),
            length(f"traffic left in segment {position}", entry.traffic_s),
            plain_text(entry.pid),
            plain_text(entry.traffic_seed),
        )
        for position, entry in enumerate(entries, 1)
    )
    columns = ("segment", "started", "at", "traffic left", "worker", "traffic seed")
    return [Table("Segments", columns, rows, frozenset({0, 2, 3, 4, 5}))]


def _table(title: str, section: Mapping[str, JsonValue], note: str) -> Table:
    rows = tuple(
        _entry(key, value) for key, value in section.items() if key != "note" and value is not None
    )
    return Table(title, ("", ""), rows, note=note)


def _entry(key: str, value: JsonValue) -> tuple[str, str]:
    """Return a key and its value for display, with the unit after the number, not in the name."""
    # Environment variables keep their spelling.
    name = key if key.isupper() else _NAMES.get(key, key).replace("_", " ")
    if isinstance(value, Mapping):
        inner = (" ".join(_entry(key, item)) for key, item in value.items())
        return name, ", ".join(inner) or "none"
    # A number from /proc may be stored as text.
    number = float(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int | float | None) and not isinstance(number, bool):
        for suffix, unit, factor in _UNITS:
            if key.endswith(suffix):
                size = math.nan if number is None else number * factor
                return name.removesuffix(suffix.replace("_", " ")), amount(size, unit)
    return name, plain_text(value) or "none"
