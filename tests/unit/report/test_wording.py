"""Numbers in words."""

from __future__ import annotations

import math

import pytest

from hybridbench.rates import full_rate_text, interval_text, level_text, number
from hybridbench.records.verdict import Rate
from hybridbench.report.wording import clock_text

GIB = float(2**30)
MIB = float(2**20)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Rate(3.45 * GIB, 3.41 * GIB, 3.5 * GIB, "B", "h"),
         "+3.45 GiB/h (95% interval +3.41 to +3.50 GiB/h)"),
        (Rate(1.2 * GIB, 900 * MIB, 1.5 * GIB, "B", "h"),
         "+1.20 GiB/h (95% interval +900 MiB to +1.50 GiB/h)"),
        (Rate(-2 * MIB, -3 * MIB, 1 * MIB, "B", "h"),
         "\N{MINUS SIGN}2.00 MiB/h (95% interval \N{MINUS SIGN}3.00 to +1.00 MiB/h)"),
        (Rate(3, 3, 3, "slots", "session close"), "+3 slots per session close, exactly"),
        (Rate(1, 1, 1, "slots", "session close"), "+1.00 slots per session close, exactly"),
        (Rate(2.5, 2, math.inf, "slots", "close", 0.999),
         "+2.50 slots per close (99.9% interval at least +2.00)"),
        (Rate(1, 0.995, 1, "nodes", "evicted node"),
         "+1.00 nodes per evicted node (95% interval +0.995 to +1.00)"),
        (Rate(1, -math.inf, math.inf, "B", "h"), "+1 B/h (no 95% interval)"),
    ],
)  # fmt: skip
def test_a_rate_is_told_with_its_interval(rate: Rate, text: str) -> None:
    assert full_rate_text(rate) == text


def test_an_interval_alone_carries_its_unit() -> None:
    assert interval_text(Rate(0, -MIB, MIB, "B", "h")) == "\N{MINUS SIGN}1.00 to +1.00 MiB/h"
    assert interval_text(Rate(0, 0, 2, "slots", "request")) == "0 to +2.00 slots per request"


def test_times_are_hours_minutes_seconds() -> None:
    assert [clock_text(t) for t in (0, 59.6, 3_599, 43_261)] == [
        "0:00:00",
        "0:01:00",
        "0:59:59",
        "12:01:01",
    ]


def test_numbers_keep_three_digits_that_mean_something() -> None:
    assert [number(v) for v in (0.0, 3.0, 1_234_567.0, 1234.5, 0.9349, 0.00012, math.nan)] == [
        "0",
        "3",
        "1,234,567",
        "1,234",
        "0.935",
        "0.00012",
        "unknown",
    ]


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (2**30, "B", "1.00 GiB"),
        (0.6123, "ratio", "61.2%"),
        (1234.56, "1/s", "1,235/s"),
        (4.56, "ms", "4.56 ms"),
    ],
)
def test_levels_have_their_units(value: float, unit: str, said: str) -> None:
    assert level_text(value, unit) == said
