"""Mappings of one size as evidence of growth."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.mappings import mapping_growth
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.manifest import Manifest

KIB = 1024
T = np.arange(0.0, 600.0, 30.0)
WINDOW = (100.0, 580.0)


def record(**counts: np.ndarray) -> RunRecord:
    series = {
        name: Series(name, T, value)
        for size, value in counts.items()
        for name in [f"mappings.{size.removeprefix('of_')}KiB"]
    }
    return RunRecord(Manifest(), series, ())


def test_mappings_that_become_more_explain_their_share_of_the_growth() -> None:
    # Between 120 s and 570 s, the mappings of 4160 KiB grow from 24 to 114.
    of = record(of_4160=T / 5.0, of_64=np.full(T.size, 9.0))
    grown_bytes = 100 * 4160 * KIB

    found = mapping_growth(of, WINDOW, grown_bytes)

    assert found is not None
    assert (found.size_bytes, found.first, found.last) == (4160 * KIB, 24, 114)
    assert found.share == pytest.approx(0.9)
    assert found.text == (
        "private anonymous mappings of 4.06 MiB: 24 became 114, 90% of the memory growth"
    )


@pytest.mark.parametrize(
    ("counts", "grown_bytes"),
    [
        (np.full(T.size, 30.0), 100e6),  # a constant number
        (T / 5.0, 100 * 90 * 4160 * KIB),  # they explain one hundredth
        (T / 5.0, 4160 * KIB),  # memory that is reserved but unused
        (T / 5.0, -1.0),
        (np.where(T == 300.0, 0.0, 20.0 + T / 5.0), 100 * 4160 * KIB),  # all unmapped once
    ],
)
def test_other_mappings_explain_nothing(counts: np.ndarray, grown_bytes: float) -> None:
    assert mapping_growth(record(of_4160=counts), WINDOW, grown_bytes) is None


def test_names_of_others_are_no_sizes() -> None:
    of = record(of_x=T, of_4160=T / 5.0)

    found = mapping_growth(of, (0.0, 30.0), 6 * 4160 * KIB)

    assert found is None, "two samples are no series"
