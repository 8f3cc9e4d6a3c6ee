"""Comparing a live version with a stored run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hybridbench.analysis.comparison.records import ComparisonTerms
from hybridbench.compare import stored
from hybridbench.compare.sides import Side
from hybridbench.compare.stored import StoredPlan, compare_stored
from hybridbench.foundation.errors import UsageError
from hybridbench.records.manifest import OBSERVED
from hybridbench.rundir.layout import MANIFEST
from hybridbench.runs.plan import SoakOutcome, SoakPlan

SOAK = Path(__file__).parents[2] / "fixtures" / "stored" / "soak"


class SoakedError(Exception):
    """A soak was started."""


def soaked(plan: SoakPlan) -> SoakOutcome:
    raise SoakedError(plan.model)


@pytest.mark.parametrize("live_first", [True, False])
def test_a_stored_run_of_another_machine_is_refused_before_the_live_version_is_soaked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live_first: bool
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(SOAK, run_dir)
    manifest = json.loads((run_dir / MANIFEST).read_text("utf-8"))
    manifest["machine"]["cpu"] = "of another machine"
    (run_dir / MANIFEST).write_text(json.dumps(manifest), "utf-8")
    monkeypatch.setattr(stored, "run_soak", soaked)
    sides = (Side(str(run_dir), "run", run_dir=run_dir), Side(".", "tree"))
    store = tmp_path / "store"

    def compared(allowed: frozenset[str]) -> None:
        order = sides[::-1] if live_first else sides
        compare_stored(StoredPlan(order, store, ComparisonTerms(), allowed, 600.0))

    with pytest.raises(UsageError, match=r"machine\.cpu \("):
        compared(frozenset({"profile"}))
    assert not store.exists()
    with pytest.raises(SoakedError):
        compared(frozenset({"profile", "machine"}))


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(SOAK)
    sides = (Side(str(SOAK), "run", run_dir=SOAK), Side(str(link), "link", run_dir=link))

    with pytest.raises(UsageError, match="link is on both sides: compare it with another run"):
        compare_stored(StoredPlan(sides, tmp_path / "store", ComparisonTerms(), frozenset(), 600.0))

    assert not (tmp_path / "store").exists()


def _watched(directory: Path) -> Side:
    shutil.copytree(SOAK, directory)
    manifest = json.loads((directory / MANIFEST).read_text("utf-8"))
    manifest["target"] = {"kind": OBSERVED}
    manifest["profile"] = {"name": "watch"}
    (directory / MANIFEST).write_text(json.dumps(manifest), "utf-8")
    return Side(directory.name, "run", run_dir=directory)


def test_runs_of_watched_programs_are_compared_although_none_could_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "run_soak", soaked)
    one, two = _watched(tmp_path / "one"), _watched(tmp_path / "two")
    store, terms = tmp_path / "store", ComparisonTerms()

    outcome = compare_stored(StoredPlan((one, two), store, terms, frozenset(), 600.0))

    assert outcome.exit_hint is None
    beside = StoredPlan((one, Side(".", "tree")), store, terms, frozenset(), 600.0)
    with pytest.raises(UsageError, match="one is a run of another program"):
        compare_stored(beside)
