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
    assert program.search_path == str(home / "import")
    (link,) = (home / "import").iterdir()
    assert link.resolve() == Path(hybridbench.__file__).resolve().parent
    environment = WorkerLaunch(tmp_path / "log", program=program).environment()
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert environment["PYTHONPATH"] == program.search_path


def test_a_link_to_another_package_is_replaced(tmp_path: Path) -> None:
    home = prepare(tmp_path)
    (home / "import").mkdir()
    (home / "import" / "hybridbench").symlink_to(tmp_path)

    driven_program(NAME, tmp_path)

    package = Path(hybridbench.__file__).resolve().parent
    assert (home / "import" / "hybridbench").resolve() == package


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
