"""The report of a run that goes on, written by a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hybridbench.clock import FakeClock
from hybridbench.rundir.layout import REPORT_MARKDOWN_SO_FAR, VERDICT
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs import evidence
from hybridbench.runs.evidence import EvidenceWriter
from tests.unit.rundir.test_writer import MANIFEST


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run under way: a minute of samples and no verdict."""
    run = RunWriter(tmp_path / "run", MANIFEST, FakeClock())
    for second in range(60):
        run.sample(float(second), "load", {"rss_anon_swap_bytes": 2.0**28})
    run.close()
    return tmp_path / "run"


def test_what_is_known_so_far_is_written_beside_the_run_and_decides_nothing(run_dir: Path) -> None:
    writer = EvidenceWriter(run_dir)

    assert writer.start()
    writer.close()

    assert (run_dir / REPORT_MARKDOWN_SO_FAR).read_text(encoding="utf-8")
    assert not (run_dir / VERDICT).exists()


def test_a_second_one_waits_for_the_first(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = [sys.executable, "-c", "import signal; signal.pause()"]
    monkeypatch.setattr(evidence, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(evidence, "_command", lambda _: endless)
    writer = EvidenceWriter(run_dir)

    assert writer.start()
    assert not writer.start()
    writer.close()
    assert writer.start(), "the one that never ended was ended"
    writer.close()


def test_no_process_no_evidence_and_no_harm(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_command", lambda _: [str(run_dir / "no-such-program")])
    writer = EvidenceWriter(run_dir)

    assert not writer.start()
    writer.close()
