"""A number in a cell is read as the program that wrote it means it."""

from __future__ import annotations

import pytest

from hybridbench.series.cells import number_in, ungrouped, units_of, written


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


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("12 / 2048 MiB", 12.0),
        ("12/2048MiB", 12.0),
        ("12 MiB of 2048 MiB", 12.0),
        ("12MiB (1.5%)", 12.0),
        ("~12 MiB", 12.0),
        ("12 Megabytes", 12e6 / 2**20),
        ("1 Gigabyte", 1e9 / 2**20),
    ],
)
def test_a_size_may_be_one_of_a_total(text: str, mib: float) -> None:
    read = number_in(text)

    assert read is not None
    size, in_bytes = read
    assert size == pytest.approx(mib * 2**20)
    assert in_bytes


@pytest.mark.parametrize(
    ("cells", "base"),
    [
        (["1022 MB", "1023 MB", "1 GB"], 1024.0),
        (["998 MB", "999 MB", "1.0 GB"], 1000.0),
        # pg_size_pretty changes the unit at 10 of the next.
        (["10239 kB", "10 MB"], 1024.0),
        (["1.2 GB", "1023 MB", "1.0 GB"], 1024.0),
        (["8 GB", "500 MB"], 1024.0),
    ],
)
def test_one_base_is_used_for_all_units_of_a_column(cells: list[str], base: float) -> None:
    units = units_of(filter(None, map(written, cells)), kb=1024.0)

    assert [units[unit] for unit in ("kb", "mb", "gb")] == [base, base**2, base**3]


def test_a_column_of_one_unit_keeps_its_usual_meaning() -> None:
    units = units_of([("5", "mb"), ("6", "mb")], kb=1024.0)

    assert (units["kb"], units["mb"]) == (1024.0, 1e6)
