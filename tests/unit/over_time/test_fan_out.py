"""What an engine gets to fan out: valid where it can be checked, and run where it is a script."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hybridbench.errors import UsageError
from hybridbench.over_time.fan_out import Target, rendered
from hybridbench.over_time.planned import plan_run
from tests.unit.over_time.planned_runs import PLAN, planned_run, profile_file

TARGET = Target(
    "my plans/p.yaml", ["--budget", "20m"], "nights here", "20261120-120000", "img:1", "vol"
)


def test_the_matrix_of_github_is_one_line_with_every_cell(tmp_path: Path) -> None:
    text = rendered(planned_run(tmp_path, PLAN + "needs: {gpu: 1}\n"), "github", TARGET)

    assert text.count("\n") == 1
    include = json.loads(text)["include"]
    assert [entry["id"] for entry in include] == ["one", "two"]
    assert include[0]["runs_on"] == ["self-hosted", "gpu"]
    assert include[0]["minutes"] > 4


def test_more_cells_than_github_takes_are_refused(tmp_path: Path) -> None:
    seeds = list(range(257))
    planned = planned_run(tmp_path, f"name: t\nmatrix: {{profiles: [smoke], seeds: {seeds}}}\n")

    with pytest.raises(UsageError, match="257 cells, and one matrix has at most 256"):
        rendered(planned, "github", TARGET)


def fake_tools(folder: Path) -> dict[str, str]:
    """An environment in which sbatch and hybridbench write down how they were called."""
    tools = folder / "bin"
    tools.mkdir()
    for name, says in (("sbatch", "echo 77"), ("hybridbench", "true")):
        script = tools / name
        script.write_text(
            f'#!/bin/sh\nprintf "%s|" {name} "$@" >> "$CALLS"\necho >> "$CALLS"\n{says}\n',
            encoding="utf-8",
        )
        script.chmod(0o755)
    return {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(folder / "calls")}


def run_script(text: str, folder: Path, environment: dict[str, str]) -> list[list[str]]:
    """Run ``text`` under bash; the calls that it made."""
    script = folder / "night.sh"
    script.write_text(text, encoding="utf-8")
    subprocess.run(["bash", "-n", str(script)], check=True)
    subprocess.run(["bash", str(script)], cwd=folder, env=environment, check=True, timeout=30)
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    return [call.split("|")[:-1] for call in calls]


def test_a_slurm_task_runs_the_cell_of_its_index(tmp_path: Path) -> None:
    text = rendered(planned_run(tmp_path), "slurm", TARGET)
    environment = fake_tools(tmp_path) | {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "9"}

    (call,) = run_script(text, tmp_path, environment)

    assert call == [
        *("hybridbench", "nightly", "cell", "my plans/p.yaml", "--budget", "20m"),
        *("--index", "1", "--out", "nights here/9-test/cells"),
    ]
    assert "#SBATCH --array=0-1\n" in text


def test_the_slurm_script_submits_itself_and_the_merge(tmp_path: Path) -> None:
    text = rendered(planned_run(tmp_path), "slurm", TARGET)

    array, merge = run_script(text, tmp_path, fake_tools(tmp_path))

    folder = array[2].removeprefix("--export=ALL,NIGHTLY_RUN=")
    assert (tmp_path / folder).is_dir()
    assert merge[2] == "--dependency=afterany:77"
    wrapped = merge[merge.index("--wrap") + 1]
    # What Slurm hands to sh must come apart into these words again.
    words = subprocess.run(
        ["sh", "-c", f'for w in {wrapped}; do echo "$w"; done'],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert words[:4] == ["hybridbench", "nightly", "merge", f"{folder}/cells"]
    assert words[words.index("--plan") + 1] == "my plans/p.yaml"
    assert words[-1] == folder


def test_the_merge_alone_is_told_that_a_partial_run_will_do(tmp_path: Path) -> None:
    target = replace(TARGET, merge_options=["--allow-partial"])

    script = rendered(planned_run(tmp_path), "slurm", target)
    documents = list(yaml.safe_load_all(rendered(planned_run(tmp_path), "k8s", target)))

    assert script.count("--budget 20m --allow-partial --out") == 1
    assert "--allow-partial" not in script[script.index("exec ") :]
    told = [d["metadata"]["name"] for d in documents if "--allow-partial" in str(d)]
    assert told == ["hybridbench-test-20261120-120000-merge"]


def manifests(folder: Path, text: str = PLAN) -> dict[str, Any]:
    documents = yaml.safe_load_all(rendered(planned_run(folder, text), "k8s", TARGET))
    return {f"{d['kind']} {d['metadata']['name']}": d for d in documents}


def test_the_kubernetes_job_is_indexed_and_a_failed_cell_is_not_tried_again(tmp_path: Path) -> None:
    name = "hybridbench-test-20261120-120000"
    found = manifests(tmp_path)

    assert set(found) == {f"ConfigMap {name}", f"Job {name}", f"Job {name}-merge"}
    job = found[f"Job {name}"]["spec"]
    assert (job["completionMode"], job["completions"]) == ("Indexed", 2)
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailIndex"
    assert {10, 16} <= set(rule["onExitCodes"]["values"])
    assert not {130, 137, 143} & set(rule["onExitCodes"]["values"])
    assert found[f"Job {name}-merge"]["spec"]["suspend"] is True


# Of batch/v1 and core/v1, as far as this manifest goes; Kubernetes refuses unknown fields.
_JOB_FIELDS = {
    "completionMode", "completions", "parallelism", "backoffLimitPerIndex", "backoffLimit",
    "maxFailedIndexes", "podFailurePolicy", "template", "suspend",
}  # fmt: skip
_POD_FIELDS = {"restartPolicy", "terminationGracePeriodSeconds", "containers", "volumes"}
_CONTAINER_FIELDS = {"name", "image", "command", "resources", "volumeMounts"}


def test_the_manifest_has_only_fields_that_kubernetes_knows(tmp_path: Path) -> None:
    for document in manifests(tmp_path, PLAN + "needs: {gpu: 2, memory: 3GiB}\n").values():
        if document["kind"] != "Job":
            continue
        assert document["apiVersion"] == "batch/v1"
        spec = document["spec"]
        assert set(spec) <= _JOB_FIELDS
        pod = spec["template"]["spec"]
        assert set(pod) <= _POD_FIELDS
        # A pod failure policy is refused with any other.
        assert pod["restartPolicy"] == "Never"
        (container,) = pod["containers"]
        assert set(container) <= _CONTAINER_FIELDS
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        # Extended resources must be limited to what is requested.
        assert container["resources"]["limits"] == container["resources"]["requests"]


def test_the_command_of_a_pod_is_the_cell_of_its_index(tmp_path: Path) -> None:
    job = manifests(tmp_path)["Job hybridbench-test-20261120-120000"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    environment = fake_tools(tmp_path) | {"JOB_COMPLETION_INDEX": "1"}

    subprocess.run(container["command"], env=environment, cwd=tmp_path, check=True, timeout=30)

    call = (tmp_path / "calls").read_text(encoding="utf-8").strip().split("|")[:-1]
    assert call[3:] == [
        *("/plan/plan.yaml", "--budget", "20m", "--index", "1"),
        *("--out", "nights here/20261120-120000-test/cells"),
    ]


def test_the_console_says_how_often_chance_makes_it_fail(tmp_path: Path) -> None:
    text = rendered(planned_run(tmp_path), "console", TARGET)

    assert "false alarms: 0.36% of nightly runs, about one in" in text
    assert "= 1 - (1 - (1 - (1 - 0.0054)^8)^2)^2," in text


def test_profiles_that_lie_beside_the_plan_come_with_it_to_kubernetes(tmp_path: Path) -> None:
    profile_file(tmp_path / "traffic" / "mine.yaml", "mine")
    text = "name: test\nduration: 30m\ncells: [{profile: smoke}, {profile: traffic/mine.yaml}]\n"
    found = manifests(tmp_path, text)
    config = next(d for d in found.values() if d["kind"] == "ConfigMap")
    # What a pod sees below /plan.
    pod = tmp_path / "pod"
    for job in (d for d in found.values() if d["kind"] == "Job"):
        volume = job["spec"]["template"]["spec"]["volumes"][0]["configMap"]
        for item in volume["items"]:
            (pod / item["path"]).parent.mkdir(parents=True, exist_ok=True)
            (pod / item["path"]).write_text(config["data"][item["key"]], encoding="utf-8")

    there, here = plan_run(pod / "plan.yaml"), plan_run(tmp_path / "plan.yaml")

    assert there.record.hash == here.record.hash
    assert [cell.id for cell in there.cells][1].endswith("mine")


def test_a_profile_above_the_plan_is_refused_for_kubernetes(tmp_path: Path) -> None:
    profile_file(tmp_path / "mine.yaml", "mine")
    (tmp_path / "plans").mkdir()
    planned = planned_run(tmp_path / "plans", "name: t\ncells: [{profile: ../mine.yaml}]\n")

    with pytest.raises(UsageError, match="outside the plan"):
        rendered(planned, "k8s", TARGET)
