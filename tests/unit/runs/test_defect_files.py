"""A manifest may name a Python file; only the command line may have it run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.foundation.errors import ConfigError, UsageError
from hybridbench.runs.defect_files import defects_to_resume, hashes_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("DEFECT = 1\n")
    return path


def test_a_file_that_only_the_manifest_names_is_refused(file: Path) -> None:
    recorded = ("lru-reference-cycle", str(file))

    with pytest.raises(UsageError, match=rf"no code is run .* add --defect {file} to run it again"):
        defects_to_resume(hashes_of(recorded), recorded, ())


def test_the_file_named_again_is_the_one_that_is_run(file: Path) -> None:
    recorded = ("lru-reference-cycle", str(file))
    moved = file.rename(file.with_name("moved.py"))
    moved.with_name("mine.py").write_text("import os  # put there since\n")
    hashes = {str(file): hashes_of([str(moved)])[str(moved)]}

    assert defects_to_resume(hashes, recorded, (str(moved),)) == (
        "lru-reference-cycle",
        str(moved),
    )
    with pytest.raises(UsageError, match="made with another file"):
        defects_to_resume(hashes, recorded, (str(file),))


def test_a_manifest_without_hashes_goes_by_the_path(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(file.read_text())

    assert defects_to_resume({}, (str(file),), (str(file),)) == (str(file),)
    with pytest.raises(UsageError, match="made with another file"):
        defects_to_resume({}, (str(file),), (str(other),))


def test_a_file_that_the_run_did_not_have_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match="made without it"):
        defects_to_resume({}, ("lru-reference-cycle",), (str(file),))
    with pytest.raises(ConfigError, match="no such file"):
        defects_to_resume({}, (), (str(file.with_name("absent.py")),))


def test_slugs_need_not_be_named_again() -> None:
    assert defects_to_resume({}, ("lru-reference-cycle",), ()) == ("lru-reference-cycle",)
