from __future__ import annotations

import jsonschema
import msgspec

from hybridbench.records import messages as m
from hybridbench.records.manifest import Model, manifest_from_json, manifest_to_json
from hybridbench.rundir.layout import published_schema
from hybridbench.runs.manifest import planned_manifest, profile_of_length, with_worker
from hybridbench.targets.target import Capability
from tests.unit.runs.soaks import make_plan

READY = m.Ready(
    pid=5,
    capabilities=[c for c in Capability if c not in {Capability.LOCKS, Capability.MALLOC}],
    metrics=["pool.*"],
    heap_scan="fork",
    engine_files_sha256="abc",
    engine_files=30,
    model="qwen3-next-tiny",
    model_note="random weights",
    pools={"kv": 4096, "mamba": 64},
    versions={"torch": "2.13.0", "python": "3.11.7"},
    gc={"mode": "default", "threshold_0": 700},
    malloc={"MALLOC_ARENA_MAX": "1"},
    max_prompt_tokens=767,
    vocab_size=4096,
    boot_s=3.21,
)


def test_the_manifest_fits_its_published_schema_before_and_after_the_boot() -> None:
    schema = published_schema("manifest")
    planned = planned_manifest(make_plan(), "run-1", 1.7e9)
    full = with_worker(planned, make_plan(), READY, {"kind": "profile"})

    jsonschema.validate(manifest_to_json(planned), schema)
    jsonschema.validate(manifest_to_json(full), schema)
    assert manifest_from_json(manifest_to_json(full)) == full


def test_the_limits_and_the_coverage_are_those_of_this_runs_length() -> None:
    profile = planned_manifest(make_plan(duration_s=120.0), "run-1", 1.7e9).profile

    assert profile.limits is not None
    assert profile.limits_as_planned == {"rss_anon_swap_bytes": 270 * 2**20}
    # An extended run must meet the limits for the length that it reached.
    assert profile.limits[3] == {"from_s": 300.0, "rss_anon_swap_bytes": 110 * 2**20}
    plan = make_plan(duration_s=120.0)
    assert profile.assert_coverage == plan.profile.coverage_minimums(120.0)
    assert profile.assert_coverage != plan.profile.coverage_minimums(7200.0)


def test_it_says_what_ran_and_what_could_not_be_seen() -> None:
    planned = planned_manifest(make_plan(), "run-1", 1.7e9)
    full = with_worker(planned, make_plan(), READY, {"kind": "profile"})

    assert full.engine_hash == "abc"
    assert full.model == Model(name="qwen3-next", preset="qwen3-next-tiny", note="random weights")
    assert full.not_seen == (
        "what the C allocator holds",
        "locks that are held when nothing runs",
    )
    assert full.run_id == "run-1"


def test_floors_on_states_do_not_apply_to_a_model_that_keeps_none() -> None:
    planned = planned_manifest(make_plan(), "run-1", 1.7e9)
    ready = msgspec.structs.replace(READY, model="gpt-oss-tiny", pools={"kv": 4096})

    floors = with_worker(planned, make_plan(), ready, {"kind": "profile"}).profile.assert_coverage

    gone = planned.profile.assert_coverage.keys() - floors.keys()
    assert gone == {"cow_copies", "evict_cascade", "evict_internal_state", "tombstones"}
    assert "nodes_evicted" in floors or "evict_leaf" in floors


def test_floors_on_a_tree_do_not_apply_to_a_pool_of_blocks() -> None:
    planned = planned_manifest(make_plan(), "run-1", 1.7e9)
    ready = msgspec.structs.replace(READY, model="no model", pools={"kv_blocks": 512})

    full = with_worker(planned, make_plan(), ready, {"kind": "profile"})

    gone = planned.profile.assert_coverage.keys() - full.profile.assert_coverage.keys()
    states = {"cow_copies", "evict_cascade", "evict_internal_state", "tombstones"}
    assert gone == states | {"node_splits"}
    assert full.not_seen[-1].endswith(
        "keeps no prefix tree, so the profile's floors on them do not apply"
    )


def test_floors_on_events_that_a_target_does_not_count_do_not_apply() -> None:
    planned = planned_manifest(make_plan(), "run-1", 1.7e9)
    ready = msgspec.structs.replace(READY, uncounted=["evict_cascade", "session_tail_frees"])

    full = with_worker(planned, make_plan(), ready, {"kind": "profile"})

    gone = planned.profile.assert_coverage.keys() - full.profile.assert_coverage.keys()
    assert gone == {"evict_cascade"}
    assert full.not_seen[-1] == (
        "evict_cascade: not counted in this target, so the profile's floors on them do not apply"
    )


def test_a_run_of_another_length_gets_no_floor_back_that_does_not_apply() -> None:
    planned = planned_manifest(make_plan(), "run-1", 1.7e9)
    ready = msgspec.structs.replace(READY, model="gpt-oss-tiny", pools={"kv": 4096})
    full = with_worker(planned, make_plan(), ready, {"kind": "profile"})

    floors = profile_of_length(full, make_plan(), 3600.0).assert_coverage

    assert floors.keys() == full.profile.assert_coverage.keys()
    assert floors["finishes"] > full.profile.assert_coverage["finishes"]
