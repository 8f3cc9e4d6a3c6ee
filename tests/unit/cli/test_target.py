"""``hybridbench target``: finished and unfinished targets, and their removal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.records.prepared import PreparedTarget
from hybridbench.targets.prepared import Partial, save
from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A finished target, an unfinished one, and a folder that hybridbench did not make."""
    for name in ("tiny-1.0", "tiny-2.0", "photos"):
        (tmp_path / name).mkdir()
    save(tmp_path / "tiny-1.0", PreparedTarget(engine="tiny", release="1.0", servers=("serve",)))
    save(tmp_path / "tiny-2.0", Partial(name="tiny==2.0"))
    (tmp_path / "tiny-1.0" / "weights").write_bytes(bytes(100_000))
    return tmp_path


def test_the_list_has_start_scripts_and_says_how_to_finish_what_was_begun(
    hybridbench: CommandLine, root: Path
) -> None:
    ready, begun = hybridbench("target", "list", "--targets", str(root)).stdout.splitlines()

    assert ready.split() == ["tiny==1.0", *ready.split()[1:3], str(root / "tiny-1.0/bin/serve")]
    assert begun.endswith("not finished: hybridbench target prepare tiny==2.0")


def test_an_empty_list_names_the_folder(
    hybridbench: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    printed = hybridbench("target", "list").stdout

    assert printed == f"no prepared targets in {tmp_path}/hybridbench/targets\n"


@pytest.mark.parametrize("name", ["tiny==1.0", "tiny==2.0"])
def test_a_target_is_removed_and_nothing_else(
    hybridbench: CommandLine, root: Path, name: str
) -> None:
    done = hybridbench("target", "remove", name, "--targets", str(root))

    assert done.returncode == 0
    assert done.stdout.startswith(f"removed {name}: ")
    left = {folder.name for folder in root.iterdir()}
    assert left == {"tiny-1.0", "tiny-2.0", "photos"} - {name.replace("==", "-")}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tiny==1.1", "did you mean tiny==1.0?"),
        ("photos", "there are tiny==1.0, tiny==2.0."),
        ("../elsewhere", "there are tiny==1.0, tiny==2.0."),
    ],
)
def test_what_is_not_prepared_is_not_removed(
    hybridbench: CommandLine, root: Path, name: str, hint: str
) -> None:
    done = hybridbench("target", "remove", name, "--targets", str(root))

    assert done.returncode == 2
    assert done.stderr.endswith(f"{hint}\n")
    assert (root / "photos").is_dir()


def test_a_release_whose_classes_cannot_be_driven_is_refused_before_anything_is_fetched(
    hybridbench: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridbench.targets.prepare.prepare", lambda *_: pytest.fail("prepared"))

    done = hybridbench("target", "prepare", "vllm-core==0.19.1", "--targets", str(tmp_path))

    assert done.returncode == 2
    assert done.stderr.endswith("0.33.0; 0.19.1 is not among them.\n")
