"""How a run was made: the manifest as tables, with the one warning that everyone must read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import yaml

from hybridbench.analysis.reading import number
from hybridbench.records.json_value import JsonValue, as_mapping, plain_value
from hybridbench.report.document import Table
from hybridbench.report.wording import plain_text
from hybridbench.units import format_bytes, format_duration

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
    }
)


def provenance_tables(manifest: Mapping[str, JsonValue], recorded_s: float) -> tuple[Table, ...]:
    """The manifest in tables of two columns; keys that this version does not know come last."""
    tables = [_run_table(manifest, recorded_s)]
    known = {key for key, _ in _SECTIONS}
    for key, title in _SECTIONS:
        section = as_mapping(manifest.get(key))
        if section:
            note = model_note(section) if key == "model" else ""
            tables.append(_table(title, section, note))
    tables += _segments(manifest)
    rest = {key: v for key, v in manifest.items() if key not in known | _ELSEWHERE}
    if rest:
        tables.append(_table("More", rest, ""))
    return tuple(tables)


def model_note(model: Mapping[str, JsonValue]) -> str:
    """What a reader must know about the model: most of all that a CPU run is a tiny one."""
    note = model.get("note")
    if isinstance(note, str) and note:
        return note
    if model.get("device") == "cpu" and model.get("preset") == "tiny":
        return (
            f"On a CPU {model.get('name')} means the tiny preset: the same layers, pools and "
            "caches at small widths. Times say nothing about the full model."
        )
    return ""


def started_text(manifest: Mapping[str, JsonValue]) -> str:
    """Start of the run in UTC."""
    started = manifest.get("started_wall_s")
    if not isinstance(started, int | float):
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(started))


def profile_yaml(manifest: Mapping[str, JsonValue]) -> str:
    """The resolved profile as YAML, every key with the value that was used."""
    resolved = as_mapping(manifest.get("profile")).get("resolved")
    if not resolved:
        return ""
    return yaml.safe_dump(plain_value(resolved), sort_keys=False, allow_unicode=True)


def _run_table(manifest: Mapping[str, JsonValue], recorded_s: float) -> Table:
    planned = manifest.get("planned_duration_s")
    rows = [
        ("run", plain_text(manifest.get("run_id"))),
        ("started", started_text(manifest)),
        ("recorded", format_duration(recorded_s)),
        ("profile", plain_text(as_mapping(manifest.get("profile")).get("name"))),
        ("seed", plain_text(manifest.get("seed"))),
        ("defects put in", plain_text(manifest.get("defects"))),
    ]
    if isinstance(planned, int | float):
        rows.insert(2, ("planned", format_duration(planned)))
    if manifest.get("engine_hash"):
        rows.append(("engine files", plain_text(manifest.get("engine_hash"))))
    return Table("Run", ("", ""), tuple(rows))


def _segments(manifest: Mapping[str, JsonValue]) -> list[Table]:
    """When which worker ran, for a run that has had more than one."""
    entries = manifest.get("segments")
    if not isinstance(entries, list | tuple) or len(entries) < 2:
        return []
    rows = tuple(
        (
            str(position),
            started_text(as_mapping(entry)),
            format_duration(number(as_mapping(entry), "start_s")),
            format_duration(number(as_mapping(entry), "traffic_s")),
            plain_text(as_mapping(entry).get("pid")),
            plain_text(as_mapping(entry).get("traffic_seed")),
        )
        for position, entry in enumerate(entries, 1)
    )
    columns = ("segment", "started", "at", "traffic left", "worker", "traffic seed")
    return [Table("Segments", columns, rows, frozenset({0, 2, 3, 4, 5}))]


def _table(title: str, section: Mapping[str, JsonValue], note: str) -> Table:
    rows = tuple(
        (_key_text(key), _value_text(key, value)) for key, value in section.items() if key != "note"
    )
    return Table(title, ("", ""), rows, note=note)


def _key_text(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")


def _value_text(key: str, value: JsonValue) -> str:
    if key.endswith("_bytes") and isinstance(value, int | float) and not isinstance(value, bool):
        return format_bytes(float(value))
    return plain_text(value)
