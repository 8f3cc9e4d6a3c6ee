"""What `nightly plan` prints: a table, a document for programs, a matrix for GitHub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridbench.foundation.errors import UsageError
from hybridbench.over_time.plan_formats import as_json, console, github_matrix
from tests.unit.over_time.planned_runs import PLAN, planned_run


def test_the_matrix_of_github_is_one_line_with_every_cell(tmp_path: Path) -> None:
    text = github_matrix(planned_run(tmp_path, PLAN + "needs: {gpu: 1}\n"))

    assert text.count("\n") == 1
    include = json.loads(text)["include"]
    assert [entry["id"] for entry in include] == ["one", "two"]
    assert include[0]["runs_on"] == ["self-hosted", "gpu"]
    assert include[0]["minutes"] > 4


def test_more_cells_than_github_takes_are_refused(tmp_path: Path) -> None:
    seeds = list(range(257))
    planned = planned_run(tmp_path, f"name: t\nmatrix: {{profiles: [smoke], seeds: {seeds}}}\n")

    with pytest.raises(UsageError, match="257 cells, and one matrix has at most 256"):
        github_matrix(planned)


def test_the_document_says_how_long_each_cell_may_take_and_what_it_needs(tmp_path: Path) -> None:
    first, _ = json.loads(as_json(planned_run(tmp_path, PLAN + "needs: {cores: 3}\n")))["cells"]

    # Three runs of 30 minutes, each extended by as much, and a margin of half of that.
    assert first["minutes"] > 1.5 * 3 * 60
    assert first["needs"]["cores"] == 3


def test_the_console_says_how_often_chance_makes_it_fail(tmp_path: Path) -> None:
    text = console(planned_run(tmp_path))

    assert "false alarms: 0.36% of nightly runs, about one in" in text
    assert "= 1 - (1 - (1 - (1 - 0.0054)^8)^2)^2," in text
