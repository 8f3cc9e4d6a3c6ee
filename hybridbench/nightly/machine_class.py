"""Which machines may be compared from night to night."""

from __future__ import annotations

from collections.abc import Mapping

from hybridbench.analysis.comparison.mismatches import machine_class
from hybridbench.records.json_value import JsonValue
from hybridbench.rundir.manifest import as_mapping


def machine_words(manifest: Mapping[str, JsonValue]) -> str:
    """The class of the machine of a run, its interpreter and device; equal for one class only."""
    facts = machine_class(manifest)
    interpreter = as_mapping(manifest.get("interpreter"))
    version = ".".join(str(interpreter.get("version", "?")).split(".")[:2])
    device = str(as_mapping(manifest.get("model")).get("device", "cpu")).partition(":")[0]
    parts = [f"{key.removeprefix('machine.')} {value}" for key, value in facts.items()]
    return ", ".join([*parts, f"Python {version}", f"on {device}"])
