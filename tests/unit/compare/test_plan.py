"""The soak of a side: the comparison's profile, sampled at a cadence for blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.compare.plan import ComparePlan
from hybridbench.compare.sides import Side
from hybridbench.targets.bundled import WorkerProgram
from hybridbench.workload.catalog import load_profile


def plan(**changes: object) -> ComparePlan:
    values: dict[str, object] = {
        "sides": (),
        "profile": load_profile("chat-churn"),
        "model": "qwen3-next",
        "store": Path("results"),
        "seed": 1,
    }
    return ComparePlan(**{**values, **changes})  # type: ignore[arg-type]


def test_a_side_is_sampled_within_its_blocks_and_rests_shortly_between_them() -> None:
    soak = plan(block_s=30.0).of_side(Side(".", "tree"), Path("here"))

    assert soak.cadence.sample_every_s == pytest.approx(2.0)
    assert soak.profile.checkpoint.settle_s == pytest.approx(0.3)
    assert soak.profile.arrival == load_profile("chat-churn").arrival


def test_a_profile_that_says_how_often_to_sample_is_left_alone() -> None:
    given = load_profile("chat-churn").with_overrides(
        {"probe.sample_every": "7s", "checkpoint.settle": "100ms"}
    )

    assert plan(profile=given).of_side(Side(".", "tree"), Path("here")).profile == given


def test_what_a_version_is_made_of_reaches_its_worker() -> None:
    side = Side(
        "x", "python", defects=("slow-step",), program=WorkerProgram("/opt/py", "/elsewhere")
    )

    soak = plan(thresholds=("rss.slope<1GiB/h", "throughput.ratio>0.9")).of_side(side, Path("here"))
    launch = soak.worker_launch(Path("err"))

    assert soak.defects == ("slow-step",)
    assert soak.thresholds == ("rss.slope<1GiB/h",)
    assert launch.program.python == "/opt/py"
    assert launch.environment()["PYTHONPATH"] == "/elsewhere"
    assert launch.environment()["PYTHONSAFEPATH"] == "1"
