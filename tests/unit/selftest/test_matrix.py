"""Which rows the self-test has."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.defects.catalog import CONTROLS, DEFECTS
from hybridbench.defects.defect import Role
from hybridbench.errors import UsageError
from hybridbench.selftest.matrix import Expect, Row, full_matrix, only, quick_matrix
from hybridbench.selftest.run import command
from hybridbench.workload.catalog import load_profile

KNOWN = (*DEFECTS, *CONTROLS)


def traffic_of(row: Row) -> tuple[object, ...]:
    return row.profile, row.model, row.overrides


def test_quick_has_every_exact_defect_once_and_a_twin_of_its_very_traffic() -> None:
    rows = quick_matrix(KNOWN)

    caught = [row for row in rows if row.expect is Expect.CAUGHT]
    assert {row.defect for row in caught} == {d for d in DEFECTS if d.signature.exact}
    assert len(caught) == len({row.defect for row in caught})
    twins = [row for row in rows if row.expect is Expect.TWIN]
    for row in caught:
        same = [twin for twin in twins if traffic_of(twin) == traffic_of(row)]
        assert len(same) == 1, row.name
        assert same[0].defect is None
    assert not any(row.expect is Expect.SILENT for row in rows)


def test_full_has_all_and_what_the_heap_decides_under_every_collector_and_heap() -> None:
    rows = full_matrix(KNOWN)

    assert {row.defect for row in rows if row.defect is not None} == set(KNOWN)
    cycles = [(r.gc, r.ballast) for r in only(rows, ["lru-reference-cycle"])]
    assert sorted(cycles, key=str) == sorted(
        [(gc, b) for gc in ("default", "freeze-after-warmup") for b in (None, 0)], key=str
    )
    assert len({row.name for row in rows}) == len(rows)


def test_every_row_is_a_soak_that_anybody_can_type(tmp_path: Path) -> None:
    for row in full_matrix(KNOWN):
        words = command(row, tmp_path)
        settings = dict(row.overrides)
        profile = load_profile(row.profile).with_overrides(settings)

        assert profile.name == row.profile
        assert words[words.index("--profile") + 1] == row.profile
        assert words.count("--set") <= len(settings)


def test_a_control_is_expected_to_be_left_alone() -> None:
    for control in CONTROLS:
        assert control.role is Role.CONTROL
        assert not control.signature.kinds
        assert "LEAK" not in control.signature.verdicts


def test_only_keeps_the_rows_of_a_name_and_knows_what_there_is() -> None:
    rows = quick_matrix(KNOWN)

    kept = only(rows, ["mamba-adder-reject"])

    assert [row.name for row in kept] == ["mamba-adder-reject"]
    with pytest.raises(UsageError, match="--only nothing: no row of this matrix; there are"):
        only(rows, ["nothing"])
