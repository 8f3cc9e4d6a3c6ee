"""What an older version stored is still read: each kind of directory, reported without loss."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from hybridbench.over_time.points import read_points
from hybridbench.records.stored_verdict import read_verdict, verdict_to_json
from hybridbench.records.verdict import VerdictKind
from tests.unit.cli.conftest import CommandLine

OLDER = Path(__file__).parents[2] / "fixtures" / "a9932c8"
VERDICTS = sorted(
    path
    for path in OLDER.rglob("verdict.json")
    if json.loads(path.read_text())["schema"] == "hybridbench.verdict/1"
)

Stored: TypeAlias = dict[str, Any]


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return shutil.copytree(OLDER, tmp_path / "older")


def without_ranges_of_too_few_samples(stored: Stored) -> Stored:
    """That version called them intervals; nothing rests on them since."""
    for metric in stored["metrics"]:
        if metric["model"] == "none":
            metric["rate_per_hour"] = None
    unmeasured = {m["metric"] for m in stored["metrics"] if m["rate_per_hour"] is None}
    for finding in stored["findings"]:
        if finding["kind"] == "undecided" and finding["subject"] in unmeasured:
            finding["rates"] = []
    return stored


def without_serving(stored: Stored) -> Stored:
    """That version had no such table, and did not say which findings are exact."""
    for finding in stored.get("findings", ()):
        assert isinstance(finding.pop("exact", None), bool | None)
    return {key: value for key, value in stored.items() if key != "serving"}


@pytest.mark.parametrize("path", VERDICTS, ids=lambda path: str(path.relative_to(OLDER)))
def test_a_stored_verdict_is_read_and_written_again_without_loss(path: Path) -> None:
    stored = without_ranges_of_too_few_samples(json.loads(path.read_text()))

    again = json.loads(json.dumps(verdict_to_json(read_verdict(path), stored["run_id"])))

    assert without_serving(again) == stored


def test_a_stored_soak_is_reported_with_the_findings_it_had(
    hybridbench: CommandLine, older: Path
) -> None:
    before = read_verdict(older / "soak" / "verdict.json")

    reported = hybridbench("report", str(older / "soak"))

    after = read_verdict(older / "soak" / "verdict.json")
    assert reported.returncode == 10
    assert {(f.kind, f.subject, f.driver) for f in before.findings} <= {
        (f.kind, f.subject, f.driver) for f in after.findings
    }
    assert before.coverage == after.coverage
    diagnosis = json.loads((older / "soak" / "diagnosis.json").read_text())
    was = json.loads((OLDER / "soak" / "diagnosis.json").read_text())
    assert diagnosis["holdings"] == was["holdings"]
    assert _sizes(diagnosis) == pytest.approx(_sizes(was))


def _sizes(diagnosis: dict[str, Any]) -> dict[str, float]:
    """Bytes by part.  Of what no stage released, a part counts as the allocator's: a9932c8 took
    too much for that where a collection released nothing.
    """
    sizes = {part["kind"]: part["size_bytes"] for part in diagnosis["parts"]}
    return {**sizes, "unexplained": sizes["unexplained"] + sizes.pop("allocator")}


def test_a_stored_comparison_is_reported_with_the_outcome_it_had(
    hybridbench: CommandLine, older: Path
) -> None:
    before = json.loads((older / "comparison" / "verdict.json").read_text())

    reported = hybridbench("report", str(older / "comparison"))

    after = json.loads((older / "comparison" / "verdict.json").read_text())
    assert reported.returncode == before["exit_code"] == after["exit_code"] == 13
    after_, before_ = (stored["sides"][0]["metrics"] for stored in (after, before))
    # Reasons have a code now, and their sentences are of this version.
    numbers = [{k: v for k, v in metric.items() if k not in ("why", "reason")} for metric in after_]
    for ours, theirs in zip(numbers, before_, strict=True):
        theirs.pop("reason", None)
        # Another machine's numpy may round the last bit otherwise.
        assert ours == {
            key: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            for key, value in theirs.items()
        }


def test_a_stored_nightly_run_is_reported_with_its_cells(
    hybridbench: CommandLine, older: Path
) -> None:
    reported = hybridbench("report", str(older / "nightly"))

    assert reported.returncode == 10
    assert "session-churn" in reported.stdout


def test_a_store_of_older_directories_is_listed_whole(
    hybridbench: CommandLine, older: Path
) -> None:
    listed = json.loads(
        hybridbench("list", "runs", "--store", str(older), "--format", "json").stdout
    )

    assert {(one["run_id"], one["answer"]) for one in listed} == {
        ("20261123-072345-qwen3-next-session-churn-session-close-mamba", "LEAK"),
        ("comparison", "INCONCLUSIVE"),
        ("nightly", "FAIL"),
    }
    assert not any(one["problem"] for one in listed)


def test_a_history_takes_older_runs_with_their_values(older: Path) -> None:
    points, unread = read_points(older)

    assert not unread
    (soak,) = [p for p in points if p.path == str(older / "soak")]
    assert soak.verdict == VerdictKind.LEAK
    assert {"rest.last", "rss.max", "throughput.mean"} <= set(soak.values)
