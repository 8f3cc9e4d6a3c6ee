"""``compare`` and ``bisect`` over commits, in a clone of this repository with ten more commits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.compare.repositories import run

ROOT = Path(__file__).parents[2]
CHANGED = Path("hybridbench/engine/scheduler/prefill.py")
COMMITS = 10
PLANTED = 7
# sglang#21404: the slot that a refused request took is not freed.
HEALTHY_CALL, PLANTED_CALL = "self._return_unadmitted(", "id("
QUICK = (
    "--profile", "admission-squeeze", "--block", "2s", "--rounds", "2", "--ballast", "1000",
    "--set", "warmup.requests=20", "--set", "checkpoint.settle=100ms", "--ui", "plain",
)  # fmt: skip
CLEAN, REGRESSION, INCONCLUSIVE = 0, 12, 13

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with the commit checked out here, and ten more that each change the engine."""
    place = tmp_path_factory.mktemp("revisions") / "clone"
    run(ROOT, "clone", "-q", str(ROOT), str(place))
    source = (place / CHANGED).read_text()
    assert HEALTHY_CALL in source
    for number in range(1, COMMITS + 1):
        if number == PLANTED:
            source = source.replace(HEALTHY_CALL, PLANTED_CALL)
        source += f"# Change {number}.\n"
        (place / CHANGED).write_text(source)
        run(place, "commit", "-q", "-a", "-m", f"change {number}")
    return place


def hybridbench(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hybridbench", *arguments, "--store", "compared", *QUICK],
        cwd=clone,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def test_two_commits_whose_engines_differ_and_leak_alike_are_no_regression(clone: Path) -> None:
    done = hybridbench(clone, "compare", f"git:HEAD~{COMMITS}", f"git:HEAD~{COMMITS - 1}")

    assert done.returncode in {CLEAN, INCONCLUSIVE}, done.stdout + done.stderr
    assert "same engine" not in done.stdout + done.stderr
    assert "LEAK" not in done.stdout


def test_a_leak_between_two_commits_is_introduced(clone: Path) -> None:
    done = hybridbench(clone, "compare", f"git:HEAD~{COMMITS}", "git:HEAD")

    assert done.returncode == REGRESSION, done.stdout + done.stderr
    assert "LEAK INTRODUCED" in done.stdout
    assert "mamba" in done.stdout


def test_bisect_names_the_commit_that_planted_it(clone: Path) -> None:
    done = hybridbench(clone, "bisect", "--good", f"HEAD~{COMMITS}", "--bad", "HEAD")

    assert done.returncode == CLEAN, done.stdout + done.stderr
    assert f"change {PLANTED}\n" in done.stdout
    assert done.stdout.startswith("first bad commit: ")
