"""The templates for Slurm and Kubernetes: the shell runs, and Kubernetes accepts the YAML."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from hybridbench.foundation.errors import ExitCode
from hybridbench.over_time.plan_formats import as_json
from tests.unit.over_time.fake_tools import fake_tools
from tests.unit.over_time.planned_runs import planned_run

EXAMPLES = Path(__file__).parents[3] / "docs" / "how-to" / "examples"
SLURM = EXAMPLES / "nightly-slurm.sh"
KUBERNETES = EXAMPLES / "nightly-kubernetes.yaml"


def slurm_script(**settings: str) -> str:
    """Return the template with the edits that its user must make."""
    text = SLURM.read_text(encoding="utf-8")
    for name, value in settings.items():
        text, edited = re.subn(f"(?m)^{name}=.*", f"{name}={value}", text)
        assert edited == 1, name
    return text


def run_script(text: str, folder: Path, environment: dict[str, str]) -> list[list[str]]:
    """Run ``text`` under bash; return the calls that it made."""
    script = folder / "night.sh"
    script.write_text(text, encoding="utf-8")
    subprocess.run(["bash", "-n", str(script)], check=True)
    subprocess.run(["bash", str(script)], cwd=folder, env=environment, check=True, timeout=30)
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    return [call.split("|")[:-1] for call in calls]


def test_a_slurm_task_runs_the_cell_of_its_index(tmp_path: Path) -> None:
    text = slurm_script(plan="'my plans/p.yaml'", options="(--budget 20m)")
    task = {"SLURM_ARRAY_TASK_ID": "1", "NIGHTLY_RUN": "nights here/9"}

    (call,) = run_script(text, tmp_path, fake_tools(tmp_path) | task)

    assert call == [
        *("hybridbench", "nightly", "cell", "my plans/p.yaml", "--budget", "20m"),
        *("--index", "1", "--out", "nights here/9/cells"),
    ]


def test_the_slurm_script_submits_a_task_for_each_cell_and_the_merge(tmp_path: Path) -> None:
    text = slurm_script(
        plan="'my plans/p.yaml'",
        nightly="'nights here'",
        options="(--budget 20m)",
        merge_options="(--allow-partial)",
    )
    tools = fake_tools(tmp_path, plan=as_json(planned_run(tmp_path)))

    planned, array, merge = run_script(text, tmp_path, tools)

    assert planned[2:] == ["plan", "my plans/p.yaml", "--budget", "20m", "--format", "json"]
    assert array[2] == "--array=0-1"
    assert int(array[3].removeprefix("--time=")) > 100
    folder = array[4].removeprefix("--export=ALL,NIGHTLY_RUN=")
    assert (tmp_path / folder).is_dir()
    assert merge[2] == "--dependency=afterany:77"
    # sh must split what Slurm passes to it into these words.
    wrapped = merge[merge.index("--wrap") + 1]
    words = subprocess.run(
        ["sh", "-c", f'for w in {wrapped}; do echo "$w"; done'],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert words == [
        *("hybridbench", "nightly", "merge", f"{folder}/cells", "--plan", "my plans/p.yaml"),
        *("--budget", "20m", "--allow-partial", "--out", folder),
    ]


def test_the_slurm_script_as_it_is_needs_no_option(tmp_path: Path) -> None:
    task = {"SLURM_ARRAY_TASK_ID": "0", "NIGHTLY_RUN": "9"}

    (call,) = run_script(slurm_script(), tmp_path, fake_tools(tmp_path) | task)

    assert call[3:] == ["nightly", "--index", "0", "--out", "9/cells"]


def jobs() -> dict[str, Any]:
    """Return the Jobs by name, filled in by the command on the page."""
    page = (EXAMPLES.parent / "nightly.md").read_text(encoding="utf-8")
    (command,) = re.findall(r'^(sed "[^"]*" nightly-kubernetes.yaml) \|', page, re.MULTILINE)
    text = subprocess.run(
        ["sh", "-c", f"stamp=20261120 cells=2; {command}"],
        cwd=EXAMPLES, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return {job["metadata"]["name"]: job for job in yaml.safe_load_all(text)}


def test_the_kubernetes_job_is_indexed_and_a_failed_cell_is_not_tried_again() -> None:
    found = jobs()

    assert set(found) == {"nightly-20261120", "nightly-20261120-merge"}
    job = found["nightly-20261120"]["spec"]
    assert (job["completionMode"], job["completions"]) == ("Indexed", 2)
    (rule,) = job["podFailurePolicy"]["rules"]
    ended_by_a_signal = {ExitCode.INTERRUPTED, ExitCode.TERMINATED}
    results = set(ExitCode) - {ExitCode.CLEAN, ExitCode.INTERNAL, *ended_by_a_signal}
    assert rule["action"] == "FailIndex"
    assert set(rule["onExitCodes"]["values"]) == {int(code) for code in results}
    assert found["nightly-20261120-merge"]["spec"]["suspend"] is True


# The fields of batch/v1 and core/v1 that this manifest uses; Kubernetes refuses unknown ones.
_JOB_FIELDS = {
    "completionMode", "completions", "parallelism", "backoffLimitPerIndex", "backoffLimit",
    "maxFailedIndexes", "podFailurePolicy", "template", "suspend",
}  # fmt: skip
_POD_FIELDS = {"restartPolicy", "terminationGracePeriodSeconds", "containers", "volumes"}
_CONTAINER_FIELDS = {"name", "image", "command", "resources", "volumeMounts"}


def test_the_manifest_has_only_fields_that_kubernetes_knows() -> None:
    for job in jobs().values():
        assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
        spec = job["spec"]
        assert set(spec) <= _JOB_FIELDS
        pod = spec["template"]["spec"]
        assert set(pod) <= _POD_FIELDS
        # A pod failure policy requires this restart policy.
        assert pod["restartPolicy"] == "Never"
        (container,) = pod["containers"]
        assert set(container) <= _CONTAINER_FIELDS
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_command_of_a_pod_is_the_cell_of_its_index(tmp_path: Path) -> None:
    (container,) = jobs()["nightly-20261120"]["spec"]["template"]["spec"]["containers"]
    environment = fake_tools(tmp_path) | {"JOB_COMPLETION_INDEX": "1"}

    subprocess.run(container["command"], env=environment, cwd=tmp_path, check=True, timeout=30)

    call = (tmp_path / "calls").read_text(encoding="utf-8").strip().split("|")[:-1]
    assert call[2:] == [
        *("cell", "/plan/plan.yaml", "--index", "1", "--out", "/nightly/20261120/cells")
    ]


def test_every_option_of_the_templates_is_one_of_ours() -> None:
    from typer.testing import CliRunner

    from hybridbench.cli.app import app

    (merge,) = jobs()["nightly-20261120-merge"]["spec"]["template"]["spec"]["containers"]
    text = f"{SLURM.read_text()} {KUBERNETES.read_text()} {' '.join(merge['command'])}"
    calls = re.findall(r"hybridbench nightly (plan|cell|merge)((?:[^\n|)]|\\\n)*)", text)

    assert {verb for verb, _ in calls} == {"plan", "cell", "merge"}
    for verb, rest in calls:
        shown = CliRunner().invoke(app, ["nightly", verb, "--help"], env={"COLUMNS": "200"}).output
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in shown, (verb, option)
