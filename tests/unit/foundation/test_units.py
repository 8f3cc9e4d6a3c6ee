"""Durations, sizes and rates: what is accepted, what is refused, what is printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.foundation.units import (
    digits_apart,
    format_byte_rate,
    format_bytes,
    format_count,
    format_duration,
    parse_byte_rate,
    parse_bytes,
    parse_duration_s,
    sparkline,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("3m", 180),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("250ms", 0.25),
        (" 5m ", 300),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "5 minutes", "1h-3m", "-5m", "3mm", "nan", "1h30"])
def test_anything_else_is_no_duration_and_the_message_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s, 5m"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 512 * 2**20), ("512MB", 512 * 10**6), ("1.5 GiB", 3 * 2**29)]
)
def test_binary_and_decimal_units_are_kept_apart(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["512", "512M", "12 parsecs", "", "-1MiB", "1 mib"])
def test_a_size_without_a_clear_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


def test_rates_are_bytes_per_hour_whatever_they_were_written_in() -> None:
    assert parse_byte_rate("200MiB/h") == 200 * 2**20
    assert parse_byte_rate("1MB/min") == 60 * 10**6
    assert parse_byte_rate("1kB/s") == 3_600_000
    with pytest.raises(ValueError, match="is not a rate"):
        parse_byte_rate("200MiB")
    with pytest.raises(ValueError, match="is not a rate"):
        parse_byte_rate("200MiB/fortnight")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0004, "0s"),
        (0.25, "250ms"),
        (0.6, "600ms"),
        (0.9996, "1s"),
        (59.6, "1m"),
        (180, "3m"),
        (5400, "1h30m"),
        (90061, "1d1h"),
    ],
)
def test_durations_print_with_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(min_value=1, max_value=10**7))
def test_a_printed_duration_reads_back_within_its_last_unit(seconds: int) -> None:
    assert parse_duration_s(format_duration(seconds)) == pytest.approx(seconds, rel=0.05, abs=1)


def test_sizes_print_in_binary_units() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1536) == "1.50 KiB"
    assert format_bytes(2**20 - 1) == "1.00 MiB"
    assert format_bytes(-3 * 2**30) == "-3.00 GiB"
    assert format_byte_rate(3.7e9) == "3.45 GiB/h"
    assert format_count(12345) == "12.3 k"
    assert format_count(987) == "987"


@given(st.floats(min_value=-1e15, max_value=1e15))
def test_any_finite_size_prints_short_and_with_its_unit(size: float) -> None:
    text = format_bytes(size)

    assert text.endswith("B")
    assert len(text) <= 12


@given(
    st.floats(1e-6, 1e12),
    st.floats(1e-3, 0.5),
)
def test_an_interval_never_collapses_by_rounding(value: float, share: float) -> None:
    ends = (value, value * (1 - share), value * (1 + share))
    for form in (format_count, format_bytes):
        digits = digits_apart(form, ends)
        assert len({form(end, digits) for end in ends}) == 3


def test_a_small_rate_keeps_two_digits_that_mean_something() -> None:
    assert format_count(0.0129) == "0.013"
    assert digits_apart(format_count, (0.0129, 0.0114, 0.0145)) == 3
    assert format_count(0.844) == "0.84"


def test_a_sparkline_spans_its_own_range_and_a_flat_line_looks_flat() -> None:
    assert sparkline([]) == ""
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([0.0, 7.0, 3.5]) == "▁█▅"
    assert set(sparkline([1e9, 1e9 + 1000, 1e9], 5e6)) == {"▁"}
