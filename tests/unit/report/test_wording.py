"""Numbers in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hybridbench.records.finding import Rate
from hybridbench.records.rates import full_rate_text, interval_text, number
from hybridbench.report.quantity import (
    SHARE,
    TIMES,
    Form,
    Quantity,
    joined,
    length,
    moment,
    phrase,
    quantities,
    share_text,
)

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
        (Rate(7.2e-6, 0, MIB, "B", "h"), "0 B/h (95% interval 0 B to +1.00 MiB/h)"),
    ],
)  # fmt: skip
def test_a_rate_is_told_with_its_interval(rate: Rate, text: str) -> None:
    assert full_rate_text(rate) == text


def test_an_interval_alone_carries_its_unit() -> None:
    assert interval_text(Rate(0, -MIB, MIB, "B", "h")) == "\N{MINUS SIGN}1.00 to +1.00 MiB/h"
    assert interval_text(Rate(0, 0, 2, "slots", "request")) == "0 to +2.00 slots per request"


def test_a_moment_is_hours_minutes_seconds() -> None:
    texts = [str(moment("x", t_s)) for t_s in (0, 59.6, 3_599, 43_261)]

    assert texts == ["0:00:00", "0:01:00", "0:59:59", "12:01:01"]


def test_a_quantity_says_as_much_as_its_form() -> None:
    growth = Quantity("growth", 3 * MIB, "B", None, "h", 2 * MIB, 4 * MIB, count=9120, signed=True)
    ratio = Quantity("speed", 0.951, TIMES, lower=0.943, upper=0.959)
    minus = "\N{MINUS SIGN}"

    texts = {form.name: str(growth.shown(form)) for form in Form}

    assert texts["FULL"] == "+3.00 MiB/h (95% interval +2.00 to +4.00 MiB/h)"
    assert texts["VALUE"] == str(growth.narrow) == "+3.00 MiB/h"
    assert texts["INTERVAL"] == "+2.00 to +4.00 MiB/h"
    assert texts["BOUND"] == "growth of at most 4.00 MiB/h (95%)"
    assert texts["COUNT"] == "9,120"
    assert str(ratio.shown(Form.CHANGE)) == f"{minus}4.9% ({minus}5.7% to {minus}4.1%)"
    assert str(ratio.shown(Form.CHANGE_CELL)) == f"{minus}4.9% ({minus}5.7 to {minus}4.1)"
    assert str(ratio.shown(Form.TIMES)) == "0.951"
    assert str(replace(growth, upper=-1.0).shown(Form.BOUND)) == "no growth (95%)"
    assert str(length("judged", 297.0)) == "4m57s"


def test_a_share_has_no_digits_that_say_nothing() -> None:
    shares = [share_text(share) for share in (0.432, 0.03, 0.0051, 1.0, 0.0, -0.016)]

    assert shares == ["43.2%", "3%", "0.51%", "100%", "0%", "\N{MINUS SIGN}1.6%"]
    assert str(Quantity("change", 0.8, SHARE, lower=0.6, upper=1.0, signed=True)) == (
        "+80% (95% interval +60% to +100%)"
    )


def test_a_phrase_keeps_the_quantities_between_its_words() -> None:
    lasted = length("judged", 60.0)
    said = joined("; ", [phrase("judged ", lasted), "twice"])

    assert str(said) == "judged 1m; twice"
    assert list(quantities((said,))) == [lasted]


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
        (0.6123, SHARE, "61.2%"),
        (1234.56, "1/s", "1,235/s"),
        (4.56, "ms", "4.56 ms"),
    ],
)
def test_levels_have_their_units(value: float, unit: str, said: str) -> None:
    assert str(Quantity("level", value, unit, form=Form.LEVEL)) == said
