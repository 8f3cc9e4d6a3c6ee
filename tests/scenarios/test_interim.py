"""Separate processes judge and report a run while it is in progress."""

from __future__ import annotations

from pathlib import Path

from hybridbench.foundation.clock import FakeClock
from hybridbench.records.manifest import manifest_from_json
from hybridbench.records.verdict import Verdict
from hybridbench.rundir.layout import REPORT_MARKDOWN_SO_FAR, VERDICT
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.interim import InterimJudge, InterimReport
from tests.scenarios.test_soak_run import wait_until
from tests.unit.rundir.test_cut import MANIFEST, cut_run


def judged(run_dir: Path) -> list[Verdict]:
    """Return the verdict of one interim analysis, or nothing."""
    judge = InterimJudge(run_dir)
    found: list[Verdict] = []

    def ended() -> bool:
        verdict = judge.collect()
        found.extend([] if verdict is None else [verdict])
        return not judge.busy

    judge.start()
    assert judge.busy
    wait_until(ended)
    judge.close()
    return found


def test_an_interim_analysis_judges_what_is_stored_so_far(tmp_path: Path) -> None:
    cut_run(tmp_path / "run")

    (verdict,) = judged(tmp_path / "run")
    assert verdict.headline
    assert verdict.window_s is not None


def test_an_analysis_that_fails_finds_nothing_and_harms_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path / "absent") == []


def test_an_analysis_under_way_is_ended_by_closing(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock()).close()
    judge = InterimJudge(tmp_path / "run")
    judge.start()
    judge.close()

    assert not judge.busy
    assert judge.collect() is None


def test_a_report_so_far_is_written_beside_the_run_and_decides_nothing(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock())
    for second in range(60):
        run.sample(float(second), "load", {"rss_anon_swap_bytes": 2.0**28})
    run.close()
    report = InterimReport(tmp_path / "run")

    assert report.start()
    assert not report.start(), "one at a time"
    report.close()

    assert (tmp_path / "run" / REPORT_MARKDOWN_SO_FAR).read_text(encoding="utf-8")
    assert not (tmp_path / "run" / VERDICT).exists()
    assert report.start()
    report.close()
