"""The commands of a nightly run: a wrong call prints one sentence and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.over_time.run import CellRunner
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.test_cli import one_sentence
from tests.unit.over_time.planned_runs import attempt, finished, planned_run, store

pytestmark = pytest.mark.usefixtures("catalog_in_this_process")

PLAN = "name: mine\nduration: 30m\nleast_duration: 20m\ncells: [{id: one, profile: smoke}]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(PLAN, encoding="utf-8")
    elsewhere = PLAN.replace("smoke}", "smoke, model: /shared/model}")
    (tmp_path / "elsewhere.yaml").write_text(elsewhere, encoding="utf-8")
    typo = PLAN + "compare: [{versions: [., 'defect:lru-reference-cycl'], profile: smoke}]\n"
    (tmp_path / "typo.yaml").write_text(typo, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "absent.yaml"], "there is no such plan; choose one of nightly, weekly."),
        (["plan", "plan.yaml", "--budget", "soon"], "write 90s, 5m"),
        (["plan", "plan.yaml", "--defect", "lru-reference-cycl"], "lru-reference-cycle"),
        (["plan", "typo.yaml"], "typo.yaml:5: lru-reference-cycl: no such defect; did you mean"),
        (["cell", "plan.yaml", "--out", "o"], "either --id or --index"),
        (["cell", "plan.yaml", "--out", "o", "--index", "1"], "the plan has cells 0 to 0"),
        (
            ["run", "elsewhere.yaml"],
            "cell one: model: there is no directory /shared/model; nothing is",
        ),
        (
            ["cell", "elsewhere.yaml", "--out", "o", "--id", "one"],
            "no directory /shared/model; nothing is",
        ),
        (["merge", "absent", "--out", "o"], "absent: there is no such directory"),
        (["merge", ".", "--out", "o", "--budget", "5m"], "belong to --plan"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_call_is_one_sentence(
    hybridbench: CommandLine, folder: Path, arguments: list[str], said: str
) -> None:
    result = hybridbench("nightly", *arguments, cwd=folder)

    assert said in one_sentence(result)
    assert {path.name for path in folder.iterdir()} == {
        "plan.yaml",
        "elsewhere.yaml",
        "typo.yaml",
    }


@pytest.mark.parametrize(
    "cell",
    [
        "watch: [{id: one, command: [python3, server.py]}]",
        "cells: [{id: one, profile: chat-churn, version: 'vllm==0.32.0'}]",
        "compare: [{id: one, profile: chat-churn, versions: ['vllm==0.31.0', 'vllm==0.32.0']}]",
    ],
    ids=["watch", "soak", "compare"],
)
def test_a_cell_whose_model_no_worker_loads_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    (tmp_path / "plan.yaml").write_text(f"name: mine\nduration: 30m\n{cell}\n", encoding="utf-8")
    monkeypatch.setattr(CellRunner, "run_cell", lambda *_: 11)
    words = ["nightly", "cell", str(tmp_path / "plan.yaml"), "--id", "one", "--out", str(tmp_path)]

    assert CliRunner().invoke(app, words).exit_code == 11


def test_a_merge_in_which_all_is_missing_is_red_and_leaves_every_page(
    hybridbench: CommandLine, folder: Path
) -> None:
    (folder / "cells").mkdir()

    result = hybridbench(
        "nightly", "merge", "cells", "--plan", "plan.yaml", "--out", "night", cwd=folder
    )

    assert result.returncode == 16, result.stderr
    assert "MISSING" in result.stdout
    pages = {path.name for path in (folder / "night").iterdir()}
    assert pages == {"night.json", "report.html", "report.md", "junit.xml", "summary.md"}
    again = hybridbench("report", "night", "--format", "json", cwd=folder)
    assert again.returncode == 16
    assert json.loads(again.stdout)


def test_the_plan_as_json_has_what_a_scheduler_of_ones_own_needs(
    hybridbench: CommandLine, folder: Path
) -> None:
    told = json.loads(
        hybridbench("nightly", "plan", "plan.yaml", "--format", "json", cwd=folder).stdout
    )

    assert [cell["id"] for cell in told["cells"]] == ["one"]
    assert 0 < told["false_alarms"]["share"] < 0.01


def test_a_green_run_without_its_page_does_not_pass_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = planned_run(tmp_path)
    for name in ("one", "two"):
        store(finished(planned, name, attempt()), tmp_path / "cells")

    def fail(_: object) -> str:
        raise ValueError("no template")

    monkeypatch.setattr("hybridbench.report.write.render_html", fail)
    words = ["nightly", "merge", str(tmp_path / "cells"), "--out", str(tmp_path / "night")]

    done = CliRunner().invoke(app, words)

    assert done.exit_code == 13
    assert "report.html could not be made: ValueError: no template" in done.stderr
    assert "report.html" not in done.stdout
