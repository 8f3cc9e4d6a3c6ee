"""Each fault in a plan is one sentence with file and line; the docs about plans are true."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from hybridbench.foundation.errors import ConfigError
from hybridbench.over_time.plan import load_plan, plan_json_schema
from hybridbench.over_time.planned import plan_run
from hybridbench.workload.catalog import list_plans, list_profiles, profiles_dir

BASE = "name: test\nmatrix: {profiles: [smoke]}\n"

# BASE has two lines, so the text under test begins on line 3.
FAULTS = {
    "unknown key": ("polcy: {}", ":3: unknown key polcy; did you mean policy?"),
    "unknown key in a cell": (
        "cells:\n  - {profile: smoke, sed: 3}",
        ":4: cells.0: unknown key sed; did you mean seed?",
    ),
    "an unknown profile": ("cells:\n  - {profile: smok}", ":4: there is no profile 'smok'"),
    "an unknown key of the profile": (
        "cells:\n  - {profile: smoke, set: {pools.mamba_slot: 4}}",
        "mamba_slots",
    ),
    "two cells of one name": (
        "cells:\n  - {profile: smoke}",
        ":4: there are two cells qwen3-next+smoke (the other at",
    ),
    "too short": ("duration: 5s", ":3: duration: too short to be judged; use at least 20s"),
    "a device of a comparison": (
        "compare:\n  - {versions: ['git:a', .], profile: smoke, device: cuda}",
        ":4: device: `hybridbench compare` has no such option.",
    ),
    "too short to decide": (
        "duration: 30m\ncells:\n  - {id: brief, profile: smoke, duration: 3m}",
        ":5: brief lasts 3m, too short to judge growth of memory: profile smoke needs ",
    ),
    "too short to decide, all of them": (
        "duration: 3m",
        ":3: qwen3-next+smoke lasts 3m, too short",
    ),
    "a key of older versions": (
        "policy:\n  extend_inconclusive: 2",
        ":4: policy: unknown key extend_inconclusive; ",
    ),
    "least above the whole": (
        "cells:\n  - {profile: smoke, seed: 2, duration: 30m, least_duration: 40m}",
        ":4: least_duration 2400s is longer than duration 1800s.",
    ),
    "a version that cannot be soaked": (
        "cells:\n  - {profile: smoke, version: 'git:main'}",
        ":4: git:main cannot be soaked;",
    ),
    "a release of an engine that is not known": (
        "cells:\n  - {profile: smoke, version: 'vlm==0.32.0'}",
        ":4: vlm==0.32.0: no engine is called 'vlm'; did you mean vllm?",
    ),
    "a release that is none": (
        "cells:\n  - {profile: smoke, version: 'vllm==new'}",
        "write vllm==RELEASE, such as vllm==0.32.0.",
    ),
    "a watched run of nothing": ("watch:\n  - {id: one, command: []}", ":4: watch.0.command"),
    "an unknown key of a watched run": (
        "watch:\n  - {id: one, command: [x], metric: y}",
        ":4: watch.0: unknown key metric; did you mean metrics?",
    ),
    "a watched run without a name": ("watch:\n  - {command: [x]}", ":4: watch.0.id is missing."),
    "a threshold on nothing": (
        "thresholds: ['rs.slope<1MiB/h']",
        ":3: 'rs.slope<1MiB/h': no metric is called rs; did you mean rss?",
    ),
    "a ratio of one version": (
        "thresholds: ['throughput.ratio>0.97']",
        "a ratio compares two versions; put it under compare.",
    ),
    "a waiver of everything": (
        "waivers:\n  - {kind: growth, subject: '*', expires: 2027-01-01, link: x, reason: y}",
        ":4: * would waive every subject;",
    ),
    "a waiver without an end": (
        "waivers:\n  - {kind: growth, subject: rss, link: x, reason: y}",
        ":4: waivers.0.expires is missing.",
    ),
    "a date that is none": (
        "waivers:\n  - {kind: growth, subject: rss, expires: soon, link: x, reason: y}",
        ":4: waivers.0.expires: 'soon' is not a date; write 2027-01-31.",
    ),
    "a kind of finding that does not exist": (
        "waivers:\n  - {kind: instance-waits, subject: a, expires: 2027-01-01, link: x, reason: y}",
        ":4: instance-waits: there is no such kind of finding; did you mean instances-retained?",
    ),
    "a comparison without time for its first analysis": (
        "compare:\n  - {id: one, versions: ['git:a', .], profile: smoke, duration: 2m}",
        ":4: one lasts 2m, too short for 6 blocks of each version, which the first interim "
        "analysis needs: 3m or more; write duration: 3m, a shorter block, or leave the cell out.",
    ),
    "a rate that is none": (
        "waivers:\n  - {kind: growth, subject: rss, max_rate: much, expires: 2027-01-01, "
        "link: x, reason: y}",
        ":4: 'much' is not a rate; write 200MiB/h,",
    ),
    "an unknown policy": (
        "policy: {inconclusive: pass}",
        ":3: policy.inconclusive: must be neutral or fail, not 'pass'.",
    ),
}


def plan(folder: Path, text: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_its_line(tmp_path: Path, name: str) -> None:
    text, said = FAULTS[name]
    path = plan(tmp_path, BASE + text + "\n")

    with pytest.raises(ConfigError) as caught:
        plan_run(path)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith("..")


def test_a_plan_of_nothing_is_refused(tmp_path: Path) -> None:
    path = plan(tmp_path, "name: test\n")

    with pytest.raises(ConfigError, match=r"has nothing to run; give matrix.profiles"):
        load_plan(path)


def test_a_name_nobody_ships_offers_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"nightli: there is no such plan; did you mean nightly\?"
    ):
        load_plan("nightli")


@pytest.mark.parametrize("name", sorted(list_plans()))
def test_a_shipped_plan_has_cells_and_is_no_profile(name: str) -> None:
    night = plan_run(name)

    assert len(night.cells) > 1
    assert name not in list_profiles()


def test_the_schema_beside_the_plans_is_that_of_the_model() -> None:
    stored = (profiles_dir() / "nightly.schema.json").read_text(encoding="utf-8")

    assert stored == json.dumps(plan_json_schema(), indent=2) + "\n"


def test_a_directory_does_not_hide_the_shipped_plan_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nightly").mkdir()

    assert load_plan("nightly").path.is_file()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plan(tmp_path)


@pytest.mark.parametrize("name", sorted(list_plans()))
def test_a_shipped_plan_fits_the_schema_and_a_wrong_one_does_not(name: str) -> None:
    schema = plan_json_schema()
    data = yaml.safe_load(list_plans()[name].read_text(encoding="utf-8"))

    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "durations": "3m"}, schema)
