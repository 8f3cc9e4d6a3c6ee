"""A manifest whose plan was edited is refused in one sentence before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.json_value import JsonValue
from hybridbench.rundir.layout import MANIFEST
from hybridbench.rundir.manifest import read_manifest
from hybridbench.runs.plan import Segment
from hybridbench.runs.resume import Resumption, plan_of_manifest, resumed_plan
from hybridbench.workload.catalog import load_profile
from tests.unit.report.synthetic import manifest

TRACE = {"path": "t.jsonl", "length_scale": "1/32", "speedup": 2.0}


def stored(run: Path, **changes: object) -> Path:
    profile = {"name": "smoke", "resolved": load_profile("smoke").resolved()}
    made = {**manifest(), "profile": profile, "seed": 7, "trace": TRACE, **changes}
    (run / MANIFEST).write_text(json.dumps(made))
    return run


def test_an_unchanged_manifest_is_the_plan(tmp_path: Path) -> None:
    run = stored(tmp_path, seed=2**60 + 1)

    plan = plan_of_manifest(read_manifest(run), run)

    # A seed that went through a float would have lost its last digit.
    assert (plan.seed, plan.duration_s) == (2**60 + 1, 300.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"planned_duration_s": 1e308},
            "'planned_duration_s' is 1e+308, which is not a valid duration",
        ),
        ({"seed": 2**63 - 1}, "'seed' is 9223372036854775807, which is not a valid seed"),
        ({"seed": -1}, "'seed' is -1, which is not a valid seed"),
        ({"seed": 1e30}, "$.seed"),
        ({"seed": 10**30}, "$.seed"),
        ({"started_wall_s": 1e30}, "$.started_wall_s"),
        ({"trace": {"length_scale": "1", "speedup": 1}}, "lacks 'trace.path'"),
        ({"trace": {"path": "x", "speedup": 1}}, "lacks 'trace.length_scale'"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    tmp_path: Path, changes: dict[str, JsonValue], said: str
) -> None:
    run = stored(tmp_path, **changes)

    with pytest.raises(RunDirectoryError) as caught:
        plan_of_manifest(read_manifest(run), run)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_of_a_released_engine_is_not_gone_on_with_another(tmp_path: Path) -> None:
    prepared = {"engine": "sglang-cache", "release": "0.5.13"}
    run = stored(tmp_path, prepared=prepared)
    segment = Segment(run, 1, 100.0, 3.0, 60.0, read_manifest(run))

    with pytest.raises(
        RunDirectoryError, match=r"is a run of sglang-cache==0\.5\.13, which cannot"
    ):
        resumed_plan(Resumption(run), segment)
