"""With any data in a file, every command ends in time with an exit code and one sentence.

``python -m tests.fuzz KIND FROM TO`` runs more seeds of one kind by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.corpus import KINDS
from tests.fuzz.harness import run_case

_QUICK = 7
_DEEP = 500
_BATCH = 100


@pytest.fixture(scope="session")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The valid input of each kind; each case damages a copy."""
    folders = {}
    for name, kind in KINDS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        kind.make(folders[name])
    return folders


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_input_is_an_exit_code_and_one_sentence(
    kind: str, valid: dict[str, Path], tmp_path: Path
) -> None:
    _try(kind, range(_QUICK), valid[kind], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(_QUICK, _QUICK + _DEEP, _BATCH))
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_damaged_inputs_are_no_different(
    kind: str, first: int, valid: dict[str, Path], tmp_path: Path
) -> None:
    _try(kind, range(first, first + _BATCH), valid[kind], tmp_path)


def _try(kind: str, seeds: range, valid: Path, room: Path) -> None:
    cases = [run_case(kind, seed, valid, room / str(seed)) for seed in seeds]

    # Failures on numbers that no estimate can handle are left to the analysis.
    wrong = [case for case in cases if case.problem and not case.in_analysis]
    assert not wrong, "\n\n".join(
        f"{case.kind} {case.seed}: {case.did}\n{case.problem}" for case in wrong
    )
