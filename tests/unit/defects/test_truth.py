"""The worker reports what a defect did; no verdict uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.defects.truth import Truth
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.messages import InjectedTruth
from hybridbench.rundir.layout import TRUTH
from hybridbench.rundir.truth import StoredTruth, add_truth, read_truth


def test_counts_add_up_by_name_and_can_be_forgotten() -> None:
    truth = Truth()
    truth.add("slots_lost", 3)
    truth.add("slots_lost")
    truth.add("refusals")

    assert truth.counts() == {"refusals": 1, "slots_lost": 4}

    truth.clear()

    assert truth.counts() == {}


def test_counts_of_one_worker_after_another_add_up_and_a_run_without_them_has_none(
    tmp_path: Path,
) -> None:
    assert read_truth(tmp_path) == StoredTruth()

    add_truth(tmp_path, InjectedTruth({"d": {"slots_lost": 4}}, {"d": {"slots_lost": 3}}))
    second = {"d": {"slots_lost": 2, "refusals": 1}}
    add_truth(tmp_path, InjectedTruth(second, before_steady={"d": {"slots_lost": 1}}))

    assert read_truth(tmp_path) == StoredTruth(
        counts={"d": {"slots_lost": 6, "refusals": 1}},
        at_idle={"d": {"slots_lost": 5, "refusals": 1}},
        before_steady={"d": {"slots_lost": 1}},
    )


def test_a_file_of_another_form_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / TRUTH).write_text('{"d": {"slots_lost": 4}}')

    with pytest.raises(RunDirectoryError, match=r"truth.json is damaged: .* unknown field `d`$"):
        read_truth(tmp_path)
