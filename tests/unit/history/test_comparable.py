"""Which runs may be compared, and which rate is above another."""

from __future__ import annotations

import pytest

from hybridbench.history.comparable import environment, machine, series_facts
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json
from tests.unit.history.stores import manifest

STORED = manifest("here", 0.0)
HERE = manifest_from_json(STORED)


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": {"cpu": "Some CPU", "cpus_usable": 8, "memory_total_kib": "16777216"}},
        {"interpreter": {"implementation": "cpython", "version": "3.12.1"}},
        {"model": {"name": "qwen3-next", "preset": "tiny", "device": "cuda:0"}},
    ],
    ids=["processors", "Python", "device"],
)
def test_another_machine_python_or_device_is_another_class(changes: dict[str, JsonValue]) -> None:
    assert machine(manifest_from_json({**STORED, **changes})) != machine(HERE)


def test_a_patch_release_of_python_is_the_same_class_of_machine() -> None:
    python: JsonValue = {"implementation": "cpython", "version": "3.11.9"}
    patched = manifest_from_json(manifest("there", 0.0, interpreter=python))

    assert machine(patched) == machine(HERE)


def test_a_newer_torch_is_another_environment_in_the_same_series() -> None:
    versions: JsonValue = {"hybridbench": "0.1.0", "torch": "2.9.0"}
    newer = manifest_from_json(manifest("there", 0.0, versions=versions))

    assert series_facts(newer) == series_facts(HERE)
    assert environment(newer) != environment(HERE)
