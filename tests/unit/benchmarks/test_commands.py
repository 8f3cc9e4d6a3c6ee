"""``python -m benchmarks``: commands as on its page, and one sentence for each mistake."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from benchmarks.__main__ import app
from hybridbench.foundation.errors import ConfigError, ExitCode

ROOT = Path(__file__).parents[3]


def test_the_page_has_a_row_for_each_command() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    group = typer.main.get_command(app)

    rows = set(re.findall(r"^\| `python -m benchmarks ([a-z-]+)", page, re.MULTILINE))

    assert isinstance(group, TyperGroup)
    assert rows == set(group.commands)


def test_an_error_is_a_sentence_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = ROOT / "benchmarks" / "__main__.py"
    monkeypatch.setattr(sys, "argv", [str(program), "kernels", "--model", "absent"])

    # Run in this process, which has loaded PyTorch already.
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(program), run_name="__main__")

    assert ended.value.code == ExitCode.USAGE
    said = capsys.readouterr().err
    assert said.startswith("hybridbench: --model: 'absent' is neither a preset nor")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_each_operation_is_timed_beside_what_the_device_can_do() -> None:
    result = CliRunner().invoke(app, ["kernels", "--model", "qwen3-next-nano", "--rounds", "1"])

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("qwen3-next-nano, float32, one thread of ")
    assert lines[1].startswith("fastest copy ")
    phases = [line.split(" step of ")[0] for line in lines if " step of " in line]
    assert phases == ["prefill", "decode"]
    rows = {line.split()[0]: line.split() for line in lines if line}
    # Calls, microseconds, share of the step; bytes/s and FLOP/s, each with its share of the peak.
    assert sum(word.endswith("%") for word in rows["decode_attention"]) == 3
    assert rows["store_kv"][-2:] == ["-", "-"]
    assert rows["projections"][-4:-2] == ["-", "-"]
    assert rows.keys() >= {"everything", "all", "copy_states"}
    assert sum("calls into PyTorch" in line for line in lines) == len(phases)
    assert lines[-3].startswith("decode steps, overlapped: ")
    assert " overlap hides " in lines[-2]
    assert lines[-1].endswith("so nothing is hidden")


def test_a_device_that_the_engine_does_not_support_is_refused_in_a_sentence() -> None:
    result = CliRunner().invoke(app, ["kernels", "--device", "mps"])

    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "engine: device is 'mps'; write cpu or cuda."
