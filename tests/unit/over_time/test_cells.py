"""Cells: stable ids, what is compared with what, and a hash of what runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.foundation.errors import ConfigError, UsageError
from hybridbench.over_time.attempts import start_command
from hybridbench.over_time.cells import find_cell
from tests.unit.over_time.planned_runs import PLAN, attempt, planned_run, profile_file

MATRIX = """\
name: test
duration: 30m
matrix:
  profiles: [smoke, chat-churn]
  models: [qwen3-next, qwen3-next-tiny]
  seeds: [1, 2]
"""


def test_a_matrix_is_every_profile_with_every_model_and_seed(tmp_path: Path) -> None:
    cells = planned_run(tmp_path, MATRIX).cells

    assert len(cells) == 8
    assert cells[0].id == "qwen3-next+smoke+seed1"
    assert {one.cell.model for one in cells} == {"qwen3-next", "qwen3-next-tiny"}


def test_a_plan_names_presets_and_directories_that_other_machines_may_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r":4: model 'qwen3-nxt' .*; did you mean qwen3-next\?"):
        planned_run(tmp_path, MATRIX.replace("[qwen3-next,", "[qwen3-nxt,"))

    cells = planned_run(tmp_path, MATRIX.replace("[qwen3-next,", "[/shared/mine,")).cells
    assert cells[0].cell.model == "/shared/mine"


def test_the_id_of_a_cell_stays_when_the_plan_grows(tmp_path: Path) -> None:
    before = planned_run(tmp_path, MATRIX).cells
    grown = MATRIX.replace("[smoke,", "[mamba-churn, smoke,").replace("[1, 2]", "[9, 1, 2]")
    after = planned_run(tmp_path, grown).cells

    assert {cell.id for cell in before} < {cell.id for cell in after}


def test_a_cell_says_what_its_soak_is(tmp_path: Path) -> None:
    text = (
        "name: test\nballast: 0\nset: {pools.mamba_slots: 64}\n"
        "thresholds: ['rss.slope<1GiB/h']\ncells:\n"
        "  - {profile: smoke, model: qwen3-next-tiny, version: 'defect:mamba-adder-reject', "
        "gc: freeze-after-warmup, seed: 9, duration: 30m}\n"
    )
    (cell,) = planned_run(tmp_path, text).cells

    words = start_command(cell, attempt(seed=9, extend_s=0.0), tmp_path)

    said = " ".join(words)
    assert "soak" in words
    for part in (
        "--profile smoke",
        "--model qwen3-next-tiny",
        "--duration 1800s",
        "--extend 0",
        "--seed 9",
        "--gc freeze-after-warmup",
        "--ballast 0",
        "--set pools.mamba_slots=64",
        "--defect mamba-adder-reject",
        "--threshold rss.slope<1GiB/h",
    ):
        assert part in said


RELEASES = """\
name: test
duration: 30m
matrix: {profiles: [chat-churn], versions: [vllm==0.31.0, sglang-cache==0.5.13]}
cells: [{version: vllm==0.32.0, profile: one-by-one, model: qwen3-next}]
compare: [{versions: [sglang-cache==0.5.12.post1, sglang-cache==0.5.13], profile: chat-churn}]
"""


def test_a_matrix_of_releases_is_a_plan(tmp_path: Path) -> None:
    cells = planned_run(tmp_path, RELEASES).cells

    said = [" ".join(start_command(cell, attempt(), tmp_path)) for cell in cells]
    assert [cell.id for cell in cells] == [
        "llama+chat-churn+vllm-0.31.0",
        "qwen3-next+chat-churn+sglang-cache-0.5.13",
        "qwen3-next+one-by-one+vllm-0.32.0",
        "compare+sglang-cache-0.5.12.post1-vs-sglang-cache-0.5.13+qwen3-next+chat-churn",
    ]
    # A server's default is its first checkpoint, a driven class's is the profile's model.
    assert "soak" in said[0]
    assert "--target vllm==0.31.0" in said[0]
    assert "--model llama" in said[0]
    assert "--target sglang-cache==0.5.13" in said[1]
    assert "--model qwen3-next" in said[2]
    assert "compare sglang-cache==0.5.12.post1 sglang-cache==0.5.13 --same-engine" in said[3]


def test_what_a_plan_says_of_workers_is_not_said_of_servers(tmp_path: Path) -> None:
    text = RELEASES + "gc: freeze-after-warmup\nballast: 1000\ndevice: cuda\n"

    server, driven, *_ = planned_run(tmp_path, text).cells

    assert (server.cell.gc, server.cell.ballast, server.cell.device) == (None, None, None)
    assert (driven.cell.gc, driven.cell.ballast, driven.cell.device) == (
        "freeze-after-warmup",
        1000,
        "cuda",
    )


@pytest.mark.parametrize("key", ["gc: freeze-after-warmup", "ballast: 1000", "device: cuda"])
def test_a_key_of_workers_in_a_cell_of_a_server_is_refused_with_its_place(
    tmp_path: Path, key: str
) -> None:
    text = RELEASES.replace("model: qwen3-next}", f"model: qwen3-next, {key}}}")

    with pytest.raises(ConfigError, match=f"{key.partition(':')[0]}: applies only to engines"):
        planned_run(tmp_path, text)


def test_the_device_of_a_plan_is_that_of_its_soaks(tmp_path: Path) -> None:
    text = PLAN + "device: cuda\ncompare: [{versions: ['git:a', .], profile: smoke}]\n"

    cells = planned_run(tmp_path, text).cells

    assert [one.cell.device for one in cells] == ["cuda", "cuda", None]


def test_a_profile_in_a_file_is_found_beside_the_plan(tmp_path: Path) -> None:
    from hybridbench.workload.catalog import list_profiles

    (tmp_path / "mine.yaml").write_text(list_profiles()["smoke"].read_text("utf-8"), "utf-8")
    (cell,) = planned_run(tmp_path, "name: test\ncells: [{profile: mine.yaml}]\n").cells

    words = start_command(cell, attempt(), tmp_path)

    assert words[words.index("--profile") + 1] == str(tmp_path / "mine.yaml")
    assert cell.cell.profile == "mine.yaml"


def test_the_hash_knows_what_runs_and_not_what_is_waived(tmp_path: Path) -> None:
    waiver = "waivers: [{kind: growth, subject: rss, expires: 2027-01-01, link: x, reason: y}]\n"
    first = planned_run(tmp_path).record.hash

    assert planned_run(tmp_path, PLAN + waiver).record.hash == first
    assert planned_run(tmp_path, PLAN.replace("seed: 5", "seed: 6")).record.hash != first
    assert planned_run(tmp_path, PLAN.replace("30m", "31m")).record.hash != first
    assert planned_run(tmp_path, defects=("mamba-adder-reject",)).record.hash != first


def test_a_rehearsed_defect_leaves_id_and_work_as_they_are(tmp_path: Path) -> None:
    healthy = planned_run(tmp_path).cells[0]
    rehearsed = planned_run(tmp_path, defects=("mamba-adder-reject",)).cells[0]

    assert (rehearsed.id, rehearsed.cell.work) == (healthy.id, healthy.cell.work)
    assert "mamba-adder-reject" in start_command(rehearsed, attempt(), tmp_path)


def test_the_work_of_a_cell_is_not_its_length(tmp_path: Path) -> None:
    short = planned_run(tmp_path, PLAN.replace("30m", "45m")).cells[0]
    other = planned_run(tmp_path, PLAN + "gc: freeze-after-warmup\n").cells[0]

    assert short.cell.work == planned_run(tmp_path).cells[0].cell.work
    assert other.cell.work != short.cell.work


def test_an_unknown_id_offers_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--id tow: the plan has no such cell; did you mean two\?"
    ):
        find_cell(planned_run(tmp_path).cells, "tow")


def test_a_copy_of_a_profile_with_the_same_name_inside_is_told_of(tmp_path: Path) -> None:
    for name in ("a", "b"):
        profile_file(tmp_path / f"{name}.yaml", "mine")

    with pytest.raises(ConfigError, match=r"the profiles a.yaml and b.yaml have the same name"):
        planned_run(tmp_path, "name: t\nmatrix: {profiles: [a.yaml, b.yaml]}\n")
    with pytest.raises(ConfigError, match="a different id"):
        planned_run(tmp_path, "name: t\ncells: [{profile: smoke}, {profile: smoke}]\n")
