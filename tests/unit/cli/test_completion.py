"""Shell completion of a word that is being typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.cli.completion import complete_defect, complete_model, complete_result
from hybridbench.defects.catalog import CONTROLS, DEFECTS, PLANTED
from hybridbench.engine.models.presets import PRESETS
from tests.unit.over_time.stores import DAY_S, add_run, verdict


def test_defects_are_those_of_the_catalog() -> None:
    known = (*DEFECTS, *CONTROLS, *PLANTED)
    assert complete_defect("") == sorted(one.slug for one in known)


def test_models_are_the_presets() -> None:
    assert complete_model("") == sorted(PRESETS)


def test_results_are_offered_by_path_and_by_name_and_directories_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    add_run(tmp_path / "results", "one", DAY_S, verdict())
    (tmp_path / "results" / "empty").mkdir()
    (tmp_path / "other" / "below").mkdir(parents=True)

    assert complete_result("") == complete_result("res") == complete_result("on") == ["results/one"]
    assert complete_result("oth") == ["other/"]
    assert complete_result("other/") == ["other/below/"]
    assert complete_result("absent/x") == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("soak --profile chat-c", ["chat-churn"]),
        ("soak --defect lru-r", ["lru-reference-cycle"]),
        ("compare --model nemotron-h-t", ["nemotron-h-tiny"]),
        ("judge --format mark", ["markdown"]),
        ("explain ghost", ["ghost-request"]),
    ],
)
def test_the_shell_completes(
    monkeypatch: pytest.MonkeyPatch, typed: str, offered: list[str]
) -> None:
    monkeypatch.setenv("_HYBRIDBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"hybridbench {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))

    result = CliRunner().invoke(app, [], prog_name="hybridbench")

    assert result.output.split() == offered


def test_completion_loads_neither_torch_nor_numpy() -> None:
    asked = (
        "import sys; from hybridbench.cli import app, completion as c; "
        "c.complete_defect(''), c.complete_model(''), c.complete_result(''); "
        "c.complete_profile('');"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )

    child = subprocess.run([sys.executable, "-P", "-c", asked], check=False)

    assert child.returncode == 0
