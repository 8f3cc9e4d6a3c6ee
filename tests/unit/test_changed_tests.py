"""The tests that `make test-changed` chooses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.changed_tests import changed_files, reached_tests

ROOT = Path(__file__).parents[2]
TEST_FILES = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")}


@pytest.mark.parametrize(
    ("changed", "reached", "not_reached"),
    [
        pytest.param(
            "hybridbench/engine/cache/mamba_radix_cache.py",
            # By imports, through a helper, through a fixture, and in a process started with `-m`.
            {
                "tests/unit/engine/cache/test_reference_cycle.py",
                "tests/laws/test_engine_windows.py",
                "tests/unit/cli/test_chosen_defects.py",
                "tests/scenarios/test_soak_run.py",
            },
            {"tests/unit/analysis/trend/test_gls.py"},
            id="a module",
        ),
        pytest.param(
            "tests/builders.py",
            {"tests/laws/test_engine_windows.py"},
            {"tests/unit/series/test_shapes.py", "tests/scenarios/test_soak_run.py"},
            id="a helper of tests",
        ),
        pytest.param(
            "docs/how-to/nightly.md",
            {"tests/scenarios/test_documented_commands.py", "tests/tidy/test_language.py"},
            {"tests/unit/engine/cache/test_reference_cycle.py"},
            id="a page",
        ),
        pytest.param("pyproject.toml", TEST_FILES, set(), id="what configures all"),
    ],
)
def test_a_change_reaches_what_imports_starts_or_names_it(
    changed: str, reached: set[str], not_reached: set[str]
) -> None:
    chosen = set(reached_tests(ROOT, [changed]))

    assert chosen >= reached
    assert not chosen & not_reached


def test_a_change_is_what_differs_from_where_the_branch_began(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch=main")
    git("config", "user.name", "A")
    git("config", "user.email", "a@example.org")
    for name in ("kept.py", "edited.py", "removed.py", ".gitignore"):
        (tmp_path / name).write_text("ignored.py\n")
    git("add", "--all")
    git("commit", "--quiet", "--message=first")
    git("switch", "--quiet", "--create=branch")
    (tmp_path / "committed.py").touch()
    git("add", "--all")
    git("commit", "--quiet", "--message=second")
    (tmp_path / "edited.py").write_text("edited\n")
    (tmp_path / "removed.py").unlink()
    (tmp_path / "new.py").touch()
    (tmp_path / "ignored.py").touch()

    assert changed_files(tmp_path, "main") == ["committed.py", "edited.py", "new.py", "removed.py"]
    with pytest.raises(SystemExit, match="name a revision with BASE=REVISION"):
        changed_files(tmp_path, "nowhere")
