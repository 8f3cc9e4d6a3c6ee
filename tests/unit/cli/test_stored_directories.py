"""Each kind of directory stored by version 0.1.0 is read and reported without loss."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hybridbench.over_time.points import read_points
from hybridbench.records.finding import VerdictKind
from hybridbench.records.stored_verdict import read_verdict, verdict_to_json
from tests.unit.cli.conftest import CommandLine

STORED = Path(__file__).parents[2] / "fixtures" / "stored"
VERDICTS = sorted(
    path
    for path in STORED.rglob("verdict.json")
    if json.loads(path.read_text())["schema"] == "hybridbench.verdict/1"
)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return shutil.copytree(STORED, tmp_path / "stored")


@pytest.mark.parametrize("path", VERDICTS, ids=lambda path: str(path.relative_to(STORED)))
def test_a_stored_verdict_is_read_and_written_again_without_loss(path: Path) -> None:
    before = json.loads(path.read_text())

    again = json.loads(json.dumps(verdict_to_json(read_verdict(path), before["run_id"])))

    assert again == before


def test_options_that_stored_runs_decide_are_named(hybridbench: CommandLine, stored: Path) -> None:
    run = stored / "soak"
    copy = shutil.copytree(run, stored / "copy")
    words = ("compare", str(run), str(copy), "-q", "--store", str(stored / "compared"))

    plain = hybridbench(*words)
    asked = hybridbench(*words, "--profile", "absent", "--block", "1s", "--margin", "5%")

    assert plain.stderr == ""
    assert "without effect: --profile, --block; stored runs" in asked.stderr
    assert asked.returncode == plain.returncode


def test_a_file_of_a_run_is_refused_with_what_to_name_instead(hybridbench: CommandLine) -> None:
    page = STORED / "soak" / "verdict.json"

    result = hybridbench("report", str(page))

    assert result.returncode == 2
    assert result.stderr.rstrip().endswith(
        "verdict.json is a file: name the directory that holds it"
    )


def test_a_history_of_no_chosen_run_says_that_there_are_others(hybridbench: CommandLine) -> None:
    chosen = hybridbench("history", "--store", str(STORED), "--model", "absent")
    empty = hybridbench("history", "--store", str(STORED / "soak"), "--model", "absent")

    assert "The options select no run; 3 runs left out." in chosen.stdout
    assert "There is no run here." in empty.stdout


def test_a_stored_soak_is_reported_with_the_findings_it_had(
    hybridbench: CommandLine, stored: Path
) -> None:
    before = read_verdict(stored / "soak" / "verdict.json")

    reported = hybridbench("report", str(stored / "soak"))

    after = read_verdict(stored / "soak" / "verdict.json")
    assert reported.returncode == 10
    assert {(f.kind, f.subject, f.driver) for f in before.findings} <= {
        (f.kind, f.subject, f.driver) for f in after.findings
    }
    assert before.coverage == after.coverage
    diagnosis = json.loads((stored / "soak" / "diagnosis.json").read_text())
    was = json.loads((STORED / "soak" / "diagnosis.json").read_text())
    assert diagnosis["holdings"] == was["holdings"]
    assert diagnosis["parts"] == was["parts"]


def test_a_stored_comparison_is_reported_with_the_outcome_it_had(
    hybridbench: CommandLine, stored: Path
) -> None:
    before = json.loads((stored / "comparison" / "verdict.json").read_text())

    reported = hybridbench("report", str(stored / "comparison"))

    after = json.loads((stored / "comparison" / "verdict.json").read_text())
    assert reported.returncode == before["exit_code"] == after["exit_code"] == 13
    ours, theirs = (verdict["sides"][0]["metrics"] for verdict in (after, before))
    for metric, was in zip(ours, theirs, strict=True):
        # On another machine, numpy may round the last bit differently.
        assert {k: v for k, v in metric.items() if k not in ("why", "reason")} == {
            key: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            for key, value in was.items()
            if key not in ("why", "reason")
        }


def test_a_stored_nightly_run_is_reported_with_its_cells(
    hybridbench: CommandLine, stored: Path
) -> None:
    reported = hybridbench("report", str(stored / "nightly"))

    assert reported.returncode == 10
    assert "session-churn" in reported.stdout


def test_a_store_of_such_directories_is_listed_whole(
    hybridbench: CommandLine, stored: Path
) -> None:
    listed = json.loads(
        hybridbench("list", "runs", "--store", str(stored), "--format", "json").stdout
    )

    assert {(one["run_id"], one["answer"]) for one in listed} == {
        ("20261123-072345-qwen3-next-session-churn-session-close-mamba", "LEAK"),
        ("comparison", "INCONCLUSIVE"),
        ("nightly", "FAIL"),
    }
    assert not any(one["problem"] for one in listed)


def test_a_history_takes_stored_runs_with_their_values(stored: Path) -> None:
    points, unread = read_points(stored)

    assert not unread
    (soak,) = [p for p in points if p.path == str(stored / "soak")]
    assert soak.verdict == VerdictKind.LEAK
    assert {"rest.last", "rss.max", "throughput.mean"} <= set(soak.values)
