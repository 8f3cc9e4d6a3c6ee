"""Our processes import nothing from the working directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hybridbench
from hybridbench.over_time.child import Child
from hybridbench.records.messages import Drain, Fatal
from hybridbench.targets.bundled import BundledTarget, WorkerLaunch
from hybridbench.targets.own_process import import_path, own_command

PACKAGE = Path(hybridbench.__file__).parent
SHADOWS = ("queue", "random", "json", "argparse", "socket", "typing", "msgspec", "memray", "yaml")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files named like modules; each leaves a mark when it is run."""
    for name in SHADOWS:
        mark = f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r} + ' ')\n"
        (tmp_path / f"{name}.py").write_text(mark + "raise SystemExit('executed')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_python_of_ours_leaves_the_working_directory_alone(hostile: Path) -> None:
    asked = (
        "import queue, random, json, argparse, msgspec, hybridbench; print(hybridbench.__file__)"
    )

    done = subprocess.run(
        own_command([sys.executable, "-c", asked]), capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.stdout.strip() == hybridbench.__file__
    assert not (hostile / "executed").exists()


def test_a_worker_leaves_the_working_directory_alone(hostile: Path) -> None:
    target = BundledTarget(WorkerLaunch(hostile / "log"))
    target.post(Drain())
    told: list[object] = []
    while not told:
        told = list(target.exchange(1.0))
    target.stop(patience_s=60.0)

    assert told == [Fatal("the first message must be Start, alone", "", usage=True)]
    assert not (hostile / "executed").exists()


def test_the_command_leaves_the_working_directory_alone_also_as_a_module(hostile: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hybridbench", "profiles", "list"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert not (hostile / "executed").exists()


def test_a_cell_of_a_night_leaves_the_working_directory_alone(hostile: Path) -> None:
    command = [sys.executable, "-m", "hybridbench", "profiles", "list"]

    ended = Child(sys.stderr).run(command, hostile / "console", 60.0)

    assert ended.exit_code == 0
    assert not (hostile / "executed").exists()


def test_a_checkout_that_is_the_working_directory_is_found_behind_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = str(PACKAGE.parent)
    outside = [entry for entry in sys.path if not (Path(entry) / "hybridbench").is_dir()]
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", [root, *outside])

    assert import_path().split(":")[-1] == root


def test_another_release_that_is_installed_does_not_take_the_place_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    (site / "hybridbench").mkdir(parents=True)
    (site / "hybridbench" / "__init__.py").touch()
    monkeypatch.chdir(PACKAGE.parent)
    monkeypatch.setattr(sys, "path", [str(PACKAGE.parent), "/library", str(site)])

    assert import_path().split(":") == ["/library", str(PACKAGE.parent), str(site)]


# An isolated Python (-I) searches neither the working directory nor PYTHONPATH.
_SAFE_WAYS = ("own_command(", "BackgroundProcess(", "answer_of(", "SAFE_PATH", '"-I", ')


def test_every_python_that_is_started_anywhere_is_started_safely() -> None:
    """A file with the interpreter's name starts it in a safe way, or only passes the name on."""
    names_only = {"over_time/attempts.py"}
    starting = {
        str(path.relative_to(PACKAGE)): text
        for path in sorted(PACKAGE.rglob("*.py"))
        if "sys.executable" in (text := path.read_text("utf-8"))
    }

    unsafe = {name for name, text in starting.items() if not any(way in text for way in _SAFE_WAYS)}

    assert unsafe - {"targets/own_process.py"} == names_only
