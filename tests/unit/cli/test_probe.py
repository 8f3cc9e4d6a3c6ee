"""``hybridbench probe export``: the copy works, and nothing else is overwritten."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.sampling.probe_client import DIRECTORY, ProbeClient, probe_environment

PROGRAM = "import sys; print('ready', flush=True); sys.stdin.readline()"


def test_a_program_with_the_exported_folder_answers(tmp_path: Path) -> None:
    copy, sockets = tmp_path / "copy", tmp_path / "sockets"
    result = CliRunner().invoke(app, ["probe", "export", str(copy)])
    environment = probe_environment(sockets, [], {}) | {"PYTHONPATH": str(copy)}

    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        status = ProbeClient(sockets).status(process.pid)

    assert result.exit_code == 0
    assert DIRECTORY in result.output
    assert status.pid == process.pid
    copied = {path.name for path in copy.iterdir()} - {"__pycache__"}
    assert copied == {"sitecustomize.py", "hybridbench_probe"}


def test_another_folder_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    result = CliRunner().invoke(app, ["probe", "export", str(tmp_path)])

    assert isinstance(result.exception, UsageError)
    assert result.exception.code == ErrorCode.NOT_EMPTY
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("full", [False, True])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    place = tmp_path / "copy"
    if full:
        monkeypatch.setattr("shutil.copytree", Mock(side_effect=shutil.Error([("a", "b", "full")])))
    else:
        place = Path("/proc/self/copy")

    result = CliRunner().invoke(app, ["probe", "export", str(place)])

    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(f"cannot copy the probe to {place}: ")
