"""The nightly workflow: its scripts are valid shell, and what they call exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hybridbench.foundation.units import parse_duration_s
from hybridbench.over_time.planned import plan_run
from hybridbench.workload.catalog import load_profile
from tests.unit.over_time.fake_tools import fake_tools

ROOT = Path(__file__).parents[3]
WORKFLOW = ROOT / ".github" / "workflows" / "nightly.yml"


def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return loaded


def scripts() -> Iterator[tuple[str, str]]:
    """Yield a name and the script of each ``run`` step."""
    for name, job in workflow()["jobs"].items():
        for index, step in enumerate(job["steps"]):
            if "run" in step:
                yield f"{name}-{index}", step["run"]


SCRIPTS = dict(scripts())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_step_is_shell_without_expressions_in_it(name: str) -> None:
    script = SCRIPTS[name]

    # GitHub pastes expressions into a script as code, so values must come by the environment.
    assert "${{" not in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def run_step(name: str, folder: Path, **environment: str) -> list[list[str]]:
    """Run a step's script with a fake hybridbench and a fake gh; return their calls."""
    tools = fake_tools(folder)
    (folder / "bin" / "gh").write_text(
        '#!/bin/sh\nprintf "%s|" gh "$@" >> "$CALLS"\necho >> "$CALLS"\n'
        '[ "$2" = list ] && echo "$FOUND"\ntrue\n',
        encoding="utf-8",
    )
    (folder / "bin" / "gh").chmod(0o755)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(folder / "bin")
    (folder / "night").mkdir()
    (folder / "night" / "summary.md").write_text("red ✕\n" * 20_000, encoding="utf-8")
    subprocess.run(
        ["bash", "-eo", "pipefail", "-c", SCRIPTS[name]],
        cwd=folder, env={**tools, **environment}, check=True, timeout=30,
    )  # fmt: skip
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    return [call.split("|")[:-1] for call in calls]


def step_with(text: str) -> str:
    return next(name for name, script in SCRIPTS.items() if text in script)


def test_budget_and_defect_are_said_only_where_they_are_set(tmp_path: Path) -> None:
    name = step_with("nightly cell")
    given = {"PLAN": "p.yaml", "CELL": "one"}
    (tmp_path / "plain").mkdir()
    (tmp_path / "both").mkdir()

    (plain,) = run_step(name, tmp_path / "plain", **given, BUDGET="", DEFECT="")
    (both,) = run_step(name, tmp_path / "both", **given, BUDGET="10m", DEFECT="lru")

    assert plain == ["hybridbench", "nightly", "cell", "p.yaml", "--id", "one", "--out", "cells"]
    assert both[4:8] == ["--budget", "10m", "--defect", "lru"]


def test_only_a_pull_request_is_content_with_the_cells_that_fit(tmp_path: Path) -> None:
    name = step_with("nightly merge")
    (tmp_path / "night").mkdir()
    (tmp_path / "pull").mkdir()
    given = {"PLAN": "p.yaml", "BUDGET": "", "DEFECT": ""}

    (whole,) = run_step(name, tmp_path / "night", **given, PARTIAL="")
    (partial,) = run_step(name, tmp_path / "pull", **given, PARTIAL="--allow-partial")

    assert whole[-2:] == ["--out", "night"]
    assert partial[-3:] == ["--out", "night", "--allow-partial"]


def test_the_budget_of_a_pull_request_fits_two_cells_that_can_decide() -> None:
    (budget,) = re.findall(r"'pull_request' && '(\w+)'", workflow()["env"]["BUDGET"])

    planned = plan_run("nightly", parse_duration_s(budget))

    assert len(planned.cells) >= 2
    for cell in planned.cells:
        assert cell.cell.duration_s >= load_profile(cell.cell.profile).decides_from_s


@pytest.mark.parametrize(("found", "verb"), [("17", "comment"), ("", "create")])
def test_a_failed_run_has_one_issue(tmp_path: Path, found: str, verb: str) -> None:
    name = step_with("gh issue")

    calls = run_step(name, tmp_path, TITLE="Nightly run failed", RUN="run-1", FOUND=found)

    assert [call[:3] for call in calls] == [["gh", "issue", "list"], ["gh", "issue", verb]]
    body = (tmp_path / "body.md").read_text(encoding="utf-8")
    assert body.startswith("run-1\n")
    assert len(body) < 65_536


def test_the_merge_also_runs_after_failed_cells_and_is_told_the_same(tmp_path: Path) -> None:
    jobs = workflow()["jobs"]

    assert jobs["cell"]["strategy"]["fail-fast"] is False
    assert "!cancelled()" in jobs["merge"]["if"]
    assert set(jobs["merge"]["needs"]) == {"plan", "cell"}
    options = [re.findall(r"options=\(.*\)", script) for script in SCRIPTS.values()]
    assert len({line for lines in options for line in lines}) == 1


def test_every_call_of_the_workflow_is_understood() -> None:
    from typer.testing import CliRunner

    from hybridbench.cli.app import app

    text = " ".join(SCRIPTS.values()).replace("\\\n", " ")
    calls = {
        (verb, option)
        for verb, rest in re.findall(r"hybridbench nightly (\w+)([^\n]*)", text)
        for option in re.findall(r"--[a-z-]+", rest)
    }

    assert len(calls) > 6
    for verb in {verb for verb, _ in calls}:
        shown = CliRunner().invoke(app, ["nightly", verb, "--help"], env={"COLUMNS": "200"}).output
        for option in (option for v, option in calls if v == verb):
            assert option in shown, (verb, option)


def test_the_matrix_is_what_the_plan_prints_for_github() -> None:
    from typer.testing import CliRunner

    from hybridbench.cli.app import app

    result = CliRunner().invoke(app, ["nightly", "plan", "nightly", "--format", "github"])

    matrix = workflow()["jobs"]["cell"]
    used = set(re.findall(r"matrix\.(\w+)", json.dumps(matrix)))
    assert used <= set(json.loads(result.stdout)["include"][0])
    assert os.linesep not in result.stdout.rstrip()
