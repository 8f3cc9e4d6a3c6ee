"""A number in a cell is read as the program that wrote it means it."""

from __future__ import annotations

import pytest

from hybridbench.series.cells import number_in, ungrouped


@pytest.mark.parametrize(
    ("cell", "groups", "unsure", "expected"),
    [
        ("2.931GiB / 15.5GiB", "", ",", "2.931GiB / 15.5GiB"),  # docker stats
        ("2.931 GiB", ".", ",.", "2.931 GiB"),  # the same, next to dates such as 31.12.2026
        ("1.234 MB", ".", ",.", "1234 MB"),
        ("2,014 MiB", "", ",.", "2014 MiB"),
        ("2,014 GiB", "", ",.", "2,014 GiB"),
        ("1.234MiB / 15.5GiB", "", ",", "1.234MiB / 15.5GiB"),  # an idle container
        ("1,024 GiB", ",", "", "1024 GiB"),
    ],
)
def test_of_two_readings_of_a_size_the_one_that_a_process_may_have_counts(
    cell: str, groups: str, unsure: str, expected: str
) -> None:
    assert ungrouped([cell], groups, unsure) == [expected]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [("512m", 512 * 2.0**20), ("131072m", 2.0**37), ("524288000123m", 524288000.123)],
)
def test_an_m_is_mebibytes_of_top_or_thousandths_of_a_byte_of_kubernetes(
    cell: str, expected: float
) -> None:
    assert number_in(cell) == (expected, True)
