"""The wheel stands alone: profiles, schemas and report assets travel in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed, without its dependencies and without network."""
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("site")
    # From elsewhere: a build that works only in the checkout would pass otherwise.
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--disable-pip-version-check", "--target", str(target), str(ROOT)],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        check=True,
        timeout=300,
    )  # fmt: skip
    return target


def run_installed(installed: Path, cwd: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "hybridbench", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_profiles_are_found_from_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    assert "chat-churn" in run_installed(installed, tmp_path, "profiles", "list")
    shown = run_installed(installed, tmp_path, "profiles", "show", "smoke")

    assert shown == (ROOT / "profiles" / "smoke.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", ["report/assets", "rundir/schemas", "nightly/templates"])
def test_data_files_travel_in_the_wheel(installed: Path, folder: str) -> None:
    source = {p.name for p in (ROOT / "hybridbench" / folder).iterdir() if p.is_file()}
    shipped = {p.name for p in (installed / "hybridbench" / folder).iterdir() if p.is_file()}

    assert source
    assert shipped >= source


def test_the_description_renders_away_from_the_repository(installed: Path) -> None:
    (metadata,) = installed.glob("hybridbench-*.dist-info/METADATA")
    head, _, description = metadata.read_text(encoding="utf-8").partition("\n\n")

    assert "Description-Content-Type: text/markdown" in head
    assert "hybridbench soak" in description
    targets = re.findall(r"\]\(([^)]*)\)", description)
    assert all(target.startswith("https://") for target in targets)


def test_the_steps_of_the_action_are_shell_that_parses() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    scripts = [step["run"] for step in action["runs"]["steps"]]

    assert len(scripts) == 2
    for script in scripts:
        # Inputs come by the environment: what somebody typed never becomes a part of the script.
        assert "${{" not in script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_what_the_dockerfile_copies_is_not_ignored() -> None:
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    needed = {"hybridbench", "profiles", "pyproject.toml", "LICENSE", "constraints.txt"}

    assert needed <= {line.removeprefix("!") for line in kept if line.startswith("!")}
    assert all((ROOT / name).exists() for name in needed)


def test_everything_in_the_profiles_folder_travels(installed: Path) -> None:
    source = ROOT / "profiles"
    names = {p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()}
    shipped = installed / "hybridbench" / "profiles"

    assert names <= {p.relative_to(shipped).as_posix() for p in shipped.rglob("*")}
