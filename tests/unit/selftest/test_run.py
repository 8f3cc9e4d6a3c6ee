"""The soaks of the self-test: what is started, and what happens if an engine cannot start."""

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


def test_what_only_a_comparison_finds_is_compared_with_the_engine_without_it(
    tmp_path: Path,
) -> None:
    defect = find_defect("whole-chain-lru-refresh")
    asked = row(
        expect=Expect.CAUGHT,
        defect=defect,
        signature=defect.signature,
        gc="freeze-after-warmup",
        ballast=0,
        check_owners=False,
    )

    words = command(asked, tmp_path)

    assert words[3:6] == ["compare", ".", "defect:whole-chain-lru-refresh"]
    assert words[words.index("--gc") + 1] == "freeze-after-warmup"
    assert "engine.check_owners=false" in words


def test_a_soak_that_cannot_start_is_a_wrong_row_with_its_sentence(tmp_path: Path) -> None:
    told: list[Outcome] = []

    (outcome,) = SelfTest(tmp_path, jobs=1).run([row(profile="no-such-profile")], told.append)

    assert told == [outcome]
    assert len(outcome.wrong) == 1
    assert "exit code 2" in outcome.wrong[0]
    assert "no-such-profile" in outcome.wrong[0]


def stored(store: Path, asked: Row, folder: str, *, finished: bool) -> Path:
    """Create a run directory like that of a row; its verdict, if any, is unreadable."""
    run = store / asked.slug / folder
    run.mkdir(parents=True)
    if finished:
        (run / "verdict.json").write_text("{}", encoding="utf-8")
    return run


def test_a_row_with_a_finished_run_in_the_store_is_judged_and_not_run(tmp_path: Path) -> None:
    asked = row(profile="no-such-profile")
    stored(tmp_path, asked, "20260101-000000", finished=True)
    newest = stored(tmp_path, asked, "20260102-000000", finished=True)

    (outcome,) = SelfTest(tmp_path, jobs=1).run([asked], lambda _: None)

    # A soak of this profile would report an exit code; the stored run is merely unreadable.
    assert "exit code" not in outcome.wrong[0]
    assert newest.name in outcome.wrong[0]


def test_a_row_cut_off_in_the_middle_is_run_again(tmp_path: Path) -> None:
    asked = row(profile="no-such-profile")
    cut_off = stored(tmp_path, asked, "20260101-000000", finished=False)

    (outcome,) = SelfTest(tmp_path, jobs=1).run([asked], lambda _: None)

    assert "exit code 2" in outcome.wrong[0]
    assert cut_off.exists()


def test_a_row_waits_for_its_control_with_one_job_too_wherever_that_stands(tmp_path: Path) -> None:
    defect, control = find_defect("state-row-view"), find_defect("state-row-copy")
    rows = [
        row(expect=Expect.CAUGHT, defect=defect, signature=defect.signature, duration_s=300.0),
        row(expect=Expect.SILENT, defect=control),
    ]
    for asked in rows:
        stored(tmp_path, asked, "20260101-000000", finished=True)
    told: list[Outcome] = []

    outcomes = SelfTest(tmp_path, jobs=1).run(rows, told.append)

    assert [outcome.row for outcome in outcomes] == rows
    assert [outcome.row for outcome in told] == rows[::-1]
