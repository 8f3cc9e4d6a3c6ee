"""When two processes form one run, and what prevents it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import pytest

from hybridbench.foundation.errors import ConfigError, UsageError
from hybridbench.records.manifest import Manifest, Options, manifest_to_json
from hybridbench.rundir.layout import published_schema
from hybridbench.runs.boot import check_same_engine
from hybridbench.runs.manifest import planned_manifest, with_counts, with_segment, with_worker
from hybridbench.runs.plan import Segment, SoakPlan
from hybridbench.runs.resume import Resumption, resumed_plan
from tests.unit.runs.soaks import make_plan
from tests.unit.runs.test_manifest import READY


def segment_of(plan: SoakPlan, served_s: float = 40.0) -> Segment:
    """The second segment of a run of ``plan``."""
    planned = planned_manifest(plan, "run-1", 1.7e9)
    manifest = with_worker(planned, plan, READY, {"kind": "profile"})
    return Segment(Path("results/run-1"), 1, 100.0, 3.0, served_s, manifest)


def resumed(plan: SoakPlan, served_s: float = 40.0) -> SoakPlan:
    return resumed_plan(Resumption(Path("results/run-1")), segment_of(plan, served_s))


def test_a_resumed_plan_is_the_plan_of_the_run_and_serves_the_rest_of_it() -> None:
    plan = make_plan(duration_s=100.0, settings={"checkpoint.flush": "true"})
    again = resumed(plan)

    assert again.profile == plan.profile
    assert again.cadence == plan.cadence
    assert again.start_message() == plan.start_message()
    assert (again.duration_s, again.seed, again.options) == (100.0, 1, plan.options)
    assert again.traffic_s == 60.0
    assert plan.traffic_s == 100.0


def test_how_a_run_ends_is_as_it_began_unless_said_otherwise() -> None:
    began = Options(diagnose="never", hold_s=60.0, stop="early")
    plan = replace(make_plan(), options=began)
    segment = segment_of(plan)
    place = Path("results/run-1")

    kept = resumed_plan(Resumption(place), segment)
    said: dict[str, str | float] = {"stop": "never", "diagnose": "always", "hold_s": 0.0}
    changed = resumed_plan(Resumption(place, options=said), segment)

    assert kept.options == began
    assert changed.options == Options(diagnose="always")


def test_a_rest_too_short_to_warm_up_in_is_lengthened() -> None:
    assert resumed(make_plan(duration_s=100.0), served_s=99.0).traffic_s == 20.0


def test_a_later_segment_brings_other_prompts_and_the_same_ones_every_time() -> None:
    plan = make_plan()

    assert plan.traffic_seed == plan.seed
    assert resumed(plan).traffic_seed != plan.seed
    assert resumed(plan).traffic_seed == resumed(plan).traffic_seed
    assert resumed(plan).start_message().engine["seed"] == plan.seed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine_files_sha256": "other"}, "engine's files have changed"),
        ({"versions": {"torch": "2.14.0", "python": "3.11.7"}}, "began with torch 2.13.0"),
        ({"versions": {"torch": "2.13.0", "python": "3.12.1"}}, "began with python 3.11.7"),
    ],
)
def test_another_engine_or_interpreter_is_refused(changes: dict[str, object], said: str) -> None:
    segment = segment_of(make_plan())

    check_same_engine(segment, READY)
    with pytest.raises(ConfigError, match=said):
        check_same_engine(segment, msgspec.structs.replace(READY, **changes))


def test_the_manifest_lists_every_segment() -> None:
    plan = make_plan(duration_s=100.0)
    first = with_segment(segment_of(plan).manifest, plan, READY, 1.7e9)
    both = with_segment(first, resumed(plan), READY, 1.8e9)

    assert [(e.index, e.start_s, e.traffic_s) for e in both.segments] == [
        (0, 0.0, 100.0),
        (1, 100.0, 60.0),
    ]
    jsonschema.validate(manifest_to_json(both), published_schema("manifest"))


def test_what_the_workload_did_adds_up_over_segments() -> None:
    once = with_counts(Manifest(), {"submitted": 5, "aborts": 1})
    twice = with_counts(once, {"submitted": 7, "late": 2})

    assert twice.workload_counts == {"submitted": 12, "aborts": 1, "late": 2}


def test_a_resumed_plan_runs_no_file_that_only_the_manifest_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("DEFECT = 1")
    segment = segment_of(replace(make_plan(), defects=(str(file),)))
    place = Path("results/run-1")

    with pytest.raises(UsageError, match="no code is run because a manifest names it"):
        resumed_plan(Resumption(place), segment)

    assert resumed_plan(Resumption(place, defects=(str(file),)), segment).defects == (str(file),)
