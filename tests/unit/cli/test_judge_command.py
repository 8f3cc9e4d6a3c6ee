"""``judge``, ``explain`` and ``list`` as run from a shell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from typer.testing import CliRunner, Result

from hybridbench.cli.app import app

_NO_TORCH = (
    "import sys, hybridbench.cli.app as app\n"
    "try:\n    app.main()\nexcept SystemExit as end:\n    code = end.code\n"
    "heavy = {'torch', 'scipy', 'transformers', 'hybridbench.engine'} & set(sys.modules)\n"
    "assert not heavy, heavy\nsys.exit(code)\n"
)


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _NO_TORCH, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def judged(*arguments: str) -> Result:
    """Run ``judge`` in this process, which has already loaded what it needs."""
    return CliRunner().invoke(app, ["judge", *arguments])


def table(leak: float) -> str:
    t = np.arange(0.0, 7200.0, 10.0)
    noise = np.random.default_rng(2).normal(0, 400, t.size)
    value = 1_000_000 + leak * t / 3600 + noise
    return "time,rss_kb\n" + "".join(f"{a},{b:.0f}\n" for a, b in zip(t, value, strict=True))


def test_judging_loads_no_torch_and_exits_with_the_worst_verdict(tmp_path: Path) -> None:
    clean = tmp_path / "clean.csv"
    clean.write_text(table(0), encoding="utf-8")

    both = run("judge", str(clean), "-", "--format", "json", "--steady-at", "10m", text=table(3e5))

    assert both.returncode == 10, both.stderr
    document = json.loads(both.stdout)
    assert [file["verdict"] for file in document["files"]] == ["CLEAN", "LEAK"]
    alone = judged(str(clean), "--steady-at", "10m")
    assert alone.exit_code == 0
    assert "CLEAN" in alone.stdout


def test_a_file_gets_what_its_format_prints(tmp_path: Path) -> None:
    series = tmp_path / "leak.csv"
    series.write_text(table(3e5), encoding="utf-8")
    words = (str(series), "--steady-at", "10m")

    files = ("--output", f"json={tmp_path / 'x.json'}", "--output", f"markdown={tmp_path / 'x.md'}")
    quiet = judged(*words, "-q", *files)

    assert quiet.exit_code == 10
    for name, file in (("json", "x.json"), ("markdown", "x.md")):
        assert (tmp_path / file).read_text() == judged(*words, "--format", name).stdout


def test_quiet_is_one_line_with_the_verdict(tmp_path: Path) -> None:
    series = tmp_path / "leak.csv"
    series.write_text(table(3e5), encoding="utf-8")

    whole = judged(str(series), "--steady-at", "10m")
    quiet = judged(str(series), "--steady-at", "10m", "-q")

    assert quiet.exit_code == whole.exit_code == 10
    (line,) = quiet.stdout.splitlines()
    assert line.startswith("LEAK: ")
    assert line.removeprefix("LEAK: ")[:30] in whole.stdout


def test_a_wrong_name_is_one_sentence_and_exit_code_two() -> None:
    wrong = run("judge", "-", "--metric", "rss_mb", text=table(0))

    assert wrong.returncode == 2
    assert len(wrong.stderr.strip().splitlines()) == 1
    assert "did you mean rss_kb?" in wrong.stderr
