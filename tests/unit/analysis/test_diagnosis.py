"""Splitting a run's growth into its parts."""

from __future__ import annotations

import pytest

from hybridbench.analysis.diagnosis import Diagnosis, PartKind, diagnose
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import DiagnosisBaseline
from hybridbench.records.heap import StageReading, Survey
from hybridbench.records.manifest import Manifest
from tests.unit.analysis.diagnoses import MIB, dragged, holding, ladder_record, survey


def part(found: Diagnosis, kind: PartKind) -> float:
    return next(part.size_bytes for part in found.parts if part.kind is kind)


def diagnosed(record: RunRecord) -> Diagnosis:
    found = diagnose(record)
    assert found is not None
    return found


def test_a_run_without_a_ladder_has_no_diagnosis() -> None:
    assert diagnose(RunRecord(Manifest(), {}, ())) is None


def test_growth_splits_into_what_each_step_released_beyond_the_baseline_and_the_rest() -> None:
    # At the baseline: slack 10, garbage 1, cache 20 of 100.  At the end 30, 61 and 25 of 300.
    found = diagnosed(
        ladder_record(
            base=(100, 90, 89, 69), end=(300, 270, 209, 184), now=survey(garbage=60 * MIB)
        )
    )

    assert found.growth_bytes == 200 * MIB
    assert part(found, PartKind.COLLECTOR) == 60 * MIB
    assert part(found, PartKind.CACHE) == 5 * MIB
    assert part(found, PartKind.ALLOCATOR) == 20 * MIB
    assert part(found, PartKind.UNEXPLAINED) == 115 * MIB
    assert found.explained == pytest.approx(1 - 115 / 200)
    assert sum(p.size_bytes for p in found.parts) == found.growth_bytes
    assert sum(p.share for p in found.parts) == pytest.approx(1.0)


def test_what_a_survey_found_held_explains_what_no_rung_gave_back() -> None:
    row = holding("tuple", 48_211, 110 * MIB, ["Engine.recorder", "list[*]"])
    found = diagnosed(
        ladder_record(base=(100, 90, 89, 69), end=(220, 210, 209, 189), now=survey(rows=[row]))
    )

    assert part(found, PartKind.RETAINED) == 110 * MIB
    assert part(found, PartKind.UNEXPLAINED) == 10 * MIB
    assert found.explained == pytest.approx(1 - 10 / 120)


def test_nodes_dragged_along_are_taken_off_what_the_flush_gave_back() -> None:
    row = dragged(5000, 30 * MIB)
    found = diagnosed(
        ladder_record(base=(100, 90, 89, 69), end=(140, 130, 129, 74), now=survey(rows=[row]))
    )

    # The flush released 55, against 20 before; 30 of these 35 were strays held by cached nodes.
    assert part(found, PartKind.CACHE) == 5 * MIB
    assert part(found, PartKind.RETAINED) == 30 * MIB
    assert part(found, PartKind.UNEXPLAINED) == 5 * MIB


def test_a_cache_that_grew_is_no_retained_object() -> None:
    row = holding("TreeNode", 900, 30 * MIB, ["Cache.root", "TreeNode.children"])
    found = diagnosed(
        ladder_record(base=(100, 90, 89, 69), end=(130, 120, 119, 69), now=survey(rows=[row]))
    )

    assert found.holdings[0].in_cache
    assert part(found, PartKind.RETAINED) == 0
    assert part(found, PartKind.CACHE) == 30 * MIB


def test_garbage_that_was_freed_and_did_not_come_back_is_garbage_all_the_same() -> None:
    found = diagnosed(
        ladder_record(base=(100, 90, 90, 70), end=(160, 150, 110, 90), now=survey(garbage=55 * MIB))
    )

    assert part(found, PartKind.COLLECTOR) == 55 * MIB
    assert part(found, PartKind.ALLOCATOR) == 0
    assert part(found, PartKind.UNEXPLAINED) == 5 * MIB


def test_parts_that_come_to_more_than_the_growth_are_owned_up_to() -> None:
    row = holding("tuple", 48_211, 80 * MIB, ["Engine.recorder", "list[*]"])
    found = diagnosed(
        ladder_record(base=(100, 90, 89, 69), end=(160, 150, 149, 129), now=survey(rows=[row]))
    )

    assert part(found, PartKind.UNEXPLAINED) == -20 * MIB
    assert found.explained == pytest.approx(1 - 20 / 60)
    assert any("more than the growth" in note for note in found.notes)


def test_too_little_growth_is_not_split_into_shares() -> None:
    found = diagnosed(ladder_record(base=(100, 90, 89, 69), end=(101, 91, 90, 70), now=survey()))

    assert found.explained is None


def test_a_missing_rehearsal_and_a_failed_survey_are_said() -> None:
    found = diagnosed(ladder_record(base=(100,), end=(160, 150, 149, 129), now=Survey("no fork")))

    assert found.growth_bytes == 60 * MIB
    assert any("assumed to be zero" in note for note in found.notes)
    assert any("no fork" in note for note in found.notes)


def test_without_a_baseline_the_stages_are_shown_and_no_split() -> None:
    record = ladder_record(base=(100,), end=(160, 150, 149, 129), now=survey())
    found = diagnosed(RunRecord(record.manifest, record.series, record.events[1:]))

    assert [row.name for row in found.stages] == ["rest", "trim", "collect", "flush"]
    assert found.explained is None
    assert any("no idle baseline" in note for note in found.notes)


def test_of_two_segments_the_last_baseline_counts() -> None:
    record = ladder_record(base=(100, 90, 89, 69), end=(160, 150, 149, 129), now=survey())
    first = DiagnosisBaseline(stages=(StageReading("rest", 1),), t_s=5.0)
    both = RunRecord(record.manifest, record.series, (first, *record.events))

    assert diagnosed(both).growth_bytes == 60 * MIB


def test_counters_are_those_between_the_two_looks() -> None:
    record = ladder_record(base=(100, 90, 90, 70), end=(160, 150, 90, 70), now=survey())
    assert isinstance(record.series["events.nodes_evicted"], Series)

    assert diagnosed(record).sites["TreeNode"].events == 17_270
