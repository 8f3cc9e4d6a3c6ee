"""What may name a version, and how everything else is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hybridbench.compare import interpreters
from hybridbench.compare.interpreters import find_interpreter
from hybridbench.compare.plan import order_of
from hybridbench.compare.sides import defect_words, is_stored, resolved_sides
from hybridbench.defects.releases import PREFIX
from hybridbench.foundation.errors import ConfigError, UsageError
from hybridbench.runs.defect_catalog import AS_OF

pytestmark = pytest.mark.usefixtures("catalog_in_this_process")


def test_the_working_tree_and_a_defect_are_sides_of_this_process() -> None:
    with resolved_sides([".", "defect:lru-reference-cycle"]) as (tree, defect):
        assert (tree.kind, tree.program.search_path, tree.defects) == ("tree", None, ())
        assert (defect.kind, defect.program.search_path) == ("defect", None)
        assert defect.defects == ("lru-reference-cycle",)


def test_the_defects_of_a_release_are_all_of_its_defects() -> None:
    with resolved_sides([".", "defects-as-of:sglang-0.5.10"]) as (_, release):
        assert len(release.defects) > 1
        assert release.releases == ("sglang-0.5.10",)
    assert AS_OF == PREFIX


def test_a_directory_with_a_manifest_is_a_stored_run(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")

    with resolved_sides([str(tmp_path)]) as (stored,):
        assert stored.run_dir is not None
        assert stored.kind == "run"
    assert is_stored(str(tmp_path))
    assert not is_stored(".")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("master", r"master: no version of that name; write \. for the working tree, git:REF"),
        ("defect:no-such-thing", "no such defect"),
        ("defects-as-of:sglang-9", "no defect of the catalog"),
        ("python:/no/such/python", "python:/no/such/python: no interpreter; name one"),
    ],
)
def test_a_name_that_means_nothing_is_met_with_what_is_allowed(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said), resolved_sides([".", name]):
        raise AssertionError("it was taken for a version")


def test_a_directory_without_a_manifest_is_called_that(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"a directory without manifest.json, so not a run"),
        resolved_sides([str(tmp_path)]),
    ):
        raise AssertionError("it was taken for a run")


def test_defects_are_handed_to_the_choice_of_a_profile_as_soak_takes_them() -> None:
    names = [".", "defect:session-close-mamba", "git:HEAD", "defects-as-of:sglang-0.5.10"]

    assert defect_words(names) == ["session-close-mamba", "defects-as-of:sglang-0.5.10"]


@pytest.mark.slow
def test_this_interpreter_is_found_with_its_version() -> None:
    found = find_interpreter(sys.executable)

    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert found.engine_from in {"installed there", "this checkout"}


def test_an_interpreter_without_the_engines_needs_is_refused_with_what_it_lacks(
    tmp_path: Path,
) -> None:
    bare = tmp_path / "bare-python"
    # Isolated from every installed package, as a fresh environment is.
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)

    with pytest.raises(ConfigError, match=r"it has no \w+, without which the engine does not run"):
        find_interpreter(str(bare))


def test_what_is_no_interpreter_is_refused_with_its_last_words(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'out of order' >&2\nexit 3\n")
    broken.chmod(0o755)

    with pytest.raises(ConfigError, match="it does not run Python code: out of order"):
        find_interpreter(str(broken))


def test_an_interpreter_that_does_not_answer_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr(interpreters, "_PATIENCE_S", 0.2)

    with pytest.raises(ConfigError, match="it did not report its versions within 0 s; check"):
        find_interpreter(str(silent))


def test_turns_swap_from_round_to_round() -> None:
    assert [order_of(r, 2) for r in range(4)] == [(0, 1), (1, 0), (0, 1), (1, 0)]
    assert order_of(1, 3) == (2, 1, 0)
