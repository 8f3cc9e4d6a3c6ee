"""``diagnose``, ``report --so-far`` and the related options of a soak."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import UsageError
from hybridbench.records.manifest import manifest_from_json
from hybridbench.rundir.writer import RunWriter
from hybridbench.sampling import allocations
from hybridbench.sampling.allocations import is_installed
from tests.unit.analysis.diagnoses import MIB, ladder_record, survey
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.test_cli import one_sentence
from tests.unit.report.synthetic import manifest


def stored_run(run_dir: Path, *, climbed: bool) -> Path:
    now = survey(60 * MIB, 17_270)
    record = ladder_record(base=(100, 90, 90, 70), end=(164, 154, 94, 72), now=now)
    with RunWriter(run_dir, manifest_from_json(manifest()), FakeClock()) as writer:
        writer.sample(1.0, "steady", {"rss_anon_swap_bytes": 100.0 * MIB})
        writer.sample(2.0, "steady", {"rss_anon_swap_bytes": 140.0 * MIB})
        for event in record.events if climbed else ():
            writer.event(event)
    return run_dir


def test_a_stored_ladder_is_told_again(hybridbench: CommandLine, tmp_path: Path) -> None:
    result = hybridbench("diagnose", str(stored_run(tmp_path / "run", climbed=True)))

    assert result.returncode == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "17,270 TreeNode" in said
    assert "waiting for the collector" in said


def test_a_run_that_was_not_asked_says_what_is_left_and_how_to_ask(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    result = hybridbench("diagnose", str(stored_run(tmp_path / "run", climbed=False)))

    assert result.returncode == 0, result.stderr
    assert "Private memory moved by +40.0 MiB" in result.stdout
    assert result.stdout.rstrip().endswith("--diagnose always")


def test_what_is_no_run_is_refused(hybridbench: CommandLine, tmp_path: Path) -> None:
    assert "not a run directory" in one_sentence(hybridbench("diagnose", str(tmp_path)))


def test_the_evidence_so_far_is_written_beside_and_decides_no_exit_code(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    run_dir = stored_run(tmp_path / "run", climbed=True)

    result = hybridbench("report", str(run_dir), "--so-far")

    assert result.returncode == 0, result.stderr
    names = {path.name for path in run_dir.iterdir()}
    assert {"verdict-so-far.json", "report-so-far.html", "report-so-far.md"} <= names
    assert not {"verdict.json", "report.html"} & names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on-leak", "stop"], "write hold=TIME"),
        (["--on-leak", "hold=long"], "write 90s, 5m"),
        (
            ["--memray", "2m", "--diagnose", "never"],
            "--memray cannot be combined with --diagnose never",
        ),
        pytest.param(
            ["--memray", "soon"],
            "write 90s, 5m",
            marks=pytest.mark.skipif(not is_installed(), reason="needs hybridbench[memray]"),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_told_in_one_sentence(
    hybridbench: CommandLine, tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = hybridbench("soak", "--ui", "none", *arguments, cwd=tmp_path)

    assert said in one_sentence(result)


def test_memray_that_is_not_installed_is_said_before_anything_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocations, "is_installed", lambda: False)
    result = CliRunner().invoke(app, ["soak", "--memray", "2m", "--ui", "none"])

    assert isinstance(result.exception, UsageError)
    assert "pip install 'hybridbench[memray]'" in str(result.exception)
