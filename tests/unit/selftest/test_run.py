"""The soaks of the self-test: what is started, and what an engine that will not start comes to."""

from __future__ import annotations

from pathlib import Path

from hybridbench.defects.catalog import find_defect
from hybridbench.defects.defect import Signature
from hybridbench.selftest.compare import Outcome
from hybridbench.selftest.matrix import Expect, Row
from hybridbench.selftest.run import SelfTest, command


def row(**changes: object) -> Row:
    given: dict[str, object] = {
        "expect": Expect.TWIN,
        "profile": "smoke",
        "signature": Signature(("CLEAN",), (), "", "none", "none"),
        "duration_s": 20.0,
    }
    return Row(**{**given, **changes})  # type: ignore[arg-type]


def test_a_row_that_sets_the_heap_has_the_last_word_on_it(tmp_path: Path) -> None:
    overrides = (("ballast.objects", "5"), ("pools.kv_tokens", "999"))
    of_the_profile = command(row(overrides=overrides), tmp_path)
    of_the_row = command(row(overrides=overrides, ballast=7), tmp_path)

    assert "ballast.objects=5" in of_the_profile
    assert "ballast.objects=5" not in of_the_row
    assert of_the_row[of_the_row.index("--ballast") + 1] == "7"
    assert "pools.kv_tokens=999" in of_the_row


def test_a_defect_is_named_and_a_model_of_its_own_used(tmp_path: Path) -> None:
    defect = find_defect("mamba-adder-reject")

    words = command(row(defect=defect, model="tiny"), tmp_path)

    assert words[words.index("--defect") + 1] == "mamba-adder-reject"
    assert words[words.index("--model") + 1] == "tiny"


def test_a_soak_that_cannot_start_is_a_wrong_row_with_its_sentence(tmp_path: Path) -> None:
    told: list[Outcome] = []

    (outcome,) = SelfTest(tmp_path, jobs=1).run([row(profile="no-such-profile")], told.append)

    assert told == [outcome]
    assert len(outcome.wrong) == 1
    assert "exit code 2" in outcome.wrong[0]
    assert "no-such-profile" in outcome.wrong[0]
