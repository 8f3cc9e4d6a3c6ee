"""A prepared release without a server: our worker is started in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

import hybridbench
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.records.prepared import PreparedTarget
from hybridbench.targets.bundled import WorkerLaunch
from hybridbench.targets.driven import driven_program, driven_release
from hybridbench.targets.prepared import save

NAME = "sglang-cache==0.5.13"


def prepare(root: Path) -> Path:
    home = root / "sglang-cache-0.5.13"
    home.mkdir()
    save(home, PreparedTarget(engine="sglang-cache", release="0.5.13"))
    return home


def test_the_worker_runs_in_its_environment_with_this_package_alone(tmp_path: Path) -> None:
    home = prepare(tmp_path)

    program = driven_program(NAME, tmp_path)

    assert program.python == str(home / "env" / "bin" / "python")
    assert program.released == "sglang-cache"
    # So the report says which release it is.
    assert program.prepared is not None
    assert program.prepared.name == NAME
    (folder,) = (home / "import").iterdir()
    assert program.search_path == str(folder)
    (link,) = folder.iterdir()
    assert link.resolve() == Path(hybridbench.__file__).resolve().parent
    environment = WorkerLaunch(tmp_path / "log", program=program).environment()
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert environment["PYTHONPATH"] == program.search_path


def test_a_worker_of_another_installation_keeps_its_own_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path)
    monkeypatch.setattr(hybridbench, "__file__", str(tmp_path / "hybridbench" / "__init__.py"))
    other = driven_program(NAME, tmp_path).search_path
    monkeypatch.undo()

    ours = driven_program(NAME, tmp_path).search_path

    assert other is not None
    assert (Path(other) / "hybridbench").readlink() == tmp_path / "hybridbench"
    assert ours != other


def test_one_that_is_not_prepared_is_refused_with_the_command_that_does_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"target prepare {NAME}") as refused:
        driven_program(NAME, tmp_path)

    assert refused.value.code == ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sglang-cache==0.5.99", "drives the classes of 0.5.9, .*; 0.5.99 is not among them"),
        ("sglang-cache", "the release is missing"),
        ("llamacpp==1.0", "no engine is called 'llamacpp'"),
    ],
)
def test_what_cannot_be_driven_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        driven_release(text)
