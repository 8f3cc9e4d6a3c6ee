"""What must agree before two runs are compared, and what may differ."""

from __future__ import annotations

import copy

import pytest

from hybridbench.analysis.comparison.mismatches import (
    machine_class,
    mismatches,
    refusal,
    uncovered,
)
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Manifest, manifest_from_json

MANIFEST: dict[str, JsonValue] = {
    "model": {"name": "qwen3-next", "preset": "tiny", "device": "cpu", "dtype": "float32"},
    "interpreter": {"implementation": "cpython", "version": "3.11.7"},
    "versions": {"torch": "2.13.0", "numpy": "2.4.6"},
    "malloc": {"mode": "pinned", "MALLOC_ARENA_MAX": "1", "LD_PRELOAD": "", "libc": "glibc 2.36"},
    "gc": {"mode": "default", "threshold_0": 700, "threshold_1": 10, "frozen_objects": 11},
    "machine": {
        "architecture": "x86_64",
        "cpu": "AMD EPYC",
        "cpus": 2,
        "cpus_usable": 2,
        "memory_total_kib": "24684092",
        "kernel": "6.18.44-x",
    },
    "pools": {"kv": 12288, "mamba": 160},
    "profile": {
        "resolved": {
            "name": "chat-churn",
            "description": "chats",
            "duration": "7200s",
            "arrival": {"process": "closed", "concurrency": 32, "rate": None},
            "ballast": {"objects": 0},
            "promise": [],
        }
    },
    "seed": 7,
    "defects": [],
    "engine_hash": "aaaa",
}


def _changed(path: str, value: JsonValue) -> Manifest:
    changed = copy.deepcopy(MANIFEST)
    *parents, last = path.split(".")
    place = changed
    for name in parents:
        inner = place[name]
        assert isinstance(inner, dict)
        place = inner
    place[last] = value
    return manifest_from_json(changed)


def _keys(path: str, value: JsonValue, **more: object) -> list[str]:
    return [m.key for m in mismatches(manifest_from_json(MANIFEST), _changed(path, value), **more)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("interpreter.version", "3.12.1", "interpreter"),
        ("versions.torch", "2.14.0", "torch"),
        ("malloc.mode", "system", "malloc"),
        ("malloc.MALLOC_ARENA_MAX", "4", "malloc.MALLOC_ARENA_MAX"),
        ("malloc.LD_PRELOAD", "/usr/lib/libjemalloc.so", "malloc.LD_PRELOAD"),
        ("malloc.libc", "musl 1.2", "libc"),
        ("gc.mode", "freeze-after-warmup", "gc"),
        ("gc.threshold_0", 50_000, "gc.threshold_0"),
        ("pools.mamba", 96, "pools.mamba"),
        ("model.preset", "small", "model"),
        ("model.dtype", "bfloat16", "dtype"),
        ("model.device", "cuda", "device"),
        ("machine.cpu", "Intel Xeon", "machine.cpu"),
        ("machine.cpus_usable", 4, "machine.cpus"),
        ("machine.memory_total_kib", "65000000", "machine.memory"),
        ("machine.kernel", "5.10.2", "machine.kernel"),
        ("profile.resolved.arrival.concurrency", 16, "profile.arrival.concurrency"),
        ("profile.resolved.ballast.objects", 1_000_000, "profile.ballast.objects"),
        ("trace", {"path": "/data/azure.csv"}, "trace"),
    ],
)
def test_what_changes_the_measurement_is_named(path: str, value: JsonValue, key: str) -> None:
    assert _keys(path, value) == [key]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("engine_hash", "bbbb"),
        ("defects", ["lru-reference-cycle"]),
        ("seed", 8),
        ("gc.frozen_objects", 999),
        ("machine.memory_total_kib", "24684000"),
        ("machine.kernel", "6.18.46-y"),
        ("profile.resolved.name", "mine"),
        ("profile.resolved.duration", "600s"),
        ("profile.resolved.promise", [{"rss": "1GiB/h"}]),
    ],
)
def test_what_is_compared_and_what_only_names_or_judges_may_differ(
    path: str, value: JsonValue
) -> None:
    assert _keys(path, value) == []


def test_an_environment_that_was_asked_for_may_bring_its_own_libraries() -> None:
    kinds = ("tree", "python")

    assert _keys("interpreter.version", "3.12.1", kinds=kinds) == []
    assert _keys("versions.torch", "2.14.0", kinds=kinds) == []
    assert _keys("malloc.mode", "system", kinds=kinds) == ["malloc"]


def test_an_allowed_key_stands_for_all_below_it() -> None:
    path = "profile.resolved.arrival.concurrency"

    assert _keys(path, 16, allowed=frozenset({"profile"})) == []
    assert _keys(path, 16, allowed=frozenset({"profile.arrival"})) == []
    assert _keys(path, 16, allowed=frozenset({"prof"})) == ["profile.arrival.concurrency"]


def test_an_allowed_key_without_a_fact_is_misspelt() -> None:
    known = ["gc.mode", "profile.arrival.concurrency"]

    assert uncovered(frozenset({"gc", "profile.arrival", "gc.mode"}), known) == []
    assert uncovered(frozenset({"gc", "prof", "gc.mod"}), known) == ["gc.mod", "prof"]


def test_a_switch_that_an_older_version_did_not_know_and_that_is_off_is_no_difference() -> None:
    assert _keys("profile.resolved.overlap", False) == []
    assert _keys("profile.resolved.overlap", True) == ["profile.overlap"]


def test_the_refusal_names_keys_and_both_values() -> None:
    found = mismatches(manifest_from_json(MANIFEST), _changed("gc.mode", "freeze-after-warmup"))

    assert refusal(found) == "gc (default and freeze-after-warmup)"


def test_machines_of_one_class_may_differ_by_what_the_firmware_keeps() -> None:
    other = _changed("machine.memory_total_kib", "24600000")

    assert machine_class(manifest_from_json(MANIFEST)) == machine_class(other)
