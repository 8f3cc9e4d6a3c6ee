"""``bisect --target``: releases in either direction, each prepared before it is tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hybridbench.cli import bisect as command
from hybridbench.compare.bisect import Answer, Tried
from hybridbench.foundation.errors import ExitCode
from hybridbench.targets.engines.engine import Engine
from tests.unit.cli.conftest import CommandLine

LEAKS = {"0.5.10", "0.5.10.post1"}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is prepared, in this order; a release leaks or not as ``LEAKS`` has it."""
    names: list[str] = []

    def prepare(engine: Engine, release: str, root: Path, *others: object) -> None:
        del root, others
        names.append(f"{engine.name}=={release}")

    def search(good: str, kind: command._Releases, options: object) -> Callable[[str], object]:
        del good, options

        def try_one(release: str) -> Tried[str]:
            kind.make_ready(release)
            return Tried(release, Answer.BAD if release in LEAKS else Answer.GOOD, "as it is")

        return try_one

    monkeypatch.setattr("hybridbench.targets.prepare.prepare", prepare)
    monkeypatch.setattr(command, "_Search", search)
    return names


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("0.5.9", "0.5.10.post1", "first bad release: 0.5.10; 0.5.9 is good"),
        ("0.5.14", "0.5.10", "last bad release: 0.5.10.post1; 0.5.11 fixed it"),
    ],
)
def test_the_release_that_made_or_mended_it_is_named(
    prepared: list[str], hybridbench: CommandLine, good: str, bad: str, said: str
) -> None:
    done = hybridbench("bisect", "--target", "sglang-cache", "--good", good, "--bad", bad)

    assert done.returncode == ExitCode.CLEAN
    assert done.stdout.splitlines()[-1] == said
    assert prepared[:2] == [f"sglang-cache=={good}", f"sglang-cache=={bad}"]


@pytest.mark.usefixtures("prepared")
def test_a_single_release_after_the_good_one_is_in_the_singular(hybridbench: CommandLine) -> None:
    done = hybridbench("bisect", "--target", "sglang-cache", "--good", "0.5.9", "--bad", "0.5.10")

    assert "1 release after 0.5.9\n" in done.stderr


def test_nothing_is_looked_for_where_the_bad_release_shows_nothing(
    prepared: list[str], hybridbench: CommandLine
) -> None:
    done = hybridbench("bisect", "--target", "sglang-cache", "--good", "0.5.12", "--bad", "0.5.14")

    assert done.returncode == ExitCode.INCONCLUSIVE
    assert "0.5.14 is not shown to be worse than the good release." in done.stdout
    assert len(prepared) == 2
