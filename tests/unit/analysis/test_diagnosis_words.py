"""The paragraph that describes a diagnosis."""

from __future__ import annotations

import msgspec

from hybridbench.analysis.diagnosis import Diagnosis, diagnose
from hybridbench.analysis.diagnosis_words import bug_report
from hybridbench.analysis.record import RunRecord
from hybridbench.records.heap import Cycle, ViewedStorage
from tests.unit.analysis.diagnoses import MIB, holding, ladder_record, survey


def diagnosed(record: RunRecord) -> Diagnosis:
    found = diagnose(record)
    assert found is not None
    return found


def test_the_paragraph_names_class_cycle_call_and_shares() -> None:
    cycle = Cycle(("TreeNode.mamba_next", "TreeNode.parent"), 0.97)
    now = survey(garbage=60 * MIB, objects=17_270, cycles=[cycle])
    record = ladder_record(base=(100, 90, 90, 70), end=(162, 152, 92, 72), now=now)

    said = bug_report(diagnosed(record))

    assert said.startswith(
        "Over 30m and 17,270 evicted nodes the idle worker's private memory grew by 62.0 MiB"
    )
    assert "17,270 objects (60.0 MiB) waited for a full garbage collection: " in said
    assert "TreeNode.mamba_next -> TreeNode.parent -> TreeNode" in said
    assert "gc.collect() returned 60.0 MiB to the system" in said
    assert "MambaRadixCache.evict_mamba" in said
    assert said.endswith(
        "Of the growth, 0.0% is still referenced, 96.8% waited for a full collection, 0.0% is "
        "cache, 0.0% is free memory of malloc and 3.2% is unexplained."
    )


def test_the_paragraph_names_the_list_and_its_owner() -> None:
    row = holding("list", 0, 50 * MIB, ["EngineLoop._engine", "Engine._recorder"], entries=48_211)
    # Less than one hundredth of the growth.
    few = holding("dict", 76, 400 * 2**10, ["module pydantic_core", "ChainSchema"])
    now = survey(rows=[row, few])
    record = ladder_record(base=(100, 90, 90, 70), end=(150, 140, 140, 120), now=now)

    said = bug_report(diagnosed(record))

    assert (
        "the list EngineLoop._engine -> Engine._recorder grew by 50.0 MiB to 48,211 entries" in said
    )
    assert "pydantic" not in said
    assert "evict" not in said.replace("evicted", "")


def test_next_to_nothing_has_no_sign() -> None:
    # The collector releases 1 MiB less than at the baseline; memory grew by 400 MiB.
    record = ladder_record(
        base=(100, 90, 89, 70), end=(500, 490, 490, 470), now=survey(MIB, 200, [])
    )

    said = bug_report(diagnosed(record))

    assert "0.0% waited for a full collection" in said
    assert "-0.0%" not in said


def test_garbage_whose_memory_stays_with_malloc_is_its_share_of_the_growth() -> None:
    """The garbage is 3.36 of 15 MiB, although collecting it released almost nothing."""
    end = (160, 155, 155, 135)
    now = survey(garbage=int(3.36 * MIB), objects=6_480)

    said = bug_report(diagnosed(ladder_record(base=(145, 144, 144, 124), end=end, now=now)))

    assert "6,480 objects (3.36 MiB) waited for a full garbage collection" in said
    assert "22.4% waited for a full collection" in said


def test_too_little_growth_has_no_shares_and_no_holder() -> None:
    row = holding("dict", 0, 9_728, ["Engine._seen"], entries=1)
    now = survey(rows=[row])
    found = diagnosed(ladder_record(base=(100, 90, 89, 69), end=(101, 91, 90, 70), now=now))

    assert bug_report(found) == (
        "Over 30m the idle worker's private memory grew by 1.00 MiB, to 101 MiB. There was almost "
        "no uncollected garbage. The growth is too small to attribute."
    )


def test_the_paragraph_names_the_arrays_behind_views_that_keep_more_than_at_the_baseline() -> None:
    kept = ViewedStorage("TreeNode.host_value", 240, 48_000, 200, 1600 * MIB)
    few = ViewedStorage("Req.table", 3, 24, 1, MIB)
    now = msgspec.structs.replace(survey(), views=[kept, few])
    record = ladder_record(base=(100, 90, 90, 70), end=(1700, 1690, 1690, 70), now=now)

    found = diagnosed(record)

    assert found.views == (kept,)
    assert (
        "240 arrays in TreeNode.host_value (46.9 KiB) are views of 200 larger arrays and keep all "
        "of these alive, 1.56 GiB"
    ) in bug_report(found)
