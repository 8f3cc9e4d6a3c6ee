"""How a run was made: numbers with units, and names as a user types them."""

from __future__ import annotations

from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json, manifest_to_json
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


def test_a_prepared_target_is_shown_with_versions_and_hashes_and_who_built_it() -> None:
    package: dict[str, JsonValue] = {"name": "tiny-serve", "version": "1.0", "sha256": "ab12"}
    stored: dict[str, JsonValue] = {
        "engine": "tiny",
        "release": "1.0",
        "package": "tiny-serve",
        "note": "tiny-serve is built by somebody else.",
        "python": "3.11.7",
        "packages": [package],
    }
    manifest = manifest_from_json({"prepared": stored})

    (table,) = [one for one in provenance_tables(manifest, 0.0) if "tiny==1.0" in one.title]

    assert table.title == "tiny==1.0, prepared with Python 3.11.7"
    assert table.texts == (("tiny-serve", "1.0", "ab12"),)
    assert table.note == "tiny-serve is built by somebody else."
    written = manifest_to_json(manifest)["prepared"]
    assert isinstance(written, dict)
    assert written["packages"] == [package]


def test_another_run_has_no_key_of_a_prepared_target() -> None:
    assert "prepared" not in manifest_to_json(manifest_from_json({}))
