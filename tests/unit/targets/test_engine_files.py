"""The hash that identifies an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import hybridbench
from hybridbench.targets.engine_files import installed_engine_files


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hybridbench package of four files, in place of the installed one."""
    settings = "foundation/engine_config.py"
    for name in ("engine/scheduler/admit.py", "engine/kernels/conv.py", settings, "report/html.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(hybridbench, "__file__", str(tmp_path / "__init__.py"))
    return tmp_path


@pytest.mark.parametrize(
    "changed",
    ["engine/scheduler/admit.py", "engine/kernels/conv.py", "foundation/engine_config.py"],
)
def test_a_change_of_any_file_of_the_engine_is_another_engine(package: Path, changed: str) -> None:
    before = installed_engine_files()

    (package / changed).write_text("x = 2\n", encoding="utf-8")

    assert installed_engine_files() != before


def test_a_file_that_moves_is_another_engine(package: Path) -> None:
    before = installed_engine_files()

    kernels = package / "engine" / "kernels"
    (kernels / "conv.py").rename(kernels / "scan.py")

    assert installed_engine_files() != before


def test_a_change_of_the_bench_around_it_is_none(package: Path) -> None:
    before = installed_engine_files()

    (package / "report" / "html.py").write_text("x = 2\n", encoding="utf-8")

    assert installed_engine_files() == before
