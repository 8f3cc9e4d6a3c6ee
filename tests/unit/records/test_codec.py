"""Records as JSON: numbers that JSON lacks become null and are read back as the field declares."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from hybridbench.records.codec import by_name, from_json, to_json
from hybridbench.records.finding import Rate
from hybridbench.records.heap import Cycle, RetainedObjects, SurveyRecord, TypeCount
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Manifest, Model
from hybridbench.records.verdict import LevelResult


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


def test_a_record_of_the_wire_is_stored_by_name_and_comes_back() -> None:
    survey = SurveyRecord(
        garbage_objects=7,
        garbage_types=[TypeCount("TreeNode", 7, 4096)],
        cycles=[Cycle(("TreeNode.next", "TreeNode.parent"), 0.9)],
        retained=[RetainedObjects("Event", 5, 600, chain=("Engine.log", "list[*]"))],
    )

    stored = json.loads(json.dumps(by_name(survey)))

    assert stored["retained"][0]["chain"] == ["Engine.log", "list[*]"]
    assert from_json(stored, SurveyRecord) == survey


def test_an_open_record_keeps_the_keys_of_a_later_version_at_every_depth() -> None:
    stored: dict[str, JsonValue] = {"run_id": "one", "later": 1, "model": {"name": "m", "new": 2}}

    again = by_name(from_json(stored, Manifest))

    assert again["later"] == 1
    assert again["model"] == {**by_name(Model(name="m")), "new": 2}


def test_an_amount_that_is_not_known_stays_so_in_a_table_of_numbers() -> None:
    pools = from_json({"pools": {"kv_tokens": None}}, Manifest).pools

    assert math.isnan(pools["kv_tokens"])
