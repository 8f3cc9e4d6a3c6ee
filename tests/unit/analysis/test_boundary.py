"""A part of the analysis that fails is named in the verdict, and no other result is lost."""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import numpy as np
import pytest
import typer

from hybridbench.analysis import judge as judge_module
from hybridbench.analysis import recorded as recorded_module
from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.comparison import compare as comparison_module
from hybridbench.analysis.comparison.compare import compare, look
from hybridbench.analysis.comparison.records import ComparisonTerms, Outcome
from hybridbench.analysis.comparison.words import look_text, phrased_comparison
from hybridbench.analysis.facts import facts as facts_module
from hybridbench.analysis.facts.restarts import Falls
from hybridbench.analysis.findings import growth
from hybridbench.analysis.findings.incomplete import failure_findings
from hybridbench.analysis.judge import judge, judge_so_far
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.recorded import ExternalSeries, TrendContext, judge_series
from hybridbench.cli.judge import JudgeFormat
from hybridbench.cli.judge import judge as judge_command
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.metrics import Unit
from hybridbench.records.events import EngineViolation, Segment
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.stored_verdict import verdict_from_json
from hybridbench.records.verdict import Verdict
from hybridbench.report import build as build_module
from hybridbench.report import write as write_module
from hybridbench.report.advice import next_step
from hybridbench.report.write import write_so_far
from hybridbench.rundir.layout import (
    ANALYSIS_ERRORS,
    ANALYSIS_ERRORS_SO_FAR,
    REPORT_HTML,
    VERDICT,
)
from tests.unit.analysis.comparisons import THROUGHPUT, pair, rounds
from tests.unit.analysis.records import (
    GIB,
    Run,
    checkpoint,
    healthy_record,
    with_checkpoints,
    with_events,
)
from tests.unit.report import synthetic

# The names of all analyses that ``judge`` calls.
ANALYSES = (
    "checkpoint_findings",
    "container_findings",
    "crash_findings",
    "gated_metrics",
    "growing_heaps",
    "growth_findings",
    "check_thresholds",
    "sanity_findings",
    "instance_findings",
    "in_words",
    "judge_decay",
    "judge_trend",
    "liveness_findings",
    "lock_findings",
    "log_findings",
    "not_seen",
    "probe_growth_findings",
    "readable",
    "restart_findings",
    "smallest_leak_called",
    "run_levels",
    "run_notes",
    "serving_results",
    "validity_findings",
    "violation_findings",
    "waiting_findings",
    "with_q_values",
    "with_split",
    "with_whole",
    "workload_findings",
    "wrong_answer_findings",
)
OF_SEGMENTS = ("coverage_findings", "pool_segments")
SO_FAR = ("growth_findings", "instance_findings", "judge_trend")
# The names of all functions with which ``Facts`` reads the record.
FACTS = ("coverage", "event_counters", "idle_checkpoints", "judged_window", "segments")


class BrokenError(Exception):
    """An error that no analysis raises itself."""


def broken(*_: object, **__: object) -> NoReturn:
    raise BrokenError("on purpose")


def leaking() -> RunRecord:
    """A run whose memory grows, with missing slots and a violated invariant."""
    record = healthy_record(Run(leak_bytes_per_h=2 * GIB))
    rests = [checkpoint(200.0 + 60.0 * i, mamba={"residual": float(3 * i)}) for i in range(6)]
    violation = EngineViolation(kind="alias", t_s=300.0)
    return with_events(with_checkpoints(record, rests), violation)


def resumed() -> RunRecord:
    return with_events(healthy_record(), Segment(t_s=300.0))


def told(verdict: Verdict) -> set[tuple[str, str]]:
    return {(f.kind, f.subject) for f in verdict.findings if f.kind != "analysis-failed"}


def failed(verdict: Verdict) -> set[str]:
    return {f.subject for f in verdict.findings if f.kind == "analysis-failed"}


@pytest.fixture(scope="module")
def whole() -> Verdict:
    return judge(leaking())


def break_part(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(facts_module if name in FACTS else judge_module, name, broken)


@pytest.mark.parametrize("name", [*ANALYSES, *FACTS])
def test_an_analysis_that_fails_takes_no_other_with_it(
    name: str, whole: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_part(monkeypatch, name)

    verdict = judge(leaking())

    # Two parts found something, so the loss of one leaves the other's finding.
    assert verdict.kind in (VerdictKind.LEAK, VerdictKind.INVARIANT)
    assert failed(verdict)
    assert {failure.part for failure in verdict.failures} == failed(verdict)
    lost = told(whole) - told(verdict)
    assert len(lost) < len(told(whole)) - 1


@pytest.mark.parametrize("name", ["judge_trend", "serving_results", "coverage"])
def test_a_report_names_the_analysis_that_failed_and_keeps_its_traceback(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = leaking()
    break_part(monkeypatch, name)
    verdict = judge(record)

    synthetic.write_reports(tmp_path, record, verdict)
    trace = (tmp_path / ANALYSIS_ERRORS).read_text()
    assert "BrokenError: on purpose" in trace
    assert "Traceback" in trace
    stored = verdict_from_json(json.loads((tmp_path / VERDICT).read_text()))
    assert failed(stored) == failed(verdict)
    assert "analysis-failed" in (tmp_path / REPORT_HTML).read_text()


@pytest.mark.parametrize("name", [*ANALYSES, *FACTS])
def test_a_run_that_was_judged_in_part_is_never_clean(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_part(monkeypatch, name)

    verdict = judge(healthy_record())

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert verdict.exit_code is ExitCode.INCONCLUSIVE
    assert failed(verdict)


@pytest.mark.parametrize("name", [*ANALYSES, *OF_SEGMENTS, *FACTS])
def test_a_run_of_several_segments_is_judged_without_the_part_that_fails(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_part(monkeypatch, name)

    verdict = judge(resumed())

    assert verdict.kind is not VerdictKind.CLEAN
    assert failed(verdict)


@pytest.mark.parametrize("name", [*SO_FAR, *FACTS])
def test_a_look_at_a_run_that_goes_on_says_what_failed(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = healthy_record()
    break_part(monkeypatch, name)

    verdict = judge_so_far(record)

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert failed(verdict)
    write_so_far(tmp_path, record, verdict)
    assert "BrokenError" in (tmp_path / ANALYSIS_ERRORS_SO_FAR).read_text()


@pytest.mark.parametrize("module", [judge_module, facts_module])
def test_every_analysis_that_the_verdict_calls_is_tried_here(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    imported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if inspect.isfunction(getattr(module, alias.name))
    }
    guarded = {
        given.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.args[0], ast.Constant | ast.Name | ast.JoinedStr)
        for given in node.args[1:3]
        if isinstance(given, ast.Name)
    }

    assert imported & guarded <= {*ANALYSES, *OF_SEGMENTS, *FACTS}


def test_a_leak_stands_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "find_driver", broken)

    verdict = judge(healthy_record(Run(leak_bytes_per_h=GIB)))

    assert verdict.kind is VerdictKind.LEAK
    assert "what drives rss_anon_swap_bytes" in failed(verdict)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_defect_of_a_part_passes(error: type[BaseException]) -> None:
    def stop() -> NoReturn:
        raise error

    boundary = Boundary()
    with pytest.raises(error):
        boundary.value("a part", None, stop)
    assert boundary.failures == ()


def test_a_generator_that_fails_on_the_way_is_caught() -> None:
    boundary = Boundary()

    assert boundary.listed("a part", lambda: (1 // n for n in (1, 0))) == []

    (finding,) = failure_findings(boundary.failures)
    assert finding.subject == "a part"
    assert str(finding.data["error"]).startswith("ZeroDivisionError")
    assert finding.verdict is VerdictKind.INCONCLUSIVE


def test_what_is_whole_again_leaves_no_tracebacks_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = healthy_record()
    with monkeypatch.context() as broken_once:
        broken_once.setattr(judge_module, "run_levels", broken)
        synthetic.write_reports(tmp_path, record, judge(record))
    assert (tmp_path / ANALYSIS_ERRORS).is_file()

    synthetic.write_reports(tmp_path, record, judge(record))

    assert not (tmp_path / ANALYSIS_ERRORS).exists()


@pytest.mark.parametrize("name", ["chart_groups", "diagnosis_text"])
def test_a_report_is_written_without_the_part_that_cannot_be_shown(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = healthy_record()
    monkeypatch.setattr(build_module, name, broken)

    document = synthetic.write_reports(tmp_path, record, judge(record))

    assert any("cannot be shown (BrokenError: on purpose)" in str(note) for note in document.notes)
    assert (tmp_path / REPORT_HTML).is_file()


def test_a_diagnosis_that_cannot_be_made_leaves_its_traceback_and_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = healthy_record()
    monkeypatch.setattr(write_module, "diagnose", broken)

    synthetic.write_reports(tmp_path, record, judge(record))

    assert "BrokenError" in (tmp_path / ANALYSIS_ERRORS).read_text()
    assert (tmp_path / REPORT_HTML).is_file()


def test_the_advice_is_a_report_and_not_a_longer_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "run_levels", broken)

    advice = next_step(judge(healthy_record()), Manifest())

    assert "analysis-errors.txt" in str(advice.text)


def column() -> ExternalSeries:
    t = np.arange(600.0)
    return ExternalSeries("rss_bytes", t, 7e8 + 0 * t, Unit.BYTES)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (recorded_module, "judge"),
        (facts_module, "judged_window"),
        (facts_module, "event_counters"),
    ],
)
def test_a_column_that_cannot_be_judged_is_undecided(
    module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, broken)

    row = judge_series(column(), Falls(), TrendContext())

    assert row is not None
    assert row.verdict is VerdictKind.INCONCLUSIVE
    assert row.result.why is not None
    assert row.result.why.code == "analysis-failed"
    assert row.failure is not None
    assert "Traceback" in row.failure.trace
    with pytest.raises(BrokenError):
        judge_series(column(), Falls(), TrendContext(), guarded=False)


@pytest.mark.parametrize("output", JudgeFormat)
def test_a_file_of_which_a_column_could_not_be_judged_is_told_with_the_traceback(
    output: JudgeFormat,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = "".join(f"{t},{700_000_000 + t % 7}\n" for t in range(0, 5400, 10))
    file = tmp_path / "series.csv"
    file.write_text(f"time_s,rss_bytes\n{rows}")
    monkeypatch.setattr(recorded_module, "judge", broken)

    with pytest.raises(typer.Exit) as ended:
        judge_command([str(file)], format_=output)

    said = capsys.readouterr()
    assert ended.value.exit_code == int(ExitCode.INCONCLUSIVE)
    if output is JudgeFormat.JSON:
        (row,) = json.loads(said.out)["files"][0]["metrics"]
        assert row["code"] == "analysis-failed"
    assert "the analysis failed: BrokenError: on purpose" in " ".join(said.out.split())
    assert "BrokenError: on purpose" in said.err


@pytest.mark.parametrize("name", ["_metrics", "leak_comparisons", "answer_of"])
def test_a_comparison_that_was_made_in_part_is_undecided(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pair(rounds(12, {THROUGHPUT: 1.0}, noise=0.002))
    assert compare(whole, ComparisonTerms()).outcome is Outcome.SAME
    monkeypatch.setattr(comparison_module, name, broken)

    verdict = compare(whole, ComparisonTerms())

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.failures
    assert "failed" in phrased_comparison(whole, verdict).headline


def test_a_slower_version_stays_slower_where_its_leaks_could_not_be_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slower = pair(rounds(12, {THROUGHPUT: 0.8}, noise=0.002))
    monkeypatch.setattr(comparison_module, "leak_comparisons", broken)

    assert compare(slower, ComparisonTerms()).outcome is Outcome.REGRESSION


def test_a_run_judged_in_part_makes_no_comparison_the_same() -> None:
    whole = pair(rounds(12, {THROUGHPUT: 1.0}, noise=0.002))
    boundary = Boundary()
    boundary.value("instances", None, broken)
    first, second = whole.versions
    in_part = replace(second, verdict=replace(second.verdict, failures=boundary.failures))

    verdict = compare(replace(whole, versions=(first, in_part)), ComparisonTerms())

    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_what_the_first_version_was_not_searched_for_is_not_introduced() -> None:
    whole = pair(rounds(12, {THROUGHPUT: 1.0}, noise=0.002))
    boundary = Boundary()
    boundary.value("instances", None, broken)
    first, second = whole.versions
    leaks = replace(second, verdict=judge(leaking()))
    in_part = replace(first, verdict=replace(first.verdict, failures=boundary.failures))

    known = compare(replace(whole, versions=(first, leaks)), ComparisonTerms())
    unknown = compare(replace(whole, versions=(in_part, leaks)), ComparisonTerms())

    assert known.outcome is Outcome.REGRESSION
    assert "INTRODUCED" in known.word
    assert unknown.outcome is Outcome.INCONCLUSIVE


def test_a_look_that_fails_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_module, "primaries", broken)

    seen = look(rounds(12, {THROUGHPUT: 1.0}), ComparisonTerms())

    assert not seen.decided
    assert "failed" in look_text(seen)
