"""Which directory a nightly run uses: one that was cut off, or a new one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.over_time.cell_run import CellRun
from hybridbench.over_time.child import Child
from hybridbench.over_time.planned import PlannedRun
from hybridbench.over_time.run import CellRunner, run_directory
from hybridbench.rundir.layout import NIGHTLY
from tests.unit.over_time.planned_runs import PLAN, attempt, finished, planned_run, store


@pytest.fixture
def planned(tmp_path: Path) -> PlannedRun:
    return planned_run(tmp_path)


def cut_off(store_dir: Path, name: str, of: PlannedRun, engine: str | None = None) -> Path:
    """Make a nightly run in which one cell has ended."""
    cell = finished(of, "one", attempt())
    store(msgspec.structs.replace(cell, engine=engine or of.engine), store_dir / name / "cells")
    return store_dir / name


def test_the_newest_night_that_was_cut_off_goes_on(tmp_path: Path, planned: PlannedRun) -> None:
    nights = tmp_path / "nights"
    cut_off(nights, "20261118-020000-test", planned)
    newest = cut_off(nights, "20261119-020000-test", planned)

    assert run_directory(nights, planned) == newest


def test_a_nightly_run_that_was_merged_or_is_of_another_plan_does_not_go_on(
    tmp_path: Path, planned: PlannedRun
) -> None:
    nights = tmp_path / "nights"
    (cut_off(nights, "20261118-020000-test", planned) / NIGHTLY).write_text("{}", encoding="utf-8")
    longer = planned_run(tmp_path, PLAN.replace("30m", "45m"))
    cut_off(nights, "20261119-020000-test", longer)

    assert not run_directory(nights, planned).exists()


def test_a_nightly_run_of_another_engine_does_not_go_on(
    tmp_path: Path, planned: PlannedRun
) -> None:
    """Its finished cells would be skipped, and the current engine would never be tested."""
    nights = tmp_path / "nights"
    cut_off(nights, "20261119-020000-test", planned, engine="yesterday's engine")

    assert not run_directory(nights, planned).exists()


def test_a_nightly_run_that_does_not_say_its_engine_goes_on(
    tmp_path: Path, planned: PlannedRun
) -> None:
    nights = tmp_path / "nights"
    cell = finished(planned, "one", attempt())
    store(cell, nights / "20261119-020000-test" / "cells")

    assert run_directory(nights, planned) == nights / "20261119-020000-test"


def test_the_cells_of_another_plan_are_refused_before_anything_runs(
    tmp_path: Path, planned: PlannedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = cut_off(tmp_path, "night", planned) / "cells"
    other = planned_run(tmp_path, PLAN.replace("id: one", "id: three"))

    def run(*_: object) -> None:
        pytest.fail("a cell was run")

    monkeypatch.setattr(CellRun, "run", run)

    with pytest.raises(RunDirectoryError, match=r"one/cell.json is of plan test .*another --out"):
        CellRunner(other, Child(), lambda _: None).run_all(cells)


@pytest.mark.parametrize(
    ("place", "said"), [("file/cells", "Not a directory"), ("file", "it is a file")]
)
def test_a_nightly_run_below_a_file_is_one_sentence(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(RunDirectoryError, match=rf"cannot make the directory .*: {said}"):
        CellRunner(planned_run(tmp_path), Child(), lambda _: None).run_all(tmp_path / place)
