"""The rows of the self-test."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.defects.catalog import CONTROLS, DEFECTS
from hybridbench.defects.defect import FoundBy, Role
from hybridbench.defects.described import rests_on_counts
from hybridbench.foundation.errors import UsageError
from hybridbench.selftest.matrix import Expect, Row, full_matrix, only, quick_matrix
from hybridbench.selftest.run import command
from hybridbench.workload.catalog import load_profile

KNOWN = (*DEFECTS, *CONTROLS)


def traffic_of(row: Row) -> tuple[object, ...]:
    return row.profile, row.model, row.overrides, row.check_owners


def test_quick_has_every_short_defect_once_and_a_twin_for_each_of_their_profiles() -> None:
    rows = quick_matrix(KNOWN)

    caught = [r for r in rows if r.defect in DEFECTS and r.duration_s <= 60.0]
    assert {row.defect for row in caught} == {d for d in DEFECTS if d.signature.quick_s}
    left_out = {d for d in DEFECTS if rests_on_counts(d.signature) and not d.signature.quick_s}
    assert {d.slug for d in left_out} == {
        "host-double-release",
        "hicache-unpolled-acks",
        "himamba-protected-delete",
        # Quick covers their kind with other defects, and must end within half an hour.
        "free-group-replay",
        "himamba-unmigrated-caller",
        "session-logit-reserve",
        # It takes minutes until a sample of answers contains wrong ones.
        "running-state-freed",
        "states-not-cleared",
        "tracked-length-lags",
        "verify-without-commit",
        "host-state-misplaced",
        "flattened-snapshot",
        "stale-resumed-state",
        "attention-hit-longer",
        # Finding its driver and rate takes minutes.
        "lru-reference-cycle",
        "lru-cycle-mamba-lists",
        "lru-cycle-swa-list",
        "lru-cycle-unified-lists",
    }
    assert len(caught) == len({row.defect for row in caught})
    twins = [row for row in rows if row.expect is Expect.TWIN]
    assert sorted(twin.profile for twin in twins) == sorted({row.profile for row in caught})
    for twin in twins:
        assert twin.defect is None
        assert traffic_of(twin) in map(traffic_of, caught)


def test_quick_has_a_trend_of_memory_and_the_control_that_does_the_same_work() -> None:
    rows = [row for row in quick_matrix(KNOWN) if row.duration_s > 60.0]

    trend, control = rows
    assert trend.defect is not None
    assert control.defect is not None
    assert trend.signature.alone
    assert (trend.expect, control.expect) == (Expect.CAUGHT, Expect.SILENT)
    assert control.defect.slug == trend.defect.healthy_twin
    # Shorter runs could decide neither.
    assert {trend.duration_s, control.duration_s} == {300.0}
    assert control.signature.verdicts == ("CLEAN",)


def test_quick_rows_are_half_a_minute_unless_their_defect_needs_more() -> None:
    short = [d for d in DEFECTS if d.signature.quick_s]
    rows = {row.defect.slug: row for row in quick_matrix(short) if row.defect is not None}

    assert {row.duration_s for row in rows.values()} == {30.0, 40.0, 45.0}
    for slug in ("rid-state-orphan", "request-partial-cycle", "undrained-recorder"):
        # In the full matrix, finding these takes more than half a minute.
        assert rows[slug].duration_s == 45.0
    full = {r.defect.slug: r.duration_s for r in full_matrix(KNOWN) if r.defect is not None}
    assert all(row.duration_s <= full[slug] for slug, row in rows.items())


def test_full_has_a_twin_of_the_very_traffic_of_every_defective_row() -> None:
    rows = full_matrix(KNOWN)

    twins = [row for row in rows if row.expect is Expect.TWIN]
    for row in rows:
        # A comparison already includes the engine without the defect.
        if row.expect is Expect.CAUGHT and row.signature.found_by is FoundBy.SOAK:
            same = [
                t
                for t in twins
                if (*traffic_of(t), t.gc, t.ballast) == (*traffic_of(row), row.gc, row.ballast)
            ]
            assert len(same) == 1, row.name


def test_full_has_every_defect_and_runs_heap_defects_with_every_collector_and_heap() -> None:
    rows = full_matrix(KNOWN)

    assert set(KNOWN) <= {row.defect for row in rows}
    cycles = [(r.gc, r.ballast) for r in only(rows, ["lru-reference-cycle"])]
    assert sorted(cycles, key=str) == sorted(
        [(gc, b) for gc in ("default", "freeze-after-warmup") for b in (None, 0)], key=str
    )
    assert len({row.name for row in rows}) == len(rows)


def test_full_tries_what_is_part_of_a_defect_in_its_own_cache_and_not_in_every_setting() -> None:
    rows = full_matrix(KNOWN)

    parts = [row for row in rows if row.defect is not None and row.defect.part_of]
    assert {row.profile for row in parts} == {"chat-churn", "swa-churn", "unified-mix"}
    for row in parts:
        assert row.defect is not None
        assert row.defect.part_of == "lru-reference-cycle"
        assert [other.defect for other in parts].count(row.defect) == 2
    unified = only(rows, ["lru-cycle-unified-lists"])[0]
    assert load_profile(unified.profile).engine.cache == "unified"
    twins = [row.name for row in rows if row.profile == "unified-mix" and row.defect is None]
    assert "unified-mix twin" in twins


def test_full_tries_every_defect_with_allocators_that_check_owners_and_with_others() -> None:
    rows = [row for row in full_matrix(KNOWN) if row.expect is Expect.CAUGHT]

    for defect in DEFECTS:
        checked = {row.check_owners for row in rows if row.defect is defect}
        assert checked == {True, False}, defect.slug
    assert all(row.check_owners for row in quick_matrix(KNOWN))


def test_full_has_a_defect_with_a_rate_at_each_of_its_rates() -> None:
    rows = only(full_matrix(KNOWN), ["state-row-view"])

    assert [row.name for row in rows] == [
        "state-row-view",
        "state-row-view, frozen, small heap, unchecked",
        "state-row-view@200MiB/h",
        "state-row-view@1GiB/h",
    ]
    slowest = rows[2]
    words = command(slowest, Path("store"))
    assert words[words.index("--defect") + 1] == "state-row-view@200MiB/h"
    assert "/" not in slowest.slug


def test_a_twin_must_be_clean_but_for_the_short_ones_of_quick() -> None:
    full = [row for row in full_matrix(KNOWN) if row.expect is Expect.TWIN]
    quick = [row for row in quick_matrix(KNOWN) if row.expect is Expect.TWIN]

    assert {row.signature.verdicts for row in full} == {("CLEAN",)}
    assert {row.signature.verdicts for row in quick} == {("CLEAN", "INCONCLUSIVE")}
    assert all(row.duration_s <= 45.0 for row in quick)


def test_every_row_is_a_soak_or_a_comparison_that_anybody_can_type(tmp_path: Path) -> None:
    for row in full_matrix(KNOWN):
        words = command(row, tmp_path)
        settings = dict(row.overrides)
        profile = load_profile(row.profile).with_overrides(settings)

        assert profile.name == row.profile
        assert words[words.index("--profile") + 1] == row.profile
        assert words.count("--set") <= len(settings) + (not row.check_owners)
        assert ("engine.check_owners=false" in words) == (
            not row.check_owners or settings.get("engine.check_owners") == "false"
        )
        assert words[3] == row.signature.found_by


def test_only_full_extends_and_says_for_how_long(tmp_path: Path) -> None:
    quick, full = quick_matrix(KNOWN), full_matrix(KNOWN)

    assert {row.most_extend_s for row in quick} == {0.0}
    assert sum(row.duration_s + row.most_extend_s for row in quick) < 30 * 60
    undecided = [row for row in full if row.signature.subject != "answers"]
    assert all(row.most_extend_s >= 600.0 for row in undecided)
    words = command(full[0], tmp_path)
    assert words[words.index("--extend") + 1] == "600s"


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


def test_nothing_is_extended_for_answers_but_their_twins_may_be() -> None:
    rows = full_matrix([d for d in KNOWN if d.signature.subject == "answers"])

    assert len({row.defect for row in rows if row.defect is not None}) == 8
    assert {row.most_extend_s for row in rows if row.expect is Expect.CAUGHT} == {0.0}
    assert {row.most_extend_s for row in rows if row.expect is Expect.TWIN} == {600.0}
