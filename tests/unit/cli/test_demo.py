from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from hybridbench.runs.replay import RECORDING
from hybridbench.targets import own_process
from tests.scenarios.test_documented_commands import parse
from tests.unit.cli.conftest import CommandLine


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridbench.cli.demo._LASTS_S", 1e-3)


def test_a_demo_ends_with_the_report_and_two_commands_and_exit_code_0(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    demo = hybridbench("demo", cwd=tmp_path)
    judged = hybridbench("report", "results/demo")

    assert demo.returncode == 0, demo.stderr
    assert judged.returncode == 10
    # The report is exactly that of `report`.
    assert demo.stdout.startswith(judged.stdout)
    verdict = json.loads((tmp_path / "results" / "demo" / "verdict.json").read_text())
    recorded = json.loads((RECORDING / "manifest.json").read_text())
    assert verdict["verdict"] == "LEAK"
    assert shlex.join(recorded["command"]) in demo.stderr.splitlines()[0]
    assert "possible leak" in demo.stderr
    assert (tmp_path / "results" / "demo" / "report.html").is_file()
    assert "results/demo/report.html" in demo.stdout
    rest = demo.stdout.removeprefix(judged.stdout)
    assert_last_lines(rest)
    assert "hybridbench soak --duration" in rest


def test_a_demo_without_torch_and_beside_another_one_leaves_that_as_it_is(
    hybridbench: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_process, "missing_engine_packages", lambda: ["torch"])
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "report.md").write_text("mine")

    demo = hybridbench("demo", "--store", str(tmp_path))

    assert demo.returncode == 0
    assert (tmp_path / "demo" / "report.md").read_text() == "mine"
    assert (tmp_path / "demo-2" / "report.html").is_file()
    rest = demo.stdout[demo.stdout.index("exit code 10") :]
    assert_last_lines(rest)
    assert "hybridbench watch -- COMMAND" in rest


def assert_last_lines(said: str) -> None:
    """Check that the text after the report fits a terminal and has two commands that parse."""
    assert "exit code 10" in said
    assert max(map(len, said.splitlines())) <= 80
    commands = re.findall(r"^  (hybridbench .*?)  ", said, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        parse(command)


def test_ctrl_c_ends_it_without_a_trace(
    hybridbench: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridbench.cli.demo._LASTS_S", 60.0)
    monkeypatch.setattr(
        "hybridbench.foundation.clock.SystemClock.sleep",
        lambda *_: os.kill(os.getpid(), signal.SIGINT),
    )

    demo = hybridbench("demo", "--store", str(tmp_path / "results"))

    assert (demo.returncode, demo.stdout) == (130, "")
    assert "Traceback" not in demo.stderr
    assert not (tmp_path / "results").exists()


def test_without_a_leak_it_does_not_say_that_it_showed_one(
    hybridbench: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = tmp_path / "healthy"
    shutil.copytree(RECORDING, healthy)
    for name in ("samples.jsonl", "events.jsonl"):
        (healthy / name).write_text("")
    monkeypatch.setattr("hybridbench.runs.replay.RECORDING", healthy)

    demo = hybridbench("demo", "--store", str(tmp_path))

    assert demo.returncode not in (0, 1, 2, 10)
    assert "recording of a leak" not in demo.stdout


def test_a_store_that_cannot_be_written_is_one_sentence(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    demo = hybridbench("demo", "--store", str(tmp_path / "file" / "below"))

    assert demo.returncode == 2
    assert "is not a directory; choose another one" in demo.stderr
