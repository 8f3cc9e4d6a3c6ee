"""A look at a run from a process of its own."""

from __future__ import annotations

from pathlib import Path

from hybridbench.clock import FakeClock
from hybridbench.records.verdict import Verdict
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.look import Looker
from tests.scenarios.test_soak_run import wait_until
from tests.unit.rundir.test_cut import MANIFEST, cut_run


def look(run_dir: Path) -> list[Verdict]:
    """What one look brings: a verdict or nothing."""
    looker = Looker(run_dir)
    found: list[Verdict] = []

    def ended() -> bool:
        verdict = looker.collect()
        found.extend([] if verdict is None else [verdict])
        return not looker.busy

    looker.start()
    assert looker.busy
    wait_until(ended)
    looker.close()
    return found


def test_a_look_judges_what_is_stored_so_far(tmp_path: Path) -> None:
    cut_run(tmp_path / "run")

    (verdict,) = look(tmp_path / "run")
    assert verdict.headline
    assert verdict.window_s is not None


def test_a_look_that_fails_finds_nothing_and_harms_nothing(tmp_path: Path) -> None:
    assert look(tmp_path / "absent") == []


def test_a_look_under_way_is_ended_by_closing(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run", MANIFEST, FakeClock()).close()
    looker = Looker(tmp_path / "run")
    looker.start()
    looker.close()

    assert not looker.busy
    assert looker.collect() is None
