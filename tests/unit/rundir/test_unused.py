"""Which directories may be removed again."""

from __future__ import annotations

from pathlib import Path

from hybridbench.foundation.clock import FakeClock
from hybridbench.records.events import Phase
from hybridbench.records.manifest import manifest_from_json
from hybridbench.rundir.layout import remove_unused
from hybridbench.rundir.writer import RunWriter
from tests.unit.cli.test_resumed import MANIFEST


def test_a_run_without_a_sample_goes(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock()) as writer:
        writer.event(Phase(name="boot", t_s=0.0))
    (tmp_path / "run" / "worker.stderr.log").write_text("no such model")

    assert remove_unused(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_one_sample_keeps_the_run_and_the_comparison_around_it(tmp_path: Path) -> None:
    comparison = tmp_path / "comparison"
    for name in ("a", "b"):
        with RunWriter(comparison / name, manifest_from_json(MANIFEST), FakeClock()) as writer:
            writer.event(Phase(name="boot", t_s=0.0))
            if name == "b":
                writer.sample(1.0, "warmup", {"rss_bytes": 1.0})
    before = sorted(comparison.rglob("*"))

    assert not remove_unused(comparison)
    assert sorted(comparison.rglob("*")) == before


def test_a_file_of_somebody_else_stays_with_its_directory(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock()):
        pass
    (tmp_path / "run" / "thesis.tex").write_text("years of work")

    assert not remove_unused(tmp_path / "run")
    assert (tmp_path / "run" / "thesis.tex").read_text() == "years of work"
