"""How a run was made, as a reader finds it: units behind numbers, names as they are typed."""

from __future__ import annotations

from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json
from hybridbench.report.provenance import provenance_tables


def shown(title: str, section: str, values: dict[str, JsonValue]) -> dict[str, str]:
    manifest = manifest_from_json({"engine_hash": "a worker answered", section: values})
    table = next(t for t in provenance_tables(manifest, 0.0) if t.title == title)
    return {row[0]: row[1] for row in table.texts}


def test_the_unit_of_a_name_stands_behind_its_number() -> None:
    machine = shown(
        "Machine", "machine", {"memory_total_kib": "24684084", "swap_total_kib": 0, "cpus": 2}
    )
    target = shown("Target", "target", {"boot_s": 5.14, "kind": "bundled"})

    assert machine["memory total"] == "23.5 GiB"
    assert machine["swap total"] == "0 B"
    assert machine["cpus"] == "2"
    assert target["boot"] == "5.14 s"
    assert target["kind"] == "bundled"


def test_nested_values_are_written_the_same_way() -> None:
    rows = shown("More", "cadence", {"sample_s": 0.5, "census_s": None})

    assert rows["cadence"] == "sample 0.500 s, heap scan unknown, checkpoint unknown"


def test_environment_variables_keep_their_spelling() -> None:
    written: dict[str, JsonValue] = {
        "MALLOC_TOP_PAD_": "131072",
        "LD_PRELOAD": "",
        "mode": "pinned",
    }
    malloc = shown("Allocator of the worker", "malloc", written)

    assert malloc == {"MALLOC_TOP_PAD_": "131072", "LD_PRELOAD": "none", "mode": "pinned"}
