"""Records as JSON: numbers that JSON lacks go as null and come back as what the field says."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from hybridbench.records.codec import from_json, to_json
from hybridbench.records.verdict import LevelResult, Rate


def test_an_end_without_a_bound_and_an_unknown_value_come_back() -> None:
    rate = Rate(math.nan, -math.inf, math.inf, "B", "h")

    stored = to_json(rate)
    again = from_json(json.loads(json.dumps(stored, allow_nan=False)), Rate)

    assert (stored["value"], stored["lower"], stored["upper"]) == (None, None, None)
    assert math.isnan(again.value)
    assert (again.lower, again.upper) == (-math.inf, math.inf)


def test_null_stays_where_the_record_allows_none() -> None:
    level = LevelResult("ttft_ms_p50", "p50", "ms", 1.0, None, None)

    assert from_json(to_json(level), LevelResult) == level


def test_a_key_of_a_later_version_is_left_out_and_a_missing_one_is_refused() -> None:
    stored = to_json(Rate(1.0, 0.0, 2.0, "B", "h"))

    assert from_json({**stored, "median": 1.5}, Rate) == Rate(1.0, 0.0, 2.0, "B", "h")
    with pytest.raises(msgspec.ValidationError, match="unit"):
        from_json({key: value for key, value in stored.items() if key != "unit"}, Rate)
