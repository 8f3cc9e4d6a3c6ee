"""Attempts: their commands, and a comparison's findings; one that was cut off is not an attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hybridbench.analysis.comparison.records import (
    Call,
    Change,
    Comparison,
    ComparisonTerms,
    ComparisonVerdict,
    LeakComparison,
    MetricComparison,
    Outcome,
    Role,
    SideComparison,
    Version,
)
from hybridbench.analysis.record import RunRecord
from hybridbench.compare.store import StoredComparison
from hybridbench.over_time import attempts
from hybridbench.over_time.attempts import Progress, start_command, stored_attempt, with_result
from hybridbench.over_time.policy import next_attempt, result
from hybridbench.records.comparison import ComparisonManifest
from hybridbench.records.finding import Rate, VerdictKind
from hybridbench.records.manifest import manifest_from_json
from hybridbench.records.nightly import Attempt, AttemptReason, CellKind, CellState
from hybridbench.records.verdict import Failure, Verdict
from tests.unit.over_time.planned_runs import attempt, planned_run

PLAN = """\
name: test
duration: 60s
compare:
  - {id: one, versions: ["git:HEAD~1", "."], profile: smoke, block: 5s, margin: 0.05}
"""
LEAK = LeakComparison(
    kind="instances-wait-for-collector",
    subject="TreeNode",
    driver="nodes_evicted",
    title="tree nodes wait for the collector",
    verdict=VerdictKind.LEAK,
    change=Change.INTRODUCED,
    exact=True,
    difference=Rate(0.85, 0.84, 0.86, "nodes", "evicted node"),
)
SLOWER = MetricComparison(
    metric="throughput_tokens_per_s",
    label="throughput",
    unit="1/s",
    role=Role.PRIMARY,
    call=Call.WORSE,
    word="SLOWER",
    margin=0.03,
    base=100.0,
    other=90.0,
    ratio=0.9,
    lower=0.88,
    upper=0.92,
    confidence=0.95,
    pairs=12,
    sd=0.01,
    robust_ratio=0.9,
)


def side(
    kind: Outcome,
    *,
    leaks: tuple[LeakComparison, ...] = (),
    metrics: tuple[MetricComparison, ...] = (),
) -> SideComparison:
    return SideComparison(1, "b", kind, kind.value, metrics, leaks, f"{kind.value} in words")


def ended(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *sides: SideComparison,
    how: str = "decided",
    thresholds: tuple[str, ...] = (),
    failures: tuple[Failure, ...] = (),
) -> Attempt | None:
    """Return the attempt whose comparison resulted in ``sides``; ``failures`` make it undecided."""
    outcome = Outcome.INCONCLUSIVE if failures else sides[0].outcome
    verdict = ComparisonVerdict(
        outcome, outcome.value, sides, 12, ComparisonTerms(), interleaved=True,
        headline="the answer", failures=failures,
    )  # fmt: skip
    directory = folder / "attempt-1" / "comparison"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "comparison.json").touch()
    nothing = RunRecord(manifest_from_json({"engine_hash": "e" * 64}), {}, ())
    clean = Verdict(VerdictKind.CLEAN, "", (), (), None, "")
    version = Version(".", "tree", nothing.manifest, nothing, clean)
    comparison = Comparison((version, version), (), interleaved=True)
    manifest = ComparisonManifest(thresholds=tuple(thresholds), ended=how)
    stored = StoredComparison(comparison, ComparisonTerms(), manifest)
    monkeypatch.setattr(attempts, "read_comparison", lambda _: stored)
    monkeypatch.setattr("hybridbench.compare.store.compare", lambda *_: verdict)
    blank = attempt("", exit_code=None)
    found = stored_attempt(CellKind.COMPARE, folder / "attempt-1")
    if found is None or found.progress is not Progress.DONE:
        return None
    return with_result(CellKind.COMPARE, blank, found.run_dir, folder)


def titles(made: Attempt) -> list[str]:
    return [finding.title for finding in made.findings]


def test_a_leak_that_was_counted_is_a_regression_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = planned_run(tmp_path, PLAN)
    rules = planned.rules(planned.cells[0])

    made = ended(tmp_path, monkeypatch, side(Outcome.REGRESSION, leaks=(LEAK,), metrics=(SLOWER,)))

    assert made is not None
    assert made.run == "attempt-1/comparison"
    assert [finding.subject for finding in made.findings] == ["TreeNode", SLOWER.metric]
    assert next_attempt(rules, [made]) is None
    said = result(rules, [made])
    assert (said.word, said.exit_code) == ("REGRESSION", 12)


def test_a_slower_version_is_compared_again_with_another_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = planned_run(tmp_path, PLAN)
    rules = planned.rules(planned.cells[0])
    shown = replace(SLOWER, role=Role.SHOWN, metric="itl_ms_p50")

    made = ended(tmp_path, monkeypatch, side(Outcome.REGRESSION, metrics=(SLOWER, shown)))

    assert made is not None
    assert [finding.subject for finding in made.findings] == [SLOWER.metric]
    wanted = next_attempt(rules, [made])
    assert wanted is not None
    assert wanted.reason is AttemptReason.RERUN


def test_what_was_fixed_or_stayed_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = planned_run(tmp_path, PLAN)
    fixed = replace(LEAK, change=Change.FIXED)

    made = ended(tmp_path, monkeypatch, side(Outcome.BETTER, leaks=(fixed,)))

    assert made is not None
    assert (made.verdict, made.findings) == ("CLEAN", ())
    assert result(planned.rules(planned.cells[0]), [made]).state is CellState.PASS


def test_a_version_that_fell_is_the_finding_and_an_undecided_one_is_neutral(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = planned_run(tmp_path, PLAN)
    rules = planned.rules(planned.cells[0])

    fell = ended(tmp_path, monkeypatch, side(Outcome.REGRESSION))
    open_ = ended(tmp_path, monkeypatch, side(Outcome.INCONCLUSIVE))

    assert fell is not None
    assert open_ is not None
    assert fell.findings[0].kind == "crash"
    assert result(rules, [fell]).exit_code == 12
    assert result(rules, [open_]).state is CellState.NEUTRAL
    # The report prints the word beside both.
    assert not any(text.startswith("INCONCLUSIVE: ") for text in (open_.headline, *titles(open_)))
    # It had all its interim analyses and its maximum time, so nothing is repeated.
    assert next_attempt(rules, [open_]) is None


def test_a_missed_ratio_is_a_finding_of_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = planned_run(tmp_path, PLAN)
    within = replace(SLOWER, call=Call.SAME, ratio=0.98, lower=0.975, upper=0.985)
    same = side(Outcome.SAME, metrics=(within,))

    missed = ended(tmp_path, monkeypatch, same, thresholds=("throughput.ratio>0.99",))
    met = ended(tmp_path, monkeypatch, same, thresholds=("throughput.ratio>0.97",))
    open_ = ended(tmp_path, monkeypatch, same, thresholds=("throughput.ratio>0.98",))

    assert missed is not None
    assert met is not None
    assert open_ is not None
    assert [(f.kind, f.exact) for f in missed.findings] == [("threshold", False)]
    assert result(planned.rules(planned.cells[0]), [missed, missed]).exit_code == 12
    assert (met.verdict, met.findings) == ("CLEAN", ())
    assert open_.verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("part", [Outcome.SAME, Outcome.REGRESSION])
def test_a_comparison_whose_analysis_failed_is_undecided_whatever_its_sides_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Outcome
) -> None:
    planned = planned_run(tmp_path, PLAN)
    failed = Failure("the leaks", "ValueError: x", "")

    made = ended(tmp_path, monkeypatch, side(part, leaks=(LEAK,)), failures=(failed,))

    assert made is not None
    assert (made.verdict, made.exit_code) == ("INCONCLUSIVE", 13)
    assert [finding.subject for finding in made.findings] == ["the leaks"]
    assert result(planned.rules(planned.cells[0]), [made]).state is CellState.NEUTRAL


@pytest.mark.parametrize("how", ["", "interrupted"])
def test_a_comparison_that_was_cut_off_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    assert ended(tmp_path, monkeypatch, side(Outcome.SAME), how=how) is None


def test_the_command_is_what_compare_understands(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from hybridbench.cli.app import app

    text = PLAN.replace("0.05}", "0.05, thresholds: [throughput.ratio>0.9]}")
    (cell,) = planned_run(tmp_path, text).cells
    words = start_command(cell, attempt(seed=3, duration_s=60.0), tmp_path)

    shown = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200"}).output
    assert words[3:6] == ["compare", "git:HEAD~1", "."]
    for option in (word for word in words if word.startswith("--")):
        assert option in shown


WATCHED = """\
name: test
watch:
  - id: chat
    command: [python, server.py, --api-key, sk-secret-of-mine]
    duration: 60s
    metrics: http://127.0.0.1:8000/metrics
    load: python load.py --rate 20
    cache_budget: [prompt=8GiB]
    thresholds: ['rss.slope<20MiB/h']
"""


def test_a_watched_cell_is_typed_as_anybody_would_type_it(tmp_path: Path) -> None:
    (planned,) = planned_run(tmp_path, WATCHED).cells

    words = start_command(planned, attempt(duration_s=60.0), tmp_path)

    at = words.index("--")
    assert words[at + 1 :] == ["python", "server.py", "--api-key", "sk-secret-of-mine"]
    assert words[2:6] == ["hybridbench", "watch", "--duration", "60s"]
    options = dict(zip(words[4:at:2], words[5:at:2], strict=True))
    assert options["--metrics"] == "http://127.0.0.1:8000/metrics"
    assert options["--load"] == "python load.py --rate 20"
    assert options["--cache-budget"] == "prompt=8GiB"
    assert options["--threshold"] == "rss.slope<20MiB/h"
    assert options["--store"] == str(tmp_path)


def test_a_watched_cell_is_stored_without_its_secrets(tmp_path: Path) -> None:
    (planned,) = planned_run(tmp_path, WATCHED).cells

    stored = msgspec.json.encode(planned.cell).decode()

    assert "sk-secret-of-mine" not in stored
    assert planned.cell.kind is CellKind.WATCH
    assert planned.cell.model == "server"
    assert planned.cell.watch[-4:] == ("python", "server.py", "--api-key", "[redacted]")
