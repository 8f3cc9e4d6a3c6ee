"""What a defect did is told by the worker and kept out of everything a verdict rests on."""

from __future__ import annotations

from pathlib import Path

from hybridbench.defects.truth import Truth
from hybridbench.rundir.truth import read_truth, write_truth


def test_counts_add_up_by_name_and_can_be_forgotten() -> None:
    truth = Truth()
    truth.add("slots_lost", 3)
    truth.add("slots_lost")
    truth.add("refusals")

    assert truth.counts() == {"refusals": 1, "slots_lost": 4}

    truth.clear()

    assert truth.counts() == {}


def test_what_is_stored_beside_a_run_reads_back_and_a_run_without_it_has_none(
    tmp_path: Path,
) -> None:
    counts = {"some-defect": {"slots_lost": 4}}

    assert read_truth(tmp_path) == {}

    write_truth(tmp_path, counts)

    assert read_truth(tmp_path) == counts
